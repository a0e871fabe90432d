"""Models of named annotators: their versions, which one is in use, and the switch back."""
