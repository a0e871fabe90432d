"""Arrow tables from CSV, Parquet or memory; errors name table, row, column."""

import csv as text_csv
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedReader, TextIOWrapper
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet

from ml.util.arrays import FloatArray, IntArray

_TEXT_COLUMNS = ("case_id", "annotator", "label", "finding", "file", "patient", "partition")
#: What other programs put between columns, and what people call it.
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}


class TableError(ValueError):
    """A table that cannot be used; the message names file, row and column.

    Examples:
        >>> from secondread.tables import read_labels
        >>> read_labels({"case_id": ["a", "b"], "count:x": [2, -1]})
        Traceback (most recent call last):
            ...
        ml.tables.reading.TableError: LABELS: row 1, column count:x: not a count: -1.0, 1 in all
    """


class ArrowTable(Protocol):
    """A table with the Arrow interface: of pandas, polars, pyarrow and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Give the table as a stream of Arrow record batches."""


#: A column of a table that is written.
Column = Sequence[str] | Sequence[float] | npt.NDArray[Any]
#: A file, or a table in memory.
TableSource = str | Path | ArrowTable | Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """Name of a table and its rows in messages.

    The first row has number 2 in CSV, whose first line is the header, 1 in Parquet, 0 in memory. ``rows`` has positions
    in the whole table of the rows of a part; ``file`` is the CSV file, to quote a cell as it is written there.
    """

    name: str
    first: int = 0
    rows: npt.NDArray[np.intp] | None = None
    file: Path | None = None

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of_file(cls, path: Path) -> "Place":
        """Place of a file, or of a table in memory."""
        kind = table_kind(path)
        return cls(str(path), {".csv": 2, ".parquet": 1}.get(kind, 0), file=path if kind == ".csv" else None)

    def part(self, rows: npt.NDArray[np.intp]) -> "Place":
        """Name some of the rows, by their positions among these."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])


_SAVE_AS_UTF_8 = "save it as 'CSV UTF-8 (comma delimited)'"
_LONGEST_HEADER = 65536
# first bytes of a compressed file
_GZIP = b"\x1f\x8b"
#: What a message is about.
Where = Path | Place


def table_kind(path: Path) -> str:
    """Extension of a table; ``.csv`` also for ``.csv.gz``."""
    return ".csv" if path.name.lower().endswith(".csv.gz") and path.suffix == ".gz" else path.suffix.lower()


def _open_bytes(path: Path) -> BufferedReader:
    return BufferedReader(gzip.open(path)) if path.suffix == ".gz" else path.open("rb")  # type: ignore[type-var,unused-ignore]


def place_of(source: TableSource, name: str) -> Place:
    """Name a table for messages: its file, or this name for one in memory."""
    return Place.of_file(Path(source)) if isinstance(source, str | Path) else Place(name)


def read_table(source: TableSource, *, in_order: bool = False) -> pa.Table:
    """Read a CSV or Parquet file, or take a table in memory.

    Args:
        source: the table.
        in_order: keep the order of columns in memory, which else are sorted so that nothing depends on it.

    Raises:
        TableError: no such file, another extension, a broken file, no table, or two columns of one name.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        _check_file(path)
        with explaining(path):
            is_csv = table_kind(path) == ".csv"
            table = csv.read_csv(path, convert_options=_convert()) if is_csv else parquet.read_table(path)
        return _require_distinct(table, str(path))
    try:
        table = _of_columns(source) if isinstance(source, Mapping) else pa.table(source)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        kinds = "a file name, a mapping of columns, or a table of pandas, polars or pyarrow"
        raise TableError(f"{type(source).__name__} cannot be read as a table ({kinds}): {exc}") from exc
    _require_distinct(table, type(source).__name__)
    # so that not even a tie between classes depends on where a column stands
    return table if in_order else table.select(sorted(table.column_names))


def open_table(source: TableSource, name: str, *, in_order: bool = False) -> tuple[pa.Table, Place]:
    """Read a table, and its name for messages; refuse an empty file."""
    table = read_table(source, in_order=in_order)
    if isinstance(source, str | Path) and not table.num_rows:
        raise TableError(f"{source}: the table has columns ({', '.join(table.column_names)}) and no rows")
    return table, place_of(source, name)


