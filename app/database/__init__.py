"""Database: engine, sessions, locks, retry, migration; requests answered once."""
