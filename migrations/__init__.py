"""Alembic migrations."""

#: Revision of the newest migration, which every start asks for: reading all migrations takes a tenth of a second.
HEAD = "20261204"
