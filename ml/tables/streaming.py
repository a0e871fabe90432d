"""Streaming evaluation of tables larger than memory, and their sorting by ``case_id`` with DuckDB.

Tables sorted by ``case_id`` are merged batch by batch into sums over groups of
patients. Without patients values equal those of the evaluation in memory; with
them the pair form of CL pairs no two cases of one group.

A span is a range of predictions with the labels after the last case of the span
before it; the last span has all that follow.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from ml.annotations import Annotations
from ml.metrics.accumulator import GroupSums
from ml.metrics.evaluation import MetricsDocument, evaluate_groups
from ml.metrics.sums import Debias
from ml.tables.evaluate import EvaluationOptions, align_tables, renormalised_note, trained_cells, unknown_note
from ml.tables.files import Predictions, check_labels, check_predictions, predicted_classes
from ml.tables.reading import Place, TableError, count_rows, explaining, read_batches, read_rows, table_kind, text_cells
from ml.util.arrays import FloatArray
from ml.util.files import sync_file, sync_folder

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Span:
    """A part of sorted tables."""

    first: int
    stop: int | None
    after: str
    until: str | None


#: All of the tables.
WHOLE = Span(0, None, "", None)


def span_of(predictions: Path, shard: int, n_shards: int) -> Span:
    """One n-th of the tables, numbered from 1."""
    rows = count_rows(predictions)
    if rows < n_shards:
        raise TableError(f"{predictions}: has {rows:,} cases, which cannot be divided into {n_shards:,} shards")
    first, stop = (rows * number // n_shards for number in (shard - 1, shard))
    after = _case(predictions, first - 1) if first else ""
    return Span(first, stop, after, None if shard == n_shards else _case(predictions, stop - 1))


def _case(predictions: Path, row: int) -> str:
    (row_part,) = (part for _, part in read_rows(predictions, ["case_id"], [], row, row + 1, 1))
    return str(row_part.column("case_id")[0].as_py())


def _predictions_of(span: Span, path: Path, rows: int) -> Iterator[pa.Table]:
    if span.stop is None:
        yield from read_batches(path, rows)
        return
    names = next(read_batches(path, 1)).column_names
    yield from (part for _, part in read_rows(path, names, [], span.first, span.stop, rows))


def labels_of(span: Span, path: Path, rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Labels of a part in batches, by row groups of Parquet, with the first row's position."""
    whole = not span.after and span.until is None
    groups, at = None if whole or table_kind(path) != ".parquet" else _row_groups(span, path), 0
    if groups:
        metadata = parquet.read_metadata(path)
        at = sum(metadata.row_group(number).num_rows for number in range(groups[0]))
    for table in read_batches(path, rows, groups):
        start, at = at, at + table.num_rows
        if whole or "case_id" not in table.column_names:
            yield start, table
            continue
        case = pc.cast(table.column("case_id"), pa.string())
        here = pc.greater(case, span.after)
        if span.until is not None:
            here = pc.and_(here, pc.less_equal(case, span.until))
        # a cell without a case is a mistake, which every part sees
        here = pc.fill_null(here, True)
        yield start + max(0, pc.index(here, True).as_py()), table.filter(here)


def _row_groups(span: Span, path: Path) -> list[int]:
    with explaining(path):
        metadata = parquet.read_metadata(path)
    names, groups, before = metadata.schema.names, [], ""
    for number in range(metadata.num_row_groups):
        statistics = (
            metadata.row_group(number).column(names.index("case_id")).statistics if "case_id" in names else None
        )
        low, high = None, None
        if statistics is not None and statistics.has_min_max and isinstance(statistics.min, str):
            low, high = statistics.min, statistics.max
            if low < before:
                raise TableError(f"{path}: row group {number} begins with {low!r} after {before!r}: sort it by case_id")
            before = high
        if low is None or high is None or (high > span.after and (span.until is None or low <= span.until)):
            groups.append(number)
    return groups


class _SortedLabels:
    """LABELS in batches, handed out up to a given case."""

    def __init__(self, path: Path, classes: list[str], span: Span, rows: int) -> None:
        self.path, self.classes = path, classes
        self.batches = labels_of(span, path, rows)
        self.held: pa.Table | None = None
        self.given = 0
        self.last = span.after

    def up_to(self, case: str | None) -> tuple[Annotations, Place]:
        """Labels up to this case, or all that are left, and their place."""
        while self.held is None or case is None or self.last <= case:
            start, batch = next(self.batches, (0, None))
            if batch is None:
                break
            if batch.num_rows:
                self.given = start - (0 if self.held is None else self.held.num_rows)
            ids = _sorted_ids(batch, self.path, self.last, strictly=False)
            self.last = ids[-1] if ids else self.last
            self.held = batch if self.held is None else pa.concat_tables([self.held, batch])
        if self.held is None or self.held.num_rows == 0:
            none = Annotations.of_matrix(np.empty((0, 0), dtype=np.int64), len(self.classes))
            return none, Place.of_file(self.path)
        ids = self.held.column("case_id").cast(pa.string()).to_pylist()
        count = len(ids) if case is None else int(np.searchsorted(np.array(ids, dtype=object), case, side="right"))
        taken, self.held = self.held.slice(0, count), self.held.slice(count)
        place, self.given = _part(self.path, self.given, count), self.given + count
        return check_labels(taken, place, self.classes), place


