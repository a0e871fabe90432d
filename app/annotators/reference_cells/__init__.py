"""Reference cells of each class."""
