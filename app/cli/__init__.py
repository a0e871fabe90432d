"""Command line of the service."""
