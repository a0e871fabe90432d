"""Matching of LABELS and PREDICTIONS by case and, where both tables have one, by finding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ml.annotations import Annotations
from ml.metrics.reader_variance import Readings
from ml.metrics.sums import Debias
from ml.tables.files import (
    Predictions,
    align,
    case_column,
    check_labels,
    check_predictions,
    classes_of_labels,
    probability_columns,
)
from ml.tables.reading import Place, TableError, TableSource, fail_at, is_number, open_table, positions, text_column
from ml.util.arrays import FloatArray, IntArray, require_whole

Level = Literal["nominal", "ordinal"]
#: What is done with a case that has a label and no prediction.
Missing = Literal["error", "drop"]
#: Column of LABELS with the number of the planned read that a label answers.
PLANNED_READ = "planned_read"
#: Column of PREDICTIONS: yes, no or unknown.
TRAINED_ON = "trained_on"
#: Names in a warning; the document lists all.
_NAMED = 5
_Table = tuple[pa.Table, Place]


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of an evaluation of LABELS and PREDICTIONS.

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
class Rival:
    """Other predictions of the M cases that both predict."""

    predictions: Predictions
    #: (M,) positions among the cases of the first predictions
    rows: IntArray
    #: cases with a label that it does not predict
    left_out: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Cases:
    """Predictions of N cases with the labels of each case, of one finding."""

    #: LABELS without training cells, and their place
    labels: Annotations
    place: Place
    predictions: Predictions
    #: (N, K), zero rows without a label; ``first_counts``: of first planned reads
    counts: IntArray
    first_counts: IntArray | None
    #: (N,) of order 1 and of order 2, and the patients
    weights: FloatArray | None
    weights2: FloatArray | None
    cluster: npt.NDArray[Any] | None
    #: cases with a label and no prediction
    left_out: tuple[str, ...]
    finding: str | None = None
    rival: Rival | None = None
    #: on renormalised rows, and on training cells left out
    notes: tuple[str, ...] = ()

    @cached_property
    def annotations(self) -> Annotations | None:
        """Labels in the order of LABELS; None in a wide table."""
        return self.labels.by_case() if self.labels.annotators else None

    @cached_property
    def readings(self) -> Readings | None:
        """Labels of the predicted cases; None in a wide table."""
        annotations, labels = self.annotations, self.labels
        if annotations is None:
            return None
        place = positions(labels.case_ids, self.predictions.case_ids)
        some = annotations.renumbered(place, len(self.predictions.case_ids))
        if self.first_counts is None:
            return Readings(some.case, some.annotator, some.label)
        first = _answers_to_first_reads(labels, self.place)[np.argsort(labels.case, kind="stable")]
        return Readings(some.case, some.annotator, some.label, first[place[annotations.case] >= 0])

    def warnings(self) -> tuple[str, ...]:
        """Warnings about the tables, and about cases left out, by name."""
        notes = self.notes if self.rival is None else tuple(dict.fromkeys((*self.notes, *self.rival.notes)))
        if not self.left_out:
            return notes
        return (*notes, f"{_case_names(self.left_out)} had a label and no prediction and was left out")


def _case_names(cases: Sequence[str]) -> str:
    names = ", ".join(repr(case) for case in cases[:_NAMED])
    more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    return f"{len(cases)} case{'' if len(cases) == 1 else 's'} ({names}{more})"


def match_tables(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions, against: TableSource | None = None
) -> list[Cases]:
    """Match LABELS and PREDICTIONS by case, and by finding if named."""
    in_order = options.level == "ordinal"
    tables = [
        open_table(labels, "LABELS", in_order=in_order),
        open_table(predictions, "PREDICTIONS", in_order=in_order),
    ]
    if against is not None:
        tables.append(open_table(against, "PREDICTIONS of --against", in_order=in_order))
    lacking = [place for table, place in tables if "finding" not in table.column_names]
    if len(lacking) == len(tables):
        return [_match(None, tables, options)]
    if lacking:
        having = next(place for _, place in tables if place not in lacking)
        raise TableError(f"{having} has a column 'finding' and {lacking[0]} has none: give it to both")
    parts = [by_finding(*table) for table in tables]
    stray = [name for name in parts[0] if name not in parts[1]]
    if stray:
        raise TableError(f"{tables[0][1]}: finding {stray[0]!r} has labels and no prediction, {len(stray)} in all")
    nothing = [(table.slice(0, 0), place) for table, place in tables]
    return [
        _match(name, [part.get(name, empty) for part, empty in zip(parts, nothing, strict=True)], options)
        for name in parts[1]
    ]


def match_one(
    labels: TableSource,
    predictions: TableSource,
    options: EvaluationOptions,
    against: TableSource | None = None,
    *,
    hint: str,
) -> Cases:
    """Match tables of one finding."""
    matched = match_tables(labels, predictions, options, against)
    if len(matched) != 1 or matched[0].finding is not None:
        raise TableError(f"the tables have a column 'finding': {hint}")
    return matched[0]


def _match(finding: str | None, tables: list[_Table], options: EvaluationOptions) -> Cases:
    labels, place = tables[0]
    complement = _complement(tables[0], tables[1]) if options.binary else None
    judged, notes = [], []
    for table, where in tables[1:]:
        judged.append(check_predictions(table, where, complement=complement, renormalise=options.renormalise))
        notes.append(renormalised_note(judged[-1].renormalised, len(judged[-1].case_ids), where))
    labelled = check_labels(labels, place, judged[0].classes)
    trained: set[str] = set()
    for one, (_, where), texts in zip(judged, tables[1:], notes, strict=True):
        trained.update(_trained_cells(one, where, texts))
    if not trained.isdisjoint(judged[0].case_ids):
        labelled, place, judged, note = _without(trained, labelled, place, judged, tables[1][1])
        notes = [[*texts, note] for texts in notes]
    cases = align_tables(labelled, place, judged[0], options, drop=options.missing == "drop")
    rival = None
    if len(judged) > 1:
        rival = _rival(cases, judged[1], (tables[1][1], tables[2][1]), options.missing == "drop", tuple(notes[1]))
    return replace(cases, finding=finding, rival=rival, notes=tuple(notes[0]))


def align_tables(
    labels: Annotations, place: Place, predictions: Predictions, options: EvaluationOptions, *, drop: bool
) -> Cases:
    """Labels, weights and patients of each prediction."""
    # Of a case without labels the patient is in PREDICTIONS, or the case is its own cluster: the
    # Horvitz–Thompson form of CL counts the pairs of all cases.
    rows, left_out = align(labels, predictions, place, drop=drop)
    histograms, cluster, first_counts = [labels.counts()], None, None
    if PLANNED_READ in labels.columns and labels.annotators:
        used = _answers_to_first_reads(labels, place)
        flat = np.bincount(labels.case[used] * labels.n_classes + labels.label[used], minlength=histograms[0].size)
        histograms.append(flat.reshape(histograms[0].shape))
    counts = np.zeros((len(rows), labels.n_classes), dtype=np.int64)
    weights: list[FloatArray | None] = [None, None]
    if labels.n_cases:
        counts, *others = [np.where(rows[:, None] >= 0, table[rows], 0) for table in histograms]
        first_counts = others[0] if others else None
        for order, name in enumerate((options.weights, options.weights2)):
            if name is not None:
                values = case_column(labels, name, place)
                given = labels.columns[name]
                wrong = [not (is_number(value) and float(value) > 0) for value in given]
                fail_at(place, wrong, name, "weights must be positive numbers:", given)
                # the filler is never used
                weights[order] = np.where(rows >= 0, values[rows], values[0]).astype(np.float64)
        if options.cluster is not None:
            patients = case_column(labels, options.cluster, place).astype(str)
            others_of = predictions.columns.get(options.cluster) or [f"case {case}" for case in predictions.case_ids]
            cluster = np.where(rows >= 0, patients[rows], np.array(list(map(str, others_of))))
    first, second = weights
    return Cases(labels, place, predictions, counts, first_counts, first, second, cluster, tuple(left_out))


def _answers_to_first_reads(labels: Annotations, place: Place) -> npt.NDArray[np.bool_]:
    """Mask (M,) of labels of planned first reads."""
    values = labels.columns[PLANNED_READ]
    problem = "not the number of a planned read (1, 2, …; 0 of none):"
    fail_at(place, [not str(value).isdecimal() for value in values], PLANNED_READ, problem, values)
    return np.array([int(value) == 1 for value in values], dtype=bool)


def renormalised_note(missed: FloatArray | None, n_rows: int, where: Place | Path) -> list[str]:
    """Note on rows divided by their sums (R,)."""
    if missed is None or not missed.size:
        return []
    share = f"{missed.size:,} of {n_rows:,} rows"
    return [f"{where}: {share} were renormalised; their sums were up to {missed.max():.2g} from 1"]


def _complement(labels: _Table, predictions: _Table) -> str:
    (column,) = probability_columns(*predictions, binary=True)
    named_class = column.removeprefix("prob:")
    others = [name for name in classes_of_labels(*labels) if name != named_class]
    if len(others) > 1:
        raise TableError(
            f"{labels[1]}: --binary has two classes, {named_class!r} and one other, and the labels are of "
            f"{len(others)} others: {', '.join(others[:_NAMED])}; the column of probabilities is "
            f"named after a label, as prob:{others[-1]}"
        )
    return others[0] if others else f"not {named_class}"


def _trained_cells(predictions: Predictions, place: Place, notes: list[str]) -> list[str]:
    """Training cells, with a note if some are unknown."""
    given = predictions.columns.get(TRAINED_ON)
    if given is None:
        return []
    wrong = [answer not in {"yes", "no", "unknown"} for answer in given]
    fail_at(place, wrong, TRAINED_ON, "must be yes, no or unknown, not", given)
    if n := given.count("unknown"):
        notes.append(f"{place}: whether the release was trained on {n:,} of {len(given):,} cells is unknown")
    return [case for case, answer in zip(predictions.case_ids, given, strict=True) if answer == "yes"]


def _without(
    trained: set[str], labels: Annotations, place: Place, judged: list[Predictions], of: Place
) -> tuple[Annotations, Place, list[Predictions], str]:
    """Tables without training cells, and a note."""
    n_cells, n_trained = len(judged[0].case_ids), len(trained.intersection(judged[0].case_ids))
    if n_trained == n_cells:
        raise TableError(f"{of}: the release was trained on all {n_trained:,} cells: none is left to judge it by")
    kept = np.array([case not in trained for case in labels.case_ids], dtype=bool)
    rows, number = np.flatnonzero(kept[labels.case]), np.cumsum(kept) - 1
    some = replace(
        labels,
        case=number[labels.case[rows]],
        annotator=labels.annotator[rows] if labels.annotators else labels.annotator,
        label=labels.label[rows] if labels.annotators else labels.label,
        n_cases=int(kept.sum()),
        case_ids=tuple(compress(labels.case_ids, kept)),
        histograms=None if labels.histograms is None else labels.histograms[kept],
        columns={name: [values[row] for row in rows] for name, values in labels.columns.items()},
    )
    others = [one.take(np.flatnonzero([case not in trained for case in one.case_ids])) for one in judged]
    note = f"{n_trained:,} of {n_cells:,} cells are left out because the release was trained on them"
    return some, place.part(rows), others, note


def _rival(cases: Cases, other: Predictions, places: tuple[Place, Place], drop: bool, notes: tuple[str, ...]) -> Rival:
    first = cases.predictions
    if set(other.classes) != set(first.classes):
        ours, theirs = (", ".join(table.classes) for table in (first, other))
        raise TableError(f"{places[1]}: its classes are {theirs}, and those of {places[0]} are {ours}")
    row = positions(first.case_ids, other.case_ids)
    lacking = tuple(compress(first.case_ids, (cases.counts.sum(axis=1) > 0) & (row < 0)))
    if lacking and not drop:
        raise TableError(
            f"{places[1]}: {_case_names(lacking)} with a label and a prediction in {places[0]} have none here; "
            "--missing drop leaves them out of the comparison"
        )
    rows, columns = np.flatnonzero(row >= 0), [other.classes.index(name) for name in first.classes]
    taken = other.take(row[rows])
    ordered = replace(taken, classes=first.classes, class_probs=taken.class_probs[:, columns])
    return Rival(ordered, rows, lacking, notes)


def by_finding(table: pa.Table, place: Place) -> dict[str, _Table]:
    """Part a table by ``finding``, in order of appearance."""
    # Findings may have other classes: columns that are empty in all rows are left out.
    names = text_column(table, "finding", place)
    distinct = list(dict.fromkeys(names))
    number, parts = positions(names, distinct), {}
    for k, name in enumerate(distinct):
        rows = np.flatnonzero(number == k)
        part = table.take(pa.array(rows))
        used = [
            column
            for column in part.column_names
            if not column.startswith(("prob:", "count:")) or part.column(column).null_count < len(rows)
        ]
        parts[name] = (part.select(used), place.part(rows))
    return parts
