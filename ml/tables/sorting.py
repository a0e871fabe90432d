"""Out-of-core sorting of tables by ``case_id`` with DuckDB."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import parquet

from ml.tables.reading import TableError, read_batches
from ml.util.files import sync_file, sync_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Settings = dict[str, str | bool | int | float | list[str]]

_BATCH_ROWS = 50_000
#: Rows of a group of the sorted file: a shard reads the groups of its own cases only.
_GROUP_ROWS = 122_880


def sort_table(
    table: Path, out: Path, *, memory: str | None = None, observer: Callable[[int], None] = lambda rows: None
) -> int:
    """Sort LABELS or PREDICTIONS as ``evaluate --stream`` and its shards take them."""
    # Identifiers such as 007 stay text, in the order of their bytes.
    import duckdb

    if out.suffix.lower() != ".parquet":
        raise TableError(f"{out}: a sorted table is a Parquet file: the extension must be .parquet")
    batches = read_batches(table, _BATCH_ROWS)
    first = next(batches, None)
    if first is None or "case_id" not in first.column_names:
        raise TableError(f"{table}: column 'case_id' is missing")
    read = _Counted(first.schema, chain([first], batches), observer)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        # it would fetch what it lacks from its makers
        settings: _Settings = {"temp_directory": folder, "autoinstall_known_extensions": False}
        if memory is not None:
            settings["memory_limit"] = memory
        written = Path(folder) / "sorted.parquet"
        try:
            with duckdb.connect(config=settings) as engine:
                _sort(engine, first.column_names, read, written)
        except (duckdb.Error, pa.ArrowException, OSError) as exc:
            raise read.failure or TableError(f"{table}: cannot be sorted: {str(exc).splitlines()[0]}") from exc
        sync_file(written)
        written.replace(out)
    sync_folder(out.parent)
    return read.rows


def _sort(engine: "DuckDBPyConnection", names: list[str], read: "_Counted", written: Path) -> None:
    """Sort batches into a file; columns by number, as A and a differ."""
    places = [f"c{place}" for place in range(len(names))]
    case = places[names.index("case_id")]
    engine.execute("SET enable_progress_bar = false")  # which it draws on stdout
    given = pa.RecordBatchReader.from_batches(pa.schema(_named(read.schema, places)), read.batches(places))
    engine.register("given", given)
    # further columns order a case's rows: equal rows give equal bytes
    query = f"SELECT CAST({case} AS VARCHAR) AS {case}, * EXCLUDE ({case}) FROM given ORDER BY ALL"  # noqa: S608
    rows = engine.sql(query).to_arrow_reader(_GROUP_ROWS)
    names = ["case_id", *(name for place, name in zip(places, names, strict=True) if place != case)]
    with parquet.ParquetWriter(written, pa.schema(_named(rows.schema, names))) as writer:
        for batch in rows:
            writer.write_batch(batch.rename_columns(names))


def _named(schema: pa.Schema, names: list[str]) -> list[pa.Field]:
    return [field.with_name(name) for field, name in zip(schema, names, strict=True)]


class _Counted:
    """Batches of a table, counted, with the first error kept."""

    def __init__(self, schema: pa.Schema, tables: Iterator[pa.Table], observer: Callable[[int], None]) -> None:
        self.schema, self.tables, self.observer = schema, tables, observer
        self.rows = 0
        self.failure: TableError | None = None

    def batches(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The batches, with other names of their columns."""
        try:
            for table in self.tables:
                self.rows += table.num_rows
                self.observer(self.rows)
                yield from table.rename_columns(names).to_batches()
        except TableError as exc:
            self.failure = exc
            raise
