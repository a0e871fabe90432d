"""Threats of docs/security.md: for each control a test that fails without it."""
