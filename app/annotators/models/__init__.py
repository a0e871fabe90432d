"""Models of annotators: stored, listed and switched."""
