"""Reports and frozen evaluations."""
