"""Matching of LABELS and PREDICTIONS by case and, where both tables have one, by finding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ml.annotations import Annotations
from ml.metrics.reader_variance import Readings
from ml.metrics.sums import Debias
from ml.tables.files import (
    Labels,
    Place,
    Predictions,
    TableError,
    TableSource,
    Where,
    align,
    case_column,
    check_labels,
    check_predictions,
    classes_of_labels,
    fail_at,
    place_of,
    probability_columns,
    read_table,
    rows_of_labels,
    text_column,
    without_prediction,
)
from ml.tables.reading import refuse_empty_file
from ml.tables.trained_cells import without_trained_cells
from ml.util.arrays import FloatArray, IntArray, require_whole

Level = Literal["nominal", "ordinal"]
#: What is done with a case that has a label and no prediction.
Missing = Literal["error", "drop"]
#: Column of LABELS with the number of the planned read that a label answers.
PLANNED_READ = "planned_read"
#: Names in a warning; the document lists all.
_NAMED = 5


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation of LABELS and PREDICTIONS, from the command line to the engine.

    Attributes:
        n_bins: equal-width bins of [0, 1].
        debias: form of CL.
        weights: column of LABELS with inverse probabilities of having a label.
        weights2: the same of having two labels.
        cluster: column of LABELS that names the patient.
        missing: ``drop`` leaves out labels without a prediction and names them; ``error`` refuses them.
        binary: one column of probabilities stands for two classes.
        level: ``ordinal`` where the classes, in the order of the columns of PREDICTIONS, are grades.
        renormalise: rows whose sum rounding keeps from 1, by at most 0.001, are divided by that sum.
    """

    n_bins: int = 15
    debias: Debias = "pair"
    weights: str | None = None
    weights2: str | None = None
    cluster: str | None = None
    missing: Missing = "error"
    binary: bool = False
    level: Level = "nominal"
    renormalise: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no column or no choice.

        Raises:
            TableError: a number of bins below 1, a column that is not named, or an unknown word.
        """
        try:
            require_whole(self.n_bins, "n_bins", 1)
        except ValueError as exc:
            raise TableError(str(exc)) from exc
        for name in ("weights", "weights2", "cluster"):
            column = getattr(self, name)
            if column is not None and not isinstance(column, str):
                raise TableError(f"{name} must name a column of LABELS, got {type(column).__name__}")
        for name, allowed in (("missing", ("error", "drop")), ("level", ("nominal", "ordinal"))):
            if getattr(self, name) not in allowed:
                raise TableError(f"{name} must be {' or '.join(allowed)}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class BaselinePredictions:
    """Baseline predictions of the same cases.

    Attributes:
        rows: (M,) positions, among the cases of the first predictions, of those that both predict.
        class_probs: (M, K), classes in the order of the first.
        disagreement_probs: (M,).
        left_out: cases with a label that it does not predict.
    """

    rows: npt.NDArray[np.intp]
    class_probs: FloatArray
    disagreement_probs: FloatArray
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Cases:
    """Predictions with the labels of each case, of one finding.

    Attributes:
        finding: its name; None in tables without such a column.
        labels: LABELS as they are, with those that are left out.
        place: what messages call LABELS.
        predictions: N cases.
        counts: (N, K) label histograms of the predictions; zero rows without a label.
        first_counts: (N, K) those of the labels that answer the first planned reads; None where no column says which.
        weights: (N,) of order 1.
        weights2: (N,) of order 2.
        cluster: (N,) patients.
        left_out: cases with a label and no prediction.
        rival: other predictions to compare with.
        said: about rows that were renormalised, and about cells that a release was trained on, which are left out.
    """

    finding: str | None
    labels: Labels
    place: Place
    predictions: Predictions
    counts: IntArray
    first_counts: IntArray | None
    weights: FloatArray | None
    weights2: FloatArray | None
    cluster: npt.NDArray[Any] | None
    left_out: tuple[str, ...]
    rival: BaselinePredictions | None
    said: tuple[str, ...] = ()

    @cached_property
    def annotations(self) -> Annotations | None:
        """Labels of LABELS with their annotators, in the order of its cases; None in a wide table."""
        return annotations_of(self.labels) if self.labels.annotators else None

    @cached_property
    def readings(self) -> Readings | None:
        """Labels of the predicted cases, as metrics take them; None in a wide table."""
        annotations, labels = self.annotations, self.labels
        if annotations is None:
            return None
        row = {case: number for number, case in enumerate(self.predictions.case_ids)}
        place = np.array([row.get(case, -1) for case in labels.case_ids], dtype=np.int64)
        some = annotations.renumbered(place, len(row))
        if self.first_counts is None:
            return Readings(some.case, some.annotator, some.label)
        first = answers_to_first_reads(labels, self.place)[np.argsort(labels.rows, kind="stable")]
        return Readings(some.case, some.annotator, some.label, first[place[annotations.case] >= 0])

    def warnings(self) -> tuple[str, ...]:
        """Warnings about cases left out, by name."""
        if not self.left_out:
            return self.said
        return (*self.said, f"{format_case_names(self.left_out)} had a label and no prediction and was left out")


def format_case_names(cases: tuple[str, ...]) -> str:
    """Cases by number and name, the first ones where there are many."""
    names = ", ".join(repr(case) for case in cases[:_NAMED])
    more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    return f"{len(cases)} case{'' if len(cases) == 1 else 's'} ({names}{more})"


@dataclass(frozen=True)
class _Table:
    """A table, or the rows of one finding, and what messages call it."""

    table: pa.Table
    place: Place

    @classmethod
    def read(cls, source: TableSource, name: str, options: EvaluationOptions) -> "_Table":
        table = read_table(source, in_order=options.level == "ordinal")
        refuse_empty_file(table, source)
        return cls(table, place_of(source, name))

    def nothing(self) -> "_Table":
        """No row of it."""
        return _Table(self.table.slice(0, 0), self.place)


def match_tables(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions, against: TableSource | None = None
) -> list[Cases]:
    """Match LABELS and PREDICTIONS by case; one entry, or one per finding where both tables have such a column.

    Args:
        labels: LABELS, long or wide; a file or a table in memory.
        predictions: PREDICTIONS, the same.
        options: what is asked.
        against: other PREDICTIONS of the same cases.

    Raises:
        TableError: a table cannot be used, or they do not fit each other; the message names file, row and column.
    """
    first = [_Table.read(labels, "LABELS", options), _Table.read(predictions, "PREDICTIONS", options)]
    tables = [*first, *([] if against is None else [_Table.read(against, "PREDICTIONS of --against", options)])]
    having = [table for table in tables if "finding" in table.table.column_names]
    if not having:
        return [_match(None, tables, options)]
    for table in tables:
        if "finding" not in table.table.column_names:
            raise TableError(f"{having[0].place} has a column 'finding' and {table.place} has none: give it to both")
    parts = [{name: _Table(*part) for name, part in by_finding(table.table, table.place).items()} for table in tables]
    stray = [name for name in parts[0] if name not in parts[1]]
    if stray:
        raise TableError(f"{tables[0].place}: finding {stray[0]!r} has labels and no prediction, {len(stray)} in all")
    return [
        _match(name, [part.get(name) or table.nothing() for part, table in zip(parts, tables, strict=True)], options)
        for name in parts[1]
    ]


def _match(finding: str | None, tables: list[_Table], options: EvaluationOptions) -> Cases:
    labels, predictions = tables[0], tables[1]
    complement = _complement(labels, predictions) if options.binary else None
    judged = [
        (check_predictions(one.table, one.place, complement=complement, renormalise=options.renormalise), one.place)
        for one in tables[1:]
    ]
    labelled = check_labels(labels.table, labels.place, judged[0][0].classes)
    rounded = [
        renormalised_warning(side.renormalised, len(side.case_ids), where)
        for side, where in judged
        if side.renormalised is not None
    ]
    labelled, place, (predicted, *others), notes = without_trained_cells(labelled, labels.place, judged)
    stray = tuple(without_prediction(labelled, predicted))
    dropped = options.missing == "drop"
    rows = rows_of_labels(labelled, predicted) if dropped else align(labelled, predicted, place)
    counts = aligned_counts(labelled, rows)
    rival = None
    for other in others:
        rival = _read_baseline(predicted, counts.sum(axis=1) > 0, other, (predictions.place, tables[2].place), dropped)
    return Cases(
        finding=finding,
        labels=labelled,
        place=place,
        predictions=predicted,
        counts=counts,
        first_counts=aligned_first_counts(labelled, rows, place),
        weights=aligned_weights(labelled, options.weights, rows, place),
        weights2=aligned_weights(labelled, options.weights2, rows, place),
        cluster=aligned_clusters(labelled, predicted, options.cluster, rows, place),
        left_out=stray,
        rival=rival,
        said=(*rounded, *notes),
    )


def renormalised_warning(missed: FloatArray, n_rows: int, where: Where) -> str:
    """A sentence about rows that were divided by their sums, which were so far (R,) from 1."""
    share = f"{missed.size:,} of {n_rows:,} rows"
    return f"{where}: {share} were renormalised; their sums were up to {missed.max():.2g} from 1"


def _complement(labels: _Table, predictions: _Table) -> str:
    """Name of the class that the only column of probabilities is not about."""
    (column,) = probability_columns(predictions.table, predictions.place, binary=True)
    named_class = column.removeprefix("prob:")
    others = [name for name in classes_of_labels(labels.table, labels.place) if name != named_class]
    if len(others) > 1:
        raise TableError(
            f"{labels.place}: --binary has two classes, {named_class!r} and one other, and the labels are of "
            f"{len(others)} others: {', '.join(others[:_NAMED])}; the column of probabilities is "
            f"named after a label, as prob:{others[-1]}"
        )
    return others[0] if others else f"not {named_class}"


def _read_baseline(
    predicted: Predictions,
    labelled: npt.NDArray[np.bool_],
    other: Predictions,
    places: tuple[Place, Place],
    dropped: bool,
) -> BaselinePredictions:
    """Other predictions, in the order of the first."""
    if set(other.classes) != set(predicted.classes):
        ours, theirs = (", ".join(table.classes) for table in (predicted, other))
        raise TableError(f"{places[1]}: its classes are {theirs}, and those of {places[0]} are {ours}")
    row = {case: i for i, case in enumerate(other.case_ids)}
    lacking = tuple(case for case, used in zip(predicted.case_ids, labelled, strict=True) if used and case not in row)
    if lacking and not dropped:
        raise TableError(
            f"{places[1]}: {format_case_names(lacking)} with a label and a prediction in {places[0]} have none here; "
            "--missing drop leaves them out of the comparison"
        )
    rows = np.array([i for i, case in enumerate(predicted.case_ids) if case in row], dtype=np.intp)
    theirs_rows = np.array([row[predicted.case_ids[i]] for i in rows.tolist()], dtype=np.intp)
    columns = [other.classes.index(name) for name in predicted.classes]
    return BaselinePredictions(
        rows, other.class_probs[theirs_rows][:, columns], other.disagreement_probs[theirs_rows], lacking
    )


def annotations_of(labels: Labels) -> Annotations:
    """Labels with their annotators, numbered by name, in the order of the cases; none of a wide table."""
    n_cases, n_classes = len(labels.case_ids), len(labels.classes)
    annotations = Annotations.of_names(labels.rows, labels.annotators, labels.numbers, n_cases, n_classes)
    return replace(annotations, case_ids=tuple(labels.case_ids), classes=tuple(labels.classes))


def read_annotations(source: TableSource, classes: Sequence[str] | None = None) -> Annotations:
    """Read a LABELS table that names annotators: a file, or a table of pandas, polars, Arrow or NumPy columns.

    Args:
        source: the file, or a table in memory.
        classes: the classes that may occur, in their order; all that occur, sorted, if left out.

    Raises:
        TableError: a table that cannot be used, that names no annotators, or of several findings.

    >>> labels = read_annotations({"case_id": ["a", "a"], "annotator": ["r", "s"], "label": ["x", "y"]})
    >>> labels.annotators, labels.classes, labels.counts().tolist()
    (('r', 's'), ('x', 'y'), [[1, 1]])
    """
    table, place = read_table(source), place_of(source, "LABELS")
    if "finding" in table.column_names:
        raise TableError(f"{place}: the table has several findings: take one at a time")
    refuse_empty_file(table, source)
    labels = check_labels(table, place, classes)
    if not labels.annotators:
        raise TableError(f"{place}: a column 'annotator' is needed: it names who gave each label")
    return annotations_of(labels)


def aligned_counts(labels: Labels, rows: npt.NDArray[np.intp]) -> IntArray:
    """Label histograms (N, K) of predictions, given the row of LABELS of each or −1."""
    if not labels.case_ids:
        return np.zeros((len(rows), len(labels.classes)), dtype=np.int64)
    return np.asarray(np.where(rows[:, None] >= 0, labels.counts[rows], 0), dtype=np.int64)


def aligned_first_counts(labels: Labels, rows: npt.NDArray[np.intp], where: Where) -> IntArray | None:
    """Labels (N, K) that metrics which need one label use: answers to the first planned reads; None for all.

    They are the labels whose column ``planned_read``, where there is one, is 1.

    Raises:
        TableError: a number of a planned read is missing, or is none.
    """
    if PLANNED_READ not in labels.columns or not labels.numbers.size:
        return None
    first = answers_to_first_reads(labels, where)
    counts = np.zeros_like(labels.counts)
    np.add.at(counts, (labels.rows[first], labels.numbers[first]), 1)
    return aligned_counts(replace(labels, counts=counts), rows)


def answers_to_first_reads(labels: Labels, where: Where) -> npt.NDArray[np.bool_]:
    """Mask of the labels (M,) that answer a first planned read.

    Raises:
        TableError: a number of a planned read is missing, or is none.
    """
    values = labels.columns[PLANNED_READ]
    problem = "not the number of a planned read (1, 2, …; 0 of none):"
    fail_at(where, [not str(value).isdecimal() for value in values], PLANNED_READ, problem, values)
    return np.array([int(value) == 1 for value in values], dtype=bool)


def aligned_clusters(
    labels: Labels, predictions: Predictions, name: str | None, rows: npt.NDArray[np.intp], where: Where
) -> npt.NDArray[Any] | None:
    """Patient (N,) of each prediction, None where no column is named.

    Of a case without labels the patient stands in the column of the same name in PREDICTIONS; without one it is its
    own cluster. It matters for the Horvitz–Thompson form of CL, which counts the pairs of all cases.
    """
    if name is None or not labels.case_ids:
        return None
    values = [str(value) for value in case_column(labels, name, where)]
    others = predictions.columns.get(name) or [f"case {case_id}" for case_id in predictions.case_ids]
    return np.array([values[row] if row >= 0 else str(others[i]) for i, row in enumerate(rows.tolist())])


def aligned_weights(labels: Labels, name: str | None, rows: npt.NDArray[np.intp], where: Where) -> FloatArray | None:
    """Weights (N,) of predictions from a column of LABELS, None where no column is named.

    Raises:
        TableError: weights that are no numbers or not positive.
    """
    if name is None or not labels.case_ids:
        return None
    values = case_column(labels, name, where)
    wrong = [not _is_weight(value) for value in labels.columns[name]]
    fail_at(where, wrong, name, "weights must be positive numbers:", labels.columns[name])
    return np.where(rows >= 0, values[rows], values[0]).astype(np.float64)  # the filler is never used


def _is_weight(value: Any) -> bool:
    """Whether a value is a positive finite number."""
    try:
        return bool(np.isfinite(float(value))) and float(value) > 0
    except (TypeError, ValueError):
        return False


def by_finding(table: pa.Table, place: Place) -> dict[str, tuple[pa.Table, Place]]:
    """Part a table by its column ``finding``.

    Columns of classes that are empty in all rows of a finding are left out there: findings may have other classes.

    Args:
        table: LABELS or PREDICTIONS.
        place: what messages call it.

    Returns:
        The rows of each finding, in order of first appearance, and what messages call them.

    Raises:
        TableError: a finding is missing.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(text_column(table, "finding", place)):
        rows.setdefault(name, []).append(row)
    return {name: _part(table, place, np.array(chosen, dtype=np.intp)) for name, chosen in rows.items()}


def _part(table: pa.Table, place: Place, rows: npt.NDArray[np.intp]) -> tuple[pa.Table, Place]:
    part = table.take(pa.array(rows))
    used = [
        name
        for name in part.column_names
        if not name.startswith(("prob:", "count:")) or part.column(name).null_count < len(rows)
    ]
    return part.select(used), place.part(rows)
