"""Practice on settled cells, and qualification by them before one reads alone."""
