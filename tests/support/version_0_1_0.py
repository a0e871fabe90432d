"""A database that version 0.1.0 itself has filled: cases of patients, one of them erased, labels, reads, a release.

Its key is ``tests.support.service.KEY``. The files next to it (images, the release) are not kept.
"""

import sqlite3
from pathlib import Path

_DUMP = Path(__file__).with_suffix(".sql")


def write_database(path: Path) -> None:
    """Make the database as a new SQLite file."""
    connection = sqlite3.connect(path)
    connection.executescript(_DUMP.read_text(encoding="utf-8"))
    connection.close()
