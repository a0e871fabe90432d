"""The service's half of the command line, and the whole ``secondread`` command."""
