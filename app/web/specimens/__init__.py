"""Pages of specimens."""
