"""Cases: ingest, presentation, duplicates and blindness."""
