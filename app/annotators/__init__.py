"""What annotators may know about their own reading."""
