"""Releases: registration, gate, aliases."""
