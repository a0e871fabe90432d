"""Evaluation of LABELS and PREDICTIONS, matched by case and by class name and, if both name one, by finding."""

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
from ml.dataframes import column_names, has_cases
from ml.metrics import Evaluation
from ml.metrics import evaluate as evaluate_arrays
from ml.metrics.cases import SampleWeight, weights_by_order
from ml.metrics.homogeneity_test import reader_warnings
from ml.metrics.ordinal import ordinal_metrics
from ml.metrics.reader_variance import Readings
from ml.metrics.sums import Debias
from ml.metrics.triage_curves import uncertainty_scores
from ml.tables.files import (
    Predictions,
    case_column,
    check_labels,
    check_predictions,
    classes_of_labels,
    predicted_classes,
    spelled_alike,
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


def _case_names(cases: Sequence[str]) -> str:
    names = ", ".join(repr(case) for case in cases[:_NAMED])
    more = f" and {len(cases) - _NAMED} more" if len(cases) > _NAMED else ""
    return f"{len(cases)} case{'' if len(cases) == 1 else 's'} ({names}{more})"


def match_tables(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions, against: TableSource | None = None
) -> list[Cases]:
    """Match LABELS and PREDICTIONS by case, and by finding if named."""
    sources = [(labels, "LABELS"), (predictions, "PREDICTIONS")]
    if against is not None:
        sources.append((against, "PREDICTIONS of --against"))
    tables, lacking = [], []
    for source, name in sources:
        table, place = open_table(source, name, in_order=options.level == "ordinal")
        tables.append((table, place))
        if "finding" not in table.column_names:
            lacking.append(place)
    if len(lacking) == len(tables):
        return [_match(None, tables, options)]
    if lacking:
        having = next(place for _, place in tables if place not in lacking)
        raise TableError(f"{having} has a column 'finding' and {lacking[0]} has none: give it to both")
    parts = [by_finding(*table) for table in tables]
    stray = [name for name, part in parts[0].items() if name not in parts[1] and check_labels(*part).labelled_cases()]
    if stray and options.missing == "error":
        raise TableError(
            f"{tables[0][1]}: finding {stray[0]!r} has labels and no prediction, {len(stray)} in all; "
            "--missing drop leaves them out and names them"
        )
    nothing = [(table.slice(0, 0), place) for table, place in tables]
    notes = tuple(f"finding {name!r} has labels and no prediction and was left out" for name in stray)
    matched = (
        _match(name, [part.get(name, empty) for part, empty in zip(parts, nothing, strict=True)], options)
        for name in parts[1]
    )
    return [replace(cases, notes=notes + cases.notes) for cases in matched]


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
        one = check_predictions(table, where, complement=complement, renormalise=options.renormalise)
        judged.append(one)
        notes.append([] if one.renormalised is None else [renormalised_note(one.renormalised, table.num_rows, where)])
    labelled = check_labels(labels, place, judged[0].classes)
    trained: set[str] = set()
    for one, (_, where), texts in zip(judged, tables[1:], notes, strict=True):
        cells, n_unknown = trained_cells(one, where)
        trained.update(cells)
        texts += unknown_note(n_unknown, len(one.case_ids), where)
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
    predicted = set(predictions.case_ids)
    left_out = [case for case in labels.labelled_cases() if case not in predicted]
    if left_out and not drop:
        raise TableError(
            f"{place}: case {left_out[0]!r} has a label but no prediction, {len(left_out)} in all"
            f"{spelled_alike(left_out[0], predictions.case_ids)}; --missing drop leaves them out and names them"
        )
    rows = positions(predictions.case_ids, labels.case_ids)
    counts, first_counts, cluster = np.zeros((len(rows), labels.n_classes), dtype=np.int64), None, None
    weights: list[FloatArray | None] = [None, None]
    if labels.n_cases:
        counts = np.where(rows[:, None] >= 0, labels.counts()[rows], 0)
        if PLANNED_READ in labels.columns and labels.annotators:
            used, table = _answers_to_first_reads(labels, place), np.zeros_like(labels.counts())
            np.add.at(table, (labels.case[used], labels.label[used]), 1)
            first_counts = np.where(rows[:, None] >= 0, table[rows], 0)
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


def renormalised_note(missed: FloatArray, n_rows: int, where: Place | Path) -> str:
    """Note on rows divided by their sums (R,)."""
    share = f"{missed.size:,} of {n_rows:,} rows"
    return f"{where}: {share} were renormalised; their sums were up to {missed.max():.2g} from 1"


def _complement(labels: _Table, predictions: _Table) -> str:
    (named_class,) = predicted_classes(*predictions, binary=True)
    others = [name for name in classes_of_labels(*labels) if name != named_class]
    if len(others) > 1:  # columns of other findings' classes may hold zeros
        n_labels = check_labels(*labels, [named_class, *others]).counts()[:, 1:].sum(axis=0)
        others = list(compress(others, n_labels)) or others
    if len(others) > 1:
        raise TableError(
            f"{labels[1]}: --binary has two classes, {named_class!r} and one other, and the labels are of "
            f"{len(others)} others: {', '.join(others[:_NAMED])}; the column of probabilities is "
            f"named after a label, as prob:{others[-1]}"
        )
    return others[0] if others else f"not {named_class}"


def trained_cells(predictions: Predictions, place: Place) -> tuple[list[str], int]:
    """Training cells, and of how many it is unknown."""
    given = predictions.columns.get(TRAINED_ON, ["no"] * len(predictions.case_ids))
    wrong = [answer not in {"yes", "no", "unknown"} for answer in given]
    fail_at(place, wrong, TRAINED_ON, "must be yes, no or unknown, not", given)
    trained = [case for case, answer in zip(predictions.case_ids, given, strict=True) if answer == "yes"]
    return trained, given.count("unknown")


def unknown_note(n: int, n_cells: int, where: Place | Path | str) -> list[str]:
    """Note on cells of which nobody knows whether they are training cells."""
    return [f"{where}: whether the release was trained on {n:,} of {n_cells:,} cells is unknown"] if n else []


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


def evaluate(
    labels: TableSource | npt.ArrayLike,
    predictions: TableSource | npt.ArrayLike,
    disagreement_probs: npt.ArrayLike | None = None,
    *,
    n_bins: int = 15,
    debias: Debias = "pair",
    sample_weight: SampleWeight = None,
    cluster: str | npt.ArrayLike | None = None,
    classes: list[str] | None = None,
    missing: Missing = "error",
    binary: bool = False,
    level: Level = "nominal",
    renormalise: bool = False,
) -> Evaluation:
    """Compute every metric with its interval, from tables or arrays.

    Args:
        labels: LABELS, long or wide (a file, or a table of pandas, polars, Arrow or a mapping of columns), or label
            histograms (N, K).
        predictions: PREDICTIONS, of the same kinds, or class probabilities (N, K).
        disagreement_probs: (N,) DPEs with arrays; a table has them in a column.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL, ``pair``, ``paper`` or ``none``.
        sample_weight: inverse probabilities of having labels: a column of LABELS, or (N,) with arrays; or a pair of
            these, of having one label and of having two.
        cluster: patient of each case: a column of LABELS, or (N,) with arrays.
        classes: names of the K classes of arrays.
        missing: ``drop`` leaves out labels of tables without a prediction, with a warning that names them.
        binary: tables with one column of probabilities, whose complement is the other class.
        level: ``ordinal`` where the classes are grades, in the order of the columns.
        renormalise: divide rows of tables whose sum rounding keeps from 1 (by at most 0.001) by that sum, and warn.

    Returns:
        Counts, metrics, reliability tables and warnings; its ``to_dict()`` is the document of ``evaluate --json``.

    Raises:
        ValueError: tables or arrays that cannot be used; of a table the message names row and column.

    Examples:
        >>> from secondread import evaluate
        >>> labels = {"case_id": ["a", "a", "b"], "annotator": ["r", "s", "r"], "label": ["yes", "no", "yes"]}
        >>> predictions = {"case_id": ["b", "a"], "prob:yes": [0.75, 0.5], "prob:no": [0.25, 0.5]}
        >>> evaluate(labels, predictions).metrics["L"].value
        0.3125
        >>> evaluate([[1, 1], [1, 0]], [[0.5, 0.5], [0.75, 0.25]]).metrics["L"].value
        0.3125
    """
    by_case = has_cases(labels)
    if by_case != has_cases(predictions):
        lacking, table = ("predictions have", predictions) if by_case else ("labels have", labels)
        present = ", ".join(column_names(table) or ["none: they are arrays"])
        raise ValueError(
            f"{lacking} no column 'case_id' to match cases by (there are {present}): give it to both tables, or to "
            "neither"
        )
    weights = weights_by_order(sample_weight)
    sources: tuple[Any, Any] = labels, predictions
    if by_case:
        if disagreement_probs is not None or classes is not None:
            raise ValueError("tables name their classes and disagreement_prob in columns: leave both arguments out")
        given: Any = (*weights, cluster, missing, binary, level, renormalise)
        options = EvaluationOptions(n_bins, debias, *given)
        hint = "evaluate_findings evaluates each on its own"
        return evaluate_cases(match_one(*sources, options, hint=hint), options)
    if binary or renormalise or missing != "error":
        raise ValueError(
            "binary, renormalise and missing are about tables with case_id: of arrays give both classes of every case, "
            "in rows that sum to 1"
        )
    EvaluationOptions(n_bins=n_bins, level=level)  # refuses what is no choice
    for name, values in (("sample_weight", weights[0]), ("sample_weight[1]", weights[1]), ("cluster", cluster)):
        if isinstance(values, str):
            raise ValueError(f"{name} names a column of LABELS: with arrays give a value per case (N,), got {values!r}")
    if classes is not None and len(set(classes)) < len(classes):
        raise ValueError(f"classes must be different names, got {', '.join(map(str, classes))}")
    columns: Any = {"sample_weight": sample_weight, "cluster": cluster}
    evaluation = evaluate_arrays(*sources, disagreement_probs, n_bins=n_bins, debias=debias, classes=classes, **columns)
    if level == "nominal":
        return evaluation
    return replace(evaluation, metrics=evaluation.metrics | ordinal_metrics(*sources, **columns))


def evaluate_findings(
    labels: TableSource, predictions: TableSource, options: EvaluationOptions | None = None
) -> dict[str, Evaluation]:
    """Evaluate each finding of a pair of tables, by ``finding``.

    Args:
        labels: LABELS with a column ``finding``; a file or a table in memory.
        predictions: PREDICTIONS with one.
        options: of the evaluation.

    Returns:
        Evaluations by finding, in the order of PREDICTIONS.

    Raises:
        TableError: a table cannot be used; the message names file, row and column.

    >>> labels = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"], "annotator": ["r"] * 3}
    >>> predictions = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"], "prob:present": [0.5, 0.5, 1]}
    >>> labels["label"] = ["present", "absent", "present"]
    >>> found = evaluate_findings(labels, predictions, EvaluationOptions(binary=True))
    >>> {name: evaluation.metrics["L"].value for name, evaluation in found.items()}
    {'mass': 0.5, 'fluid': 0.0}
    """
    options = options or EvaluationOptions()
    matched = match_tables(labels, predictions, options)
    if any(cases.finding is None for cases in matched):
        raise TableError("the tables have no column 'finding'")
    return {str(cases.finding): evaluate_cases(cases, options) for cases in matched}


def evaluate_cases(cases: Cases, options: EvaluationOptions) -> Evaluation:
    """Evaluate matched tables."""
    columns: Any = {"sample_weight": (cases.weights, cases.weights2), "cluster": cases.cluster}
    columns |= {"first_label_counts": cases.first_counts, "readings": cases.readings}
    given = cases.predictions
    evaluation = evaluate_arrays(
        cases.counts,
        given.class_probs,
        given.disagreement_probs,
        n_bins=options.n_bins,
        debias=options.debias,
        classes=given.classes,
        **columns,
    )
    metrics = evaluation.metrics
    if options.level == "ordinal":
        metrics = metrics | ordinal_metrics(cases.counts, given.class_probs, **columns)
    warnings = list(cases.notes if cases.rival is None else dict.fromkeys((*cases.notes, *cases.rival.notes)))
    if cases.left_out:
        warnings.append(f"{_case_names(cases.left_out)} had a label and no prediction and was left out")
    warnings += evaluation.warnings
    labels = cases.annotations
    if labels is not None:
        groups = None
        if options.cluster is not None:
            names = case_column(cases.labels, options.cluster, cases.place).astype(str)
            groups = np.unique(names, return_inverse=True)[1][labels.case]
        warnings += reader_warnings(labels.case, labels.annotator, labels.label, groups)
    elif cases.counts.sum(axis=1).max(initial=0) == 1:
        warnings.append("no annotator is named (column 'annotator'): each cell has one label, by one unnamed annotator")
    return replace(evaluation, metrics=metrics, warnings=tuple(warnings))


#: Disagreement of two annotators (DPE), or a common rule.
Score = Literal["disagreement", "max_probability", "entropy"]


def rank_second_reads(
    predictions: TableSource, *, score: Score = "disagreement", binary: bool = False, renormalise: bool = False
) -> pa.Table:
    """Rank the cases of a PREDICTIONS table by how much they need a second read.

    Args:
        predictions: PREDICTIONS; a file or a table in memory.
        score: what a case is ranked by, the largest first: the probability that two annotators disagree
            (``disagreement``), 1 minus the largest class probability, or the entropy of the class probabilities.
        binary: one column of probabilities, whose complement is the other class.
        renormalise: divide rows whose sum rounding keeps from 1 (by at most 0.001) by that sum.

    Returns:
        A row per case with ``case_id``, ``score`` and ``rank`` (from 1); cases of one score keep their order.

    Raises:
        TableError: the table cannot be used; the message names file, row and column.
        ValueError: an unknown score.

    Examples:
        >>> from secondread import rank_second_reads
        >>> predictions = {"case_id": ["a", "b", "c"], "prob:x": [0.9, 0.5, 1.0], "prob:y": [0.1, 0.5, 0.0]}
        >>> rank_second_reads(predictions)["case_id"].to_pylist()
        ['b', 'a', 'c']
    """
    table, place = open_table(predictions, "PREDICTIONS")
    if "finding" in table.column_names:
        raise TableError(f"{place}: the table has a column 'finding': rank one finding at a time")
    complement = "the other class" if binary else None
    read = check_predictions(table, place, complement=complement, renormalise=renormalise)
    common = {name.replace(" ", "_"): values for name, values in uncertainty_scores(read.class_probs).items()}
    scores = {"disagreement": read.disagreement_probs} | common
    if score not in scores:
        raise ValueError(f"unknown score {score!r}; there are {', '.join(scores)}")
    order = np.argsort(-scores[score], kind="stable")
    ranked = {"case_id": [read.case_ids[row] for row in order], "score": scores[score][order]}
    return pa.table(ranked | {"rank": np.arange(1, len(order) + 1)})
