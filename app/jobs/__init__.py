"""Jobs: long work and its workers."""