def _require_distinct(table: pa.Table, where: str) -> pa.Table:
    names = table.column_names
    if len(set(names)) < len(names):
        raise TableError(f"{where}: there are several columns {max(names, key=names.count)!r}")
    return table


@contextmanager
def explaining(path: Path) -> Iterator[None]:
    """Raise a ``TableError`` with row and column if Arrow fails."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as exc:
        try:
            fault = _fault_of_text(path) if table_kind(path) == ".csv" else None
        except (OSError, EOFError, zlib.error, text_csv.Error):
            fault = None
        raise TableError(f"{path}: {fault or exc}") from exc


@contextmanager
def _csv_rows(path: Path) -> Iterator[tuple[Any, list[str]]]:
    """Reader of a CSV file's rows, and its header."""
    with (
        _open_bytes(path) as raw,
        TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
    ):
        rows = text_csv.reader(text)
        yield rows, next(rows, [])


def _fault_of_text(path: Path) -> str | None:
    """First row of a CSV file that is not UTF-8, or of another length."""
    with _csv_rows(path) as (rows, header):
        for cells in rows:
            # as which "surrogateescape" reads bytes that are not UTF-8
            broken = [place for place, cell in enumerate(cells) if re.search("[\udc80-\udcff]", cell)]
            if broken:
                column = header[broken[0]] if broken[0] < len(header) else f"number {broken[0] + 1}"
                shown = cells[broken[0]].encode("utf-8", errors="surrogateescape").decode("utf-8", errors="replace")
                return f"row {rows.line_num}, column {column}: {shown!r} is not UTF-8: {_SAVE_AS_UTF_8}"
            if cells and len(cells) != len(header):
                shown = ",".join(cells)[:80]
                return f"row {rows.line_num}: {len(cells)} cells, and the header has {len(header)}: {shown!r}"
    return None


def _of_columns(source: Mapping[str, Any]) -> pa.Table:
    columns = list[Any]()
    for name, values in source.items():
        try:
            columns.append(pa.array(values) if isinstance(values, list | tuple | np.ndarray) else values)
        except (pa.ArrowException, TypeError, ValueError) as exc:
            raise ValueError(f"column {name!r}: {exc}") from exc
    return pa.table(dict(zip(source, columns, strict=True)))


#: Rows read at once, and about how long a line is.
_STREAMED_ROWS, _LINE_BYTES = 8192, 200


def read_batches(path: Path, rows: int, groups: Iterable[int] | None = None) -> Iterator[pa.Table]:
    """Read a CSV or Parquet file, or row groups of it, in batches."""
    _check_file(path)
    with explaining(path):
        for batch in _batches(path, rows, None, groups):
            yield _require_distinct(pa.Table.from_batches([batch]), str(path))


def _batches(
    path: Path, rows: int, columns: Sequence[str] | None, groups: Iterable[int] | None = None
) -> Iterator[pa.RecordBatch]:
    """Batches of some or all columns; some columns of CSV as text."""
    if table_kind(path) == ".parquet":
        with parquet.ParquetFile(path) as file:
            # one group after the other: `iter_batches` keeps all it is asked for
            for group in range(file.num_row_groups) if groups is None else groups:
                yield from file.iter_batches(rows, row_groups=[group], columns=columns)
        return
    # Arrow cuts at whole rows
    options = csv.ReadOptions(block_size=_LINE_BYTES * rows)
    with csv.open_csv(path, read_options=options, convert_options=_convert(columns)) as reader:
        yield from reader


def require_rows(path: Path) -> None:
    """Refuse a file that has a header and no rows, of which the first batch is read."""
    if not any(table.num_rows for table in islice(read_batches(path, _STREAMED_ROWS), 1)):
        raise TableError(f"{path}: the table has columns ({', '.join(_names_in(path))}) and no rows")


def _names_in(path: Path) -> list[str]:
    if table_kind(path) == ".parquet":
        return list(parquet.read_schema(path).names)
    with csv.open_csv(path, convert_options=_convert()) as reader:
        return list(_require_distinct(reader.schema.empty_table(), str(path)).column_names)


def count_rows(path: Path) -> int:
    """Rows of a CSV or Parquet file, which is read as a stream."""
    _check_file(path)
    with explaining(path):
        if table_kind(path) == ".parquet":
            return int(parquet.read_metadata(path).num_rows)
        return sum(batch.num_rows for batch in _batches(path, _STREAMED_ROWS, _names_in(path)[:1]))


