"""Accounts: people, keys, sessions, single sign-on, permissions."""
