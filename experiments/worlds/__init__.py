"""Laboratories simulated without HTTP: the policy and the estimators of the service, hundreds of times."""
