"""Infrastructure: database, errors, logs, requests and storage.

Knows no domain.
"""
