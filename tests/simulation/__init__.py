"""Laboratories simulated without HTTP: the same policy, the same estimators, hundreds of times."""
