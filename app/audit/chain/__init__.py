"""Audit chain: events, coverage, change tracking, row digests and keys."""