def _part(path: Path, start: int, count: int) -> Place:
    """Place of some rows of a file."""
    return Place.of_file(path).part(np.arange(start, start + count))


def _sorted_ids(table: pa.Table, path: Path, last: str, *, strictly: bool) -> list[str]:
    """Identifiers of a batch, checked for order."""
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
) -> Iterator[tuple[Predictions, int, Annotations, Place]]:
    labels: _SortedLabels | None = None
    last, done = span.after, span.first
    for batch in _predictions_of(span, predictions_path, rows):
        predicted_classes(batch, predictions_path)
        ids = _sorted_ids(batch, predictions_path, last, strictly=True)
        if not ids:
            continue
        last = ids[-1]
        place = _part(predictions_path, done, len(ids))
        predictions = check_predictions(batch, place, renormalise=renormalise)
        trained, n_unknown = trained_cells(predictions, place)
        if trained:
            raise TableError(
                f"{predictions_path}: column trained_on: the release was trained on some of the cells; take their "
                "rows and labels out first, or leave --stream out"
            )
        done += len(ids)
        labels = labels or _SortedLabels(labels_path, predictions.classes, span, rows)
        yield predictions, n_unknown, *labels.up_to(last)
    left = [] if labels is None else labels.up_to(None)[0].labelled_cases()
    if left:
        raise TableError(f"{labels_path}: case {left[0]!r} has a label but no prediction")


@dataclass(frozen=True)
class Streaming:
    """Sources of a stream of sorted tables."""

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
        """Sums over patients, of order 1 and of order 2."""
        sums: list[GroupSums] = []
        options = self.options
        joined = _joined(self.labels, self.predictions, span, batch_rows, renormalised is not None)
        for predictions, n_unknown, labels, place in joined:
            if renormalised is not None and predictions.renormalised is not None:
                renormalised.append(predictions.renormalised)
            if not sums:
                by_patient = options.cluster is not None
                sums = [GroupSums(len(predictions.classes), options.n_bins, by_patient=by_patient) for _ in range(2)]
            cases = align_tables(labels, place, predictions, options, drop=False)
            units = np.array(predictions.case_ids) if cases.cluster is None else cases.cluster
            weights2 = cases.weights if options.weights2 is None else cases.weights2
            first = cases.counts if cases.first_counts is None else cases.first_counts
            given = (predictions.class_probs, predictions.disagreement_probs)
            sums[0].add(first, *given, cases.weights, units=units)
            sums[1].add(cases.counts, *given, weights2, units=units)
            sums[0].n_unknown += n_unknown
            observer(sums[0].n_cases)
        if not sums:
            raise TableError(f"{self.predictions}: contains no predictions")
        return sums[0], sums[1]


def evaluate_stream(
    labels: Path,
    predictions: Path,
    options: EvaluationOptions | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    observer: Callable[[int], None] = lambda cases: None,
) -> MetricsDocument:
    """Evaluate sorted tables in one pass, in bounded memory."""
    # Standard errors leave out each of 400 groups of patients, or of cases without patients.
    options = options or EvaluationOptions()
    missed: list[FloatArray] | None = [] if options.renormalise else None
    stream = Streaming(labels, predictions, options)
    first, second = stream.sums(WHOLE, observer, batch_rows=batch_rows, renormalised=missed)
    weighted = options.weights is not None, options.weights2 is not None
    document = document_of_sums(first, second, options.debias, weighted, str(predictions))
    if missed:
        note = renormalised_note(np.concatenate(missed), first.n_cases, predictions)
        document["warnings"] = [note, *document["warnings"]]
    return document


def document_of_sums(
    first: GroupSums, second: GroupSums, debias: Debias, weighted: tuple[bool, bool], where: str = "PREDICTIONS"
) -> MetricsDocument:
    """The document that follows from sums, those of order 1 first."""
    evaluation = evaluate_groups(first, second, debias, weighted)
    return {
        "n_cases": first.n_cases,
        "n_labels": second.n_labels,
        "n_classes": first.n_classes,
        "n_bins": first.n_bins,
        "debias": debias,
        "metrics": evaluation.metrics.to_dict(),
        "warnings": [*unknown_note(first.n_unknown, first.n_cases, where), *evaluation.warnings],
    }


_Settings = dict[str, str | bool | int | float | list[str]]

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
    batches = read_batches(table, BATCH_ROWS)
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
