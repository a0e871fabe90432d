"""Who is calling and with which role."""
