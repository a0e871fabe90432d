"""Triage: whom to ask next. Rules, plans and the versioned policies behind them."""
