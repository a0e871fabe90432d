"""Metrics recomputed over collected labels."""
