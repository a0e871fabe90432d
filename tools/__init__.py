"""Generators of product files: OpenAPI document, clients, catalogues, screenshots, numbers of the documents."""
