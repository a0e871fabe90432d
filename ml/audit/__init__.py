"""Audit of predictions against labels, with every finding on one page."""
