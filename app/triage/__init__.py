"""Triage: rules, read plans and versioned policies."""
