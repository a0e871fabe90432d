"""Reference cells: settled cells that stand for a class, and what the guidelines say of each class."""
