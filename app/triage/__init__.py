"""Triage: rules, read plans and versioned policies.

Rules, plans and the versioned policies behind them.
"""
