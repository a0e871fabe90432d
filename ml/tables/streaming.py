"""Streaming evaluation of tables larger than memory.

Both tables must be sorted by ``case_id`` (ascending, as ``sort`` under LC_ALL=C does): they are then merged batch by
batch into sums over groups of patients, and a case that stands twice or in the wrong place is seen. Without patients
values equal those of the evaluation in memory; with them the pair form of CL pairs no two cases of one group.

A span is a range of predictions with its labels: those after the last case of the span before it, up to its own last
case; the last span has all that follow. So a label without a prediction is in some span, and nothing is read twice but
the edges of Parquet's row groups.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ml.metrics.accumulator import GroupSums
from ml.metrics.evaluation import MetricsDocument, evaluate_groups
from ml.metrics.sums import Debias
from ml.tables.files import (
    Labels,
    Place,
    Predictions,
    TableError,
    align,
    case_column,
    check_labels,
    check_predictions,
    probability_columns,
    text_cells,
)
from ml.tables.matching import (
    EvaluationOptions,
    aligned_counts,
    aligned_first_counts,
    aligned_weights,
    renormalised_warning,
)
from ml.tables.reading import count_rows, grouped_batches, read_batches, read_rows, table_kind
from ml.tables.trained_cells import TRAINED_ON
from ml.util.arrays import FloatArray, IntArray

BATCH_ROWS = 50_000


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


#: All of the tables.
WHOLE = Span(0, None, "", None)


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


class _SortedLabels:
    """LABELS in batches, handed out up to a given case."""

    def __init__(self, path: Path, classes: list[str], span: Span, rows: int) -> None:
        self.path, self.classes = path, classes
        self.batches = labels_of(span, path, rows)
        self.held: pa.Table | None = None
        self.given = 0
        self.last = span.after

    def up_to(self, case: str | None) -> Labels | None:
        """Labels of all cases up to this one, or of all that are left; None where there is none."""
        while self.held is None or case is None or self.last <= case:
            batch = next(self.batches, None)
            if batch is None:
                break
            ids = _sorted_ids(batch, self.path, self.last, strictly=False)
            self.last = ids[-1] if ids else self.last
            self.held = batch if self.held is None else pa.concat_tables([self.held, batch])
        if self.held is None or self.held.num_rows == 0:
            return None
        ids = self.held.column("case_id").cast(pa.string()).to_pylist()
        count = len(ids) if case is None else int(np.searchsorted(np.array(ids, dtype=object), case, side="right"))
        taken, self.held = self.held.slice(0, count), self.held.slice(count)
        place, self.given = _part(self.path, self.given, count), self.given + count
        return check_labels(taken, place, self.classes) if count else None


def _part(path: Path, start: int, count: int) -> Place:
    """Name some rows of a file for messages, by their positions in the whole file."""
    return Place.of_file(path).part(np.arange(start, start + count))


def _sorted_ids(table: pa.Table, path: Path, last: str, *, strictly: bool) -> list[str]:
    """Identifiers of a batch, checked to continue in order from the last one."""
    if "case_id" not in table.column_names:
        raise TableError(f"{path}: column 'case_id' is missing; there are {', '.join(table.column_names)}")
    if "finding" in table.column_names:
        raise TableError(f"{path}: has several findings, and --stream evaluates one: leave it out")
    ids = text_cells(table, "case_id", path)
    before = last
    for case in ids:
        if not case:
            raise TableError(f"{path}: column case_id: a value is missing after {before!r}")
        if case < before or (strictly and case == before):
            wrong = "stands twice" if case == before else f"stands after {before!r}: sort the table by case_id"
            raise TableError(f"{path}: column case_id: {case!r} {wrong}")
        before = case
    return [str(case) for case in ids]


def _joined(
    labels_path: Path, predictions_path: Path, span: Span, rows: int, renormalise: bool
) -> Iterator[tuple[Predictions, Labels | None]]:
    labels: _SortedLabels | None = None
    last, done = span.after, span.first
    for batch in predictions_of(span, predictions_path, rows):
        probability_columns(batch, predictions_path)
        ids = _sorted_ids(batch, predictions_path, last, strictly=True)
        if not ids:
            continue
        last = ids[-1]
        place = _part(predictions_path, done, len(ids))
        predictions = check_predictions(batch, place, renormalise=renormalise)
        if "yes" in predictions.columns.get(TRAINED_ON, ()):
            raise TableError(
                f"{predictions_path}: column {TRAINED_ON}: the release was trained on some of the cells; take their "
                "rows and labels out first, or leave --stream out"
            )
        done += len(ids)
        labels = labels or _SortedLabels(labels_path, predictions.classes, span, rows)
        yield predictions, labels.up_to(last)
    left = labels.up_to(None) if labels is not None else None
    if left is not None:
        raise TableError(f"{labels_path}: case {left.case_ids[0]!r} has a label but no prediction")


@dataclass(frozen=True)
class Streaming:
    """Sources of a stream of sorted tables.

    Attributes:
        labels: LABELS, long or wide, sorted by case_id.
        predictions: PREDICTIONS, sorted by case_id.
        options: of the evaluation; ``n_bins`` and the columns count here.
    """

    labels: Path
    predictions: Path
    options: EvaluationOptions = field(default_factory=EvaluationOptions)

    def sums(
        self,
        span: Span,
        observer: Callable[[int], None] = lambda cases: None,
        *,
        batch_rows: int = BATCH_ROWS,
        renormalised: list[FloatArray] | None = None,
    ) -> tuple[GroupSums, GroupSums]:
        """Sums over groups of patients, by the weights (and the labels) of order 1 and of order 2.

        Args:
            span: part of the tables.
            observer: called with the cases done.
            batch_rows: rows of a batch.
            renormalised: takes the distances from 1 of the sums of rows that rounding keeps from 1, which are divided
                by them; None refuses such rows.

        Raises:
            TableError: a table cannot be used or is not sorted.
        """
        sums: list[GroupSums] = []
        options = self.options
        joined = _joined(self.labels, self.predictions, span, batch_rows, renormalised is not None)
        for predictions, labels in joined:
            if renormalised is not None and predictions.renormalised is not None:
                renormalised.append(predictions.renormalised)
            if not sums:
                by_patient = options.cluster is not None
                sums = [GroupSums(len(predictions.classes), options.n_bins, by_patient=by_patient) for _ in range(2)]
            self._add(sums, predictions, labels)
            observer(sums[0].n_cases)
        if not sums:
            raise TableError(f"{self.predictions}: contains no predictions")
        return sums[0], sums[1]

    def _add(self, sums: list[GroupSums], predictions: Predictions, labels: Labels | None) -> None:
        options, counts = self.options, np.zeros(predictions.class_probs.shape, dtype=np.int64)
        units = np.array(predictions.case_ids)
        first_counts: IntArray | None = None
        both: list[FloatArray | None] = [None, None]
        if labels is not None:
            rows = align(labels, predictions, self.labels)
            counts = aligned_counts(labels, rows)
            first_counts = aligned_first_counts(labels, rows, self.labels)
            columns = (options.weights, options.weights2 or options.weights)
            both = [aligned_weights(labels, name, rows, self.labels) for name in columns]
            units = units if options.cluster is None else case_column(labels, options.cluster, self.labels)[rows]
        used = (counts if first_counts is None else first_counts, counts)
        for part, weight, labelled in zip(sums, both, used, strict=True):
            part.add(labelled, predictions.class_probs, predictions.disagreement_probs, weight, units=units)


def evaluate_stream(
    labels: Path,
    predictions: Path,
    options: EvaluationOptions | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    observer: Callable[[int], None] = lambda cases: None,
) -> MetricsDocument:
    """Evaluate sorted tables in one pass, in memory that does not grow with their length.

    Args:
        labels: LABELS, long or wide, sorted by case_id.
        predictions: PREDICTIONS, sorted by case_id.
        options: of the evaluation.
        batch_rows: rows of a batch.
        observer: called with the cases done.

    Returns:
        The document of ``ml.metrics.evaluate`` without reliability tables and intervals for new readers; standard
        errors by leaving out each of 400 groups of patients, or of cases where patients are not named.

    Raises:
        TableError: a table cannot be used or is not sorted.
    """
    options = options or EvaluationOptions()
    missed: list[FloatArray] | None = [] if options.renormalise else None
    stream = Streaming(labels, predictions, options)
    first, second = stream.sums(WHOLE, observer, batch_rows=batch_rows, renormalised=missed)
    document = document_of_sums(first, second, options.debias)
    if missed:
        warning = renormalised_warning(np.concatenate(missed), first.n_cases, predictions)
        document["warnings"] = [warning, *document["warnings"]]
    return document


def document_of_sums(first: GroupSums, second: GroupSums, debias: Debias) -> MetricsDocument:
    """The document that follows from sums, those of order 1 first."""
    evaluation = evaluate_groups(first, second, debias)
    return {
        "n_cases": first.n_cases,
        "n_labels": second.n_labels,
        "n_classes": first.n_classes,
        "n_bins": first.n_bins,
        "debias": debias,
        "metrics": {name: estimate.to_dict() for name, estimate in evaluation.metrics.items()},
        "warnings": list(evaluation.warnings),
    }
