"""Helpers without a domain: arrays, files, cores, sandbox, number format, splits."""
