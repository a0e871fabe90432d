"""Streamed table writers and atomic files.

The bytes of a table depend on its rows alone, never on how many of them came at once.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

import pyarrow as pa
from pyarrow import csv, parquet

from ml.util.files import file_sha256, sync_file, sync_folder

#: Columns of a table of images that could not be read.
ERRORS = pa.schema(
    [
        ("row", pa.int64()),
        ("case_id", pa.string()),
        ("file", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
    ]
)
#: Rows of a group of a Parquet file, which is what is held in memory.
GROUP_ROWS = 16_384


class ShardError(ValueError):
    """Parts of predictions that do not belong together, or are not all there."""


class TableWriter:
    """A CSV or Parquet file that is written in groups of rows.

    Args:
        path: the file.
        schema: of every table that is given.
        as_csv: whether it is CSV.
    """

    def __init__(self, path: Path, schema: pa.Schema, *, as_csv: bool = False) -> None:
        self.schema, self.rows = schema, 0
        self._writer = csv.CSVWriter(path, schema) if as_csv else parquet.ParquetWriter(path, schema)
        self._held: list[pa.Table] = []
        self._n_held = 0

    def __enter__(self) -> "TableWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._n_held:
            self._write(pa.concat_tables(self._held))
        self._writer.close()

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        self.rows += table.num_rows
        self._held.append(table)
        self._n_held += table.num_rows
        if self._n_held < GROUP_ROWS:
            return
        held = pa.concat_tables(self._held)
        while held.num_rows >= GROUP_ROWS:
            self._write(held.slice(0, GROUP_ROWS))
            held = held.slice(GROUP_ROWS)
        self._held, self._n_held = [held], held.num_rows

    def _write(self, table: pa.Table) -> None:
        # in one piece: where a column was cut would be seen in the bytes
        self._writer.write_table(table.combine_chunks())


@contextmanager
def temporary_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file, removed at the end."""
    path = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def create_file(path: Path, target: Path) -> None:
    """Move a written file to a free place, or keep an identical file that is there.

    Args:
        path: what was written, in the same folder.
        target: where it belongs.

    Raises:
        ShardError: a file with other bytes is there.
    """
    sync_file(path)
    try:
        os.link(path, target)
    except FileExistsError as exc:
        if file_sha256(path) != file_sha256(target):
            raise ShardError(
                f"{target}: is there already with other bytes: was it made on another kind of machine, or with other "
                "versions of the packages?"
            ) from exc
    sync_folder(target.parent)


def replace_file(path: Path, target: Path) -> None:
    """Move a written file into place, replacing any other."""
    sync_file(path)
    path.replace(target)
    sync_folder(target.parent)
