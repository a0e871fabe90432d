"""Advisory locks."""
