"""Data sets: simulated cells, real cells, mixed digits, and folders of one's own."""
