"""Specimens: their cells, their shares, and what a laboratory learns from them."""
