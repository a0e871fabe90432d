"""Practice and qualification on settled cells."""
