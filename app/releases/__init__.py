"""Releases, champion and challenger."""
