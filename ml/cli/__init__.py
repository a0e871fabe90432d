"""Offline commands of the command line."""
