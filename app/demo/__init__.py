"""Demo laboratory."""
