"""Looking for what ought to be gone: in every file, read back where it is compressed, and in every row."""

import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import psycopg
import pyarrow.parquet
from sqlalchemy import Engine

from tests.support.postgres import PostgresServer

READINGS = 20


def forms(value: object) -> list[bytes]:
    """How a value may be written: as text, and as a number's or a digest's bytes."""
    if isinstance(value, bytes):
        return [value, value.hex().encode()]
    if isinstance(value, float):
        return [struct.pack("<d", value), struct.pack(">d", value), repr(value).encode()]
    if isinstance(value, int):
        return [struct.pack("<q", value), struct.pack(">q", value), str(value).encode()]
    return [str(value).encode()]


def _contents(path: Path) -> Iterator[bytes]:
    data = path.read_bytes()
    yield data
    if path.suffix == ".parquet":
        yield repr(pyarrow.parquet.read_table(BytesIO(data)).to_pydict()).encode()


def _rows(url: str) -> Iterator[tuple[str, bytes]]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        listed = "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT LIKE 'information%'"
        for schema, table in connection.execute(listed).fetchall():
            rows = connection.execute(f'SELECT t::text FROM "{schema}"."{table}" t').fetchall()
            yield f"{schema}.{table}", "\n".join(row[0] or "" for row in rows).encode()


def _heap(url: str, server: PostgresServer) -> Path:
    """Folder of a database's files, with everything in them that is committed."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT oid FROM pg_database WHERE datname = current_database()").fetchone()
    assert row is not None
    return server.data / "base" / str(row[0])


def remains(
    canaries: Mapping[str, object], folders: list[Path], engine: Engine, server: PostgresServer | None
) -> set[str]:
    """Which canaries are found, and where.

    Args:
        canaries: by what they are.
        folders: in which every file is searched.
        engine: of the database; SQLite's file lies in the folders.
        server: of a PostgreSQL database, of which rows and files are searched.
    """
    found, url = set(), engine.url.render_as_string(hide_password=False)
    searched = [*folders, *([_heap(url, server)] if server is not None else [])]
    for folder in searched:
        found |= _in_files(canaries, folder)
    for table, content in _rows(url) if server is not None else ():
        found |= {f"{name} in {table}" for name in _found(canaries, content)}
    return found


def _in_files(canaries: Mapping[str, object], folder: Path) -> set[str]:
    """The folder is read anew when a file goes while it is read: a server renames and removes files as it likes."""
    for _ in range(READINGS):
        with suppress(FileNotFoundError):
            found = set()
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                names = set().union(
                    _found(canaries, path.name.encode()), *(_found(canaries, c) for c in _contents(path))
                )
                found |= {f"{name} in {path}" for name in names}
            return found
    raise AssertionError(f"the files of {folder} changed in each of {READINGS} readings")


def _found(canaries: Mapping[str, object], content: bytes) -> set[str]:
    return {name for name, value in canaries.items() if any(form in content for form in forms(value))}