def read_rows(
    path: Path, required: Sequence[str], optional: Sequence[str], first: int, stop: int, rows: int
) -> Iterator[tuple[int, pa.Table]]:
    """Read some columns and rows of a file in bounded memory."""
    _check_file(path)
    with explaining(path):
        names = _names_in(path)
        for name in required:
            if name not in names:
                raise TableError(f"{path}: column {name!r} is missing; there are {', '.join(names)}")
        columns = [name for name in (*required, *optional) if name in names]
        held, at = None, first
        for table in _from_row(path, columns, first):
            held = (table if held is None else pa.concat_tables([held, table])).slice(0, stop - at)
            while at < stop and held.num_rows >= min(rows, stop - at):
                count = min(rows, stop - at)
                yield at, held.slice(0, count)
                held, at = held.slice(count), at + count
            if at >= stop:
                return


def _from_row(path: Path, columns: Sequence[str], first: int) -> Iterator[pa.Table]:
    """Columns from a row on, skipping Parquet row groups."""
    groups, left = None, first
    if table_kind(path) == ".parquet":
        metadata = parquet.read_metadata(path)
        ends = np.cumsum([0, *(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))])
        skipped = int(np.searchsorted(ends[1:], first, side="right"))
        groups, left = range(skipped, metadata.num_row_groups), first - int(ends[skipped])
    for batch in _batches(path, _STREAMED_ROWS, columns, groups):
        if batch.num_rows > left:
            yield pa.Table.from_batches([batch.slice(left)])
        left = max(0, left - batch.num_rows)


