"""Compiled statements and advisory locks."""
