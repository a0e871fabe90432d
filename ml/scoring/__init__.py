"""Predictions of many images: lists that are read as a stream, parts that any machine may make, and their joining."""
