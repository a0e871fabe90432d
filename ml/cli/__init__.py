"""The offline half of the command line."""
