"""Golden files: every number of thirty small worlds, and the documents that others read.

They guard changes of structure, which change neither. ``make golden`` (``python -m tests.golden``) renews them. That is
legitimate only when an issue names the number or the document that changes; the commit then names it too, and its diff
shows that nothing else changed. A test that fails for a refactoring is a mistake in the refactoring.

Numbers are compared to a relative 1e-12, near zero to 1e-15; what a fit, a root finder or a quadrature ends with
(section ``fitted``) to 1e-6. Versions, times, random identifiers and drawings are taken out of documents by named
functions of ``documents``.
"""
