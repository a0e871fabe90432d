"""Long work behind one port."""
