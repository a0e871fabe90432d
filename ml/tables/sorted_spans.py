"""Spans of tables sorted by ``case_id``: a range of predictions with its labels.

The labels of a part are those after the last case of the part before it, up to its own last case; the last part has
all that follow. So a label without a prediction is in some part, and nothing is read twice but the edges of Parquet's
row groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ml.tables.reading import TableError, count_rows, grouped_batches, read_batches, read_rows, table_kind


@dataclass(frozen=True)
class Span:
    """A part of sorted tables.

    Attributes:
        first: number of its first prediction, from 0.
        stop: number after that of its last one; None for all that follow.
        after: the case before its first one, "" where there is none.
        until: its last case; None where all labels that follow are its own.
    """

    first: int
    stop: int | None
    after: str
    until: str | None


def whole_span(predictions: Path) -> Span:
    """All of the tables."""
    return Span(0, None, "", None)


def span_of(predictions: Path, shard: int, n_shards: int) -> Span:
    """One n-th of the tables.

    Args:
        predictions: sorted PREDICTIONS.
        shard: number of the part, from 1.
        n_shards: number of parts.

    Raises:
        TableError: there are fewer cases than parts.
    """
    rows = count_rows(predictions)
    if rows < n_shards:
        raise TableError(f"{predictions}: has {rows:,} cases, which cannot be divided into {n_shards:,} shards")
    first, stop = (rows * number // n_shards for number in (shard - 1, shard))
    return Span(
        first,
        stop,
        _case(predictions, first - 1) if first else "",
        None if shard == n_shards else _case(predictions, stop - 1),
    )


def _case(predictions: Path, row: int) -> str:
    """The case of one row."""
    (row_part,) = (part for _, part in read_rows(predictions, ["case_id"], [], row, row + 1, 1))
    return str(row_part.column("case_id")[0].as_py())


def predictions_of(span: Span, path: Path, rows: int) -> Iterator[pa.Table]:
    """Predictions of a part in batches.

    Raises:
        TableError: the file cannot be read.
    """
    if span.stop is None:
        yield from read_batches(path, rows)
        return
    names = next(read_batches(path, 1)).column_names
    yield from (part for _, part in read_rows(path, names, [], span.first, span.stop, rows))


def labels_of(span: Span, path: Path, rows: int) -> Iterator[pa.Table]:
    """Labels of a part in batches; those of other parts are left out, and not read where Parquet says where they are.

    Raises:
        TableError: the file cannot be read, or its row groups are not sorted.
    """
    if not span.after and span.until is None:
        yield from read_batches(path, rows)
        return
    for table in _row_groups(span, path, rows) if table_kind(path) == ".parquet" else read_batches(path, rows):
        yield _inside(span, table)


def _inside(span: Span, table: pa.Table) -> pa.Table:
    if "case_id" not in table.column_names:
        return table  # whoever reads it says so
    case = pc.cast(table.column("case_id"), pa.string())
    here = pc.greater(case, span.after)
    if span.until is not None:
        here = pc.and_(here, pc.less_equal(case, span.until))
    # a cell without a case is somebody's mistake, which every part sees
    return table.filter(pc.fill_null(here, True))


def _row_groups(span: Span, path: Path, rows: int) -> Iterator[pa.Table]:
    try:
        with parquet.ParquetFile(path) as file:
            groups = [
                number
                for number, (low, high) in enumerate(_ranges(path, file))
                if low is None or (high > span.after and (span.until is None or low <= span.until))
            ]
            yield from grouped_batches(file, rows, groups)
    except (pa.ArrowInvalid, OSError) as exc:
        raise TableError(f"{path}: {exc}") from exc


def _ranges(path: Path, file: parquet.ParquetFile) -> list[tuple[Any, Any]]:
    """First and last case of each row group, None where the file does not say."""
    names = file.schema_arrow.names
    ranges: list[tuple[Any, Any]] = []
    for number in range(file.num_row_groups):
        statistics = (
            file.metadata.row_group(number).column(names.index("case_id")).statistics if "case_id" in names else None
        )
        has_range = statistics is not None and statistics.has_min_max
        low, high = (statistics.min, statistics.max) if statistics is not None and has_range else (None, None)
        ranges.append((low, high) if isinstance(low, str) else (None, None))
    before = ""
    for number, (low, high) in enumerate(ranges):
        if low is not None and low < before:
            raise TableError(f"{path}: row group {number} begins with {low!r} after {before!r}: sort it by case_id")
        before = before if high is None else high
    return ranges
