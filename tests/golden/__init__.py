"""Golden files: every number of thirty small worlds, and the documents that others read.

They guard changes of structure, which change neither. ``make golden`` (``python -m tests.golden``) renews them. That is
legitimate only when an issue names the number or the document that changes; the commit then names it too, and its diff
shows that nothing else changed. A test that fails for a refactoring is a mistake in the refactoring.

Numbers are compared to a relative 1e-12, near zero to 1e-15; value, error and ends of one estimate to 1e-12 of the
largest of them, since an end near zero is a difference of numbers that are not. What a fit, a root finder or a
quadrature ends with (section ``fitted``) is compared to 1e-6. Numbers of documents are compared in the same way, and
everything else byte by byte. What is larger than 100 kB, or no text, is kept as its SHA-256; the OpenAPI document
stands in ``docs/reference`` too. Versions, random identifiers and drawings are left out by named functions of
``documents``, and the service's clock stands.
"""
