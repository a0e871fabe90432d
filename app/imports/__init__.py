"""Imports of many cases at once."""
