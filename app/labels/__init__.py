"""Reads: submitting labels, and the posterior."""
