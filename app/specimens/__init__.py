"""Specimens: their cells, what is computed of them, and how they are shown."""
