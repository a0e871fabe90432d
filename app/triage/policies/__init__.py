"""Reading policies: versioned rows that decide whom to ask next."""