def _convert(columns: Sequence[str] | None = None) -> csv.ConvertOptions:
    """Read identifiers as text; selected columns all as text."""
    texts = _TEXT_COLUMNS if columns is None else columns
    return csv.ConvertOptions(
        column_types=dict.fromkeys(texts, pa.string()),
        include_columns=columns,
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _check_file(path: Path) -> None:
    if table_kind(path) not in {".csv", ".parquet"}:
        raise TableError(f"{path}: the extension must be .csv, .csv.gz or .parquet")
    if not path.is_file():
        raise TableError(f"{path}: no such file")
    if table_kind(path) == ".csv":
        _check_header(path)


def _check_header(path: Path) -> None:
    """Refuse a header that is not UTF-8, or without commas."""
    try:
        with _open_bytes(path) as file:
            start = file.readline(_LONGEST_HEADER)
            rest = file.read(1)
    except (OSError, EOFError, zlib.error) as exc:
        raise TableError(f"{path}: cannot be decompressed: {exc}") from exc
    if start.startswith(_GZIP):
        raise TableError(f"{path}: the file is compressed: name it {path.name}.gz")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in start:
        raise TableError(f"{path}: row 1: the file is UTF-16: {_SAVE_AS_UTF_8}")
    if not start.strip():
        raise TableError(f"{path}: row 1: there is no header with names of columns")
    try:
        header = start.decode("utf-8")
    except UnicodeDecodeError as exc:
        column = start[: exc.start].count(b",") + 1
        raise TableError(f"{path}: row 1, column number {column}: a name is not UTF-8: {_SAVE_AS_UTF_8}") from exc
    other = max(_DELIMITERS, key=header.count)
    if "," not in header and header.count(other):
        raise TableError(
            f"{path}: row 1: columns are separated by {_DELIMITERS[other]} ({other!r}), and commas are expected: save "
            "the file with commas between columns and points in numbers ('CSV UTF-8 (comma delimited)'), or as Parquet"
        )
    # Arrow cannot read a line that nothing ends
    if not rest and len(start) < _LONGEST_HEADER and "\n" not in header and "\r" not in header:
        names = header.removeprefix("\ufeff").strip()
        raise TableError(f"{path}: the table has columns ({', '.join(names.split(','))}) and no rows")


def empty_where_nan(values: FloatArray) -> FloatArray:
    """Numbers as a column whose cells are empty where they are NaN."""
    masked: FloatArray = np.ma.masked_invalid(values)
    return masked


def write_table(columns: Mapping[str, Column], path: Path) -> None:
    """Write columns as CSV or Parquet, by extension.

    Raises:
        TableError: another extension.
    """
    table = pa.table(dict(columns))
    if path.suffix.lower() == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix.lower() == ".csv":
        csv.write_csv(table, path)
    else:
        raise TableError(f"{path}: the extension must be .csv or .parquet")


def fail_at(
    where: Where, bad: npt.ArrayLike, column: str, problem: str, values: Sequence[Any] | FloatArray, hint: str = ""
) -> None:
    """Raise a ``TableError`` naming the first true row of ``bad``, if there is one."""
    rows = np.flatnonzero(bad)
    if rows.size:
        place = where if isinstance(where, Place) else Place.of_file(where)
        value, position = values[int(rows[0])], int(rows[0] if place.rows is None else place.rows[rows[0]])
        value, line = value.item() if isinstance(value, np.generic) else value, place.first + position
        cells: dict[str, str] = {}
        if place.file is not None and place.file.is_file():
            line, cells = _written(place.file, position)
        cell_text = _shown(value if value is not None or not cells else cells.get(column, ""))
        raise TableError(f"{place}: row {line}, column {column}: {problem} {cell_text}, {rows.size} in all{hint}")


def _shown(value: Any) -> str:
    """A value for messages; None may be NaN or empty."""
    if value is None:
        return "NaN or nothing"
    if value == "":
        return "an empty cell"
    if isinstance(value, float):
        return "NaN" if np.isnan(value) else repr(value)
    return "NaN" if str(value).strip().lower() in {"nan", "-nan"} else repr(value)


def _written(file: Path, position: int) -> tuple[int, dict[str, str]]:
    """Line number and cells of a row in a CSV file."""
    with _csv_rows(file) as (rows, header):
        # Arrow leaves out lines without any character
        filled = ((rows.line_num, cells) for cells in rows if cells)
        line, cells = next(islice(filled, position, None), (position + 2, []))
    return line, dict(zip(header, cells, strict=False))


def text_column(table: pa.Table, name: str, where: Where) -> list[str]:
    """Values of a required text column, none empty."""
    if name not in table.column_names:
        raise TableError(f"{where}: column {name!r} is missing; there are {', '.join(table.column_names)}")
    values: list[str] = text_cells(table, name, where)
    if not all(values):
        fail_at(where, [not value for value in values], name, "the value is missing:", [v or None for v in values])
    return values


def text_cells(table: pa.Table, name: str, where: Where) -> list[Any]:
    """Values of a column as text, None in empty cells."""
    column = table.column(name)
    try:
        return list(column.cast(pa.string()).to_pylist())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        values = column.to_pylist()
        problem = f"a cell must be one text or number, and the column is of {column.type}:"
        fail_at(where, [value is not None for value in values], name, problem, [str(value)[:60] for value in values])
        return [None for _ in values]


def number_column(table: pa.Table, name: str, where: Where) -> FloatArray:
    """Values of a numeric column as float64, none missing."""
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values = text_cells(table, name, where)
        fail_at(where, np.array([not is_number(v) for v in values], dtype=bool), name, "not a number:", values)
        return np.array([float(v or "nan") for v in values], dtype=np.float64)
    numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    fail_at(where, ~np.isfinite(numbers), name, "not a finite number:", column.to_pylist())
    return numbers


def is_number(value: Any) -> bool:
    """Whether a cell reads as a finite number."""
    try:
        return bool(np.isfinite(float(value)))
    except (TypeError, ValueError):
        return False


def find_repeats(values: Sequence[Any]) -> npt.NDArray[np.bool_]:
    """Mark the values that occurred before."""
    count = len(values)
    first = dict(zip(reversed(values), range(count - 1, -1, -1), strict=True))
    repeated: npt.NDArray[np.bool_] = np.array(list(map(first.__getitem__, values)), dtype=np.int64) != np.arange(count)
    return repeated


def positions(values: Sequence[str], names: Sequence[str]) -> IntArray:
    """Position (M,) of each value among distinct names, −1 where it is none of them.

    >>> positions(["b", "a", "c"], ["a", "b"]).tolist()
    [1, 0, -1]
    """
    position = dict(zip(names, range(len(names)), strict=True))
    return np.array(list(map(position.get, values, repeat(-1))), dtype=np.int64)
