"""Annotators: own reading, statistics, models, practice, reference cells."""
