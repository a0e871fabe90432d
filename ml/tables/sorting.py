"""Tables of any length sorted by ``case_id``, by DuckDB, which sorts on disk what does not fit into memory."""

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from ml.files import sync_file, sync_folder
from ml.tables.reading import TableError, read_batches

_Settings = dict[str, str | bool | int | float | list[str]]

_BATCH_ROWS = 50_000
#: The further columns settle the order of a case's rows, so that the same rows give the same bytes. A shard reads the
#: row groups of its own cases only.
_SORT = """COPY (SELECT CAST(case_id AS VARCHAR) AS case_id, * EXCLUDE (case_id) FROM given ORDER BY ALL)
TO $out (FORMAT parquet, ROW_GROUP_SIZE 122880)"""


def sort_table(
    table: Path, out: Path, *, memory: str | None = None, observer: Callable[[int], None] = lambda rows: None
) -> int:
    """Sort LABELS or PREDICTIONS as ``evaluate --stream`` and its shards take them.

    The table is read as everything here reads it: an identifier such as 007 stays text, and the order is that of its
    bytes. What does not fit into memory lies next to ``out`` meanwhile.

    Args:
        table: CSV or Parquet, in any order.
        out: Parquet file to write, whole or not at all.
        memory: what DuckDB takes at most, such as ``4GB``; None for its own choice.
        observer: called with the rows read.

    Returns:
        Number of rows.

    Raises:
        TableError: the table cannot be read, or DuckDB cannot sort it: the disk is full, say.
    """
    import duckdb

    if out.suffix.lower() != ".parquet":
        raise TableError(f"{out}: a sorted table is a Parquet file: the extension must be .parquet")
    batches = read_batches(table, _BATCH_ROWS)
    first = next(batches, None)
    if first is None or "case_id" not in first.column_names:
        raise TableError(f"{table}: column 'case_id' is missing")
    read = _Counted(chain([first], batches), observer)
    with TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        # it would fetch what it lacks from its makers
        settings: _Settings = {"temp_directory": folder, "autoinstall_known_extensions": False}
        if memory is not None:
            settings["memory_limit"] = memory
        written = Path(folder) / "sorted.parquet"
        try:
            with duckdb.connect(config=settings) as engine:
                engine.execute("SET enable_progress_bar = false")  # which it draws on stdout
                engine.register("given", pa.RecordBatchReader.from_batches(first.schema, iter(read)))
                engine.execute(_SORT, {"out": str(written)})
        except duckdb.Error as exc:
            raise read.failure or TableError(f"{table}: cannot be sorted: {str(exc).splitlines()[0]}") from exc
        sync_file(written)
        written.replace(out)
    sync_folder(out.parent)
    return read.rows


class _Counted:
    """Batches of a table while another program reads them, which hides what went wrong.

    Attributes:
        rows: how many were read.
        failure: why reading ended before the end.
    """

    def __init__(self, tables: Iterator[pa.Table], observer: Callable[[int], None]) -> None:
        self.tables, self.observer = tables, observer
        self.rows = 0
        self.failure: TableError | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self.tables:
                self.rows += table.num_rows
                self.observer(self.rows)
                yield from table.to_batches()
        except TableError as exc:
            self.failure = exc
            raise
