"""Label and prediction tables, on disk (CSV or Parquet by extension) or in memory, checked cell by cell.

LABELS come long (``case_id, annotator, label``) or wide (``case_id, count:<class>…``); PREDICTIONS have
``case_id, prob:<class>…`` and optionally ``log_concentration`` or ``disagreement_prob``. Columns are found by name,
in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import expit

from ml.distributions.families import gini
from ml.tables.reading import (
    Column,
    Place,
    TableError,
    TableSource,
    Where,
    empty_where_nan,
    fail_at,
    find_repeats,
    number_column,
    place_of,
    read_batches,
    read_table,
    text_cells,
    text_column,
    write_table,
)
from ml.util.arrays import ROW_SUM_TOLERANCE, EqualByValue, FloatArray, IntArray

__all__ = [
    "Column",
    "Labels",
    "Place",
    "Predictions",
    "TableError",
    "TableSource",
    "Where",
    "align",
    "case_column",
    "check_labels",
    "check_predictions",
    "classes_of_labels",
    "empty_where_nan",
    "fail_at",
    "is_wide",
    "number_column",
    "place_of",
    "probability_columns",
    "read_batches",
    "read_labels",
    "read_predictions",
    "read_table",
    "rows_of_labels",
    "text_cells",
    "text_column",
    "without_prediction",
    "write_table",
]

#: Where the documents say what to do with tied and shared answers.
_TIES = "docs/reference/tables.md, 'Ties and fractional counts'"


@dataclass(frozen=True, eq=False)
class Labels(EqualByValue):
    """Labels of cases, long or wide.

    Attributes:
        case_ids: N distinct identifiers, in order of first appearance.
        classes: class names of the counts' columns.
        counts: (N, K) label histograms.
        rows: (M,) case number of each row of the table.
        annotators: (M,) names, empty in a wide table.
        numbers: (M,) class number of each label, empty in a wide table.
        columns: further columns of the table, M values each.
    """

    case_ids: list[str]
    classes: list[str]
    counts: IntArray
    rows: npt.NDArray[np.intp]
    columns: dict[str, list[Any]]
    annotators: list[str] = field(default_factory=list)
    numbers: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class Predictions(EqualByValue):
    """Predictions of cases: probabilities (N, K), disagreement probabilities (N,), further columns of the table.

    ``renormalised`` has the distances (R,) from 1 of the sums of the R rows that were divided by them; None if R = 0.
    """

    case_ids: list[str]
    classes: list[str]
    class_probs: FloatArray
    disagreement_probs: FloatArray
    columns: dict[str, list[Any]] = field(default_factory=dict)
    renormalised: FloatArray | None = None


#: Distance from 1 of a row's sum that rounding explains (six decimals, float16), with a little for its own rounding.
ROUNDING = 1e-3 + 1e-9


def read_predictions(source: TableSource, *, complement: str | None = None, renormalise: bool = False) -> Predictions:
    """Read and check a PREDICTIONS table, a file or in memory.

    Args:
        source: the file, or a table in memory.
        complement: name of the other class where there is one column of probabilities only.
        renormalise: divide rows whose sum rounding keeps from 1 (by at most 0.001) by that sum.

    Raises:
        TableError: a missing column, a duplicated case, a value that is no probability, or a row of
            probabilities that does not sum to one within 1e-6, or within 0.001 if rows are renormalised.
    """
    place = place_of(source, "PREDICTIONS")
    return check_predictions(read_table(source), place, complement=complement, renormalise=renormalise)


def check_predictions(
    table: pa.Table, where: Where, *, complement: str | None = None, renormalise: bool = False
) -> Predictions:
    """Check a PREDICTIONS table, or a part of one; arguments and errors as in ``read_predictions``."""
    names = probability_columns(table, where, binary=complement is not None)
    case_ids = text_column(table, "case_id", where)
    fail_at(where, find_repeats(case_ids), "case_id", "duplicated case", case_ids)
    probs = np.stack([number_column(table, name, where) for name in names], axis=1)
    for k, name in enumerate(names):
        fail_at(where, (probs[:, k] < 0) | (probs[:, k] > 1), name, "not a probability:", probs[:, k].tolist())
    classes = [name.removeprefix("prob:") for name in names]
    if complement is not None:
        probs, classes = np.concatenate([probs, 1 - probs], axis=1), [*classes, complement]
    sums = probs.sum(axis=1)
    missed = np.abs(sums - 1)
    off = missed > ROW_SUM_TOLERANCE
    wrong, hint = missed > ROUNDING if renormalise else off, ""
    if off.any() and not renormalise and missed.max() <= ROUNDING:
        hint = "; rounding does that, and --renormalise (renormalise=True) divides such rows by their sum"
    problem = "the row's probabilities do not sum to 1 but to"
    fail_at(where, wrong, f"{names[0]} … {names[-1]}", problem, sums.tolist(), hint)
    probs = np.where(off[:, None], probs / np.where(off, sums, 1.0)[:, None], probs)
    dpe = _disagreement(table, where, probs)
    standard_columns = {"case_id", "log_concentration", *_DISAGREEMENT, *names}
    further = {name: table.column(name).to_pylist() for name in table.column_names if name not in standard_columns}
    return Predictions(case_ids, classes, probs, dpe, further, missed[off] if off.any() else None)


def probability_columns(table: pa.Table, where: Where, *, binary: bool = False) -> list[str]:
    """Names of the columns ``prob:<class>``.

    Args:
        table: PREDICTIONS.
        where: what messages call it.
        binary: whether there must be one, else two or more.

    Raises:
        TableError: another number of them.
    """
    names = [name for name in table.column_names if name.startswith("prob:")]
    if not names:
        if is_wide(table) or {"annotator", "label"} & set(table.column_names):
            raise TableError(f"{where}: this is a table of LABELS, and PREDICTIONS are needed here: were they swapped?")
        raise TableError(f"{where}: there is no column prob:<class>; there are {', '.join(table.column_names)}")
    if binary and len(names) != 1:
        raise TableError(f"{where}: with --binary one column prob:<class> is needed, found {len(names)}")
    if not binary and len(names) < 2:
        hint = "; --binary takes one, whose complement is the other class"
        raise TableError(f"{where}: at least two columns prob:<class> are needed, found {len(names)}{hint}")
    return names


#: Of images unlike those of a release the second is empty, and the first is what it would have said.
_DISAGREEMENT = ("disagreement_prob_raw", "disagreement_prob")


def _disagreement(table: pa.Table, where: Where, probs: FloatArray) -> FloatArray:
    for name in _DISAGREEMENT:
        if name in table.column_names:
            dpe = number_column(table, name, where)
            fail_at(where, (dpe < 0) | (dpe > 1), name, "not a probability:", dpe.tolist())
            return dpe
    if "log_concentration" in table.column_names:
        a = number_column(table, "log_concentration", where)
        return np.asarray(expit(a) * gini(probs), dtype=np.float64)
    return gini(probs)


def read_labels(source: TableSource, classes: Sequence[str] | None = None) -> Labels:
    """Read and check a LABELS table, long or wide.

    Args:
        source: the file, or a table in memory.
        classes: the classes that may occur, in the order of the counts' columns; all that occur, sorted,
            where left out.

    Raises:
        TableError: a missing column or value, an unknown class, a negative or fractional count, a
            duplicated case (wide), or an annotator who labels a case twice (long).
    """
    return check_labels(read_table(source), place_of(source, "LABELS"), classes)


def is_wide(table: pa.Table) -> bool:
    """Whether a LABELS table has one row per case, with counts."""
    return any(name.startswith("count:") for name in table.column_names)


def classes_of_labels(table: pa.Table, where: Where) -> list[str]:
    """Classes of a LABELS table: those that occur, sorted, in a long one; the columns, in their order, in a wide one.

    Raises:
        TableError: a label is missing.
    """
    if is_wide(table):
        return [name.removeprefix("count:") for name in table.column_names if name.startswith("count:")]
    return sorted(set(text_column(table, "label", where)))


def check_labels(table: pa.Table, where: Where, classes: Sequence[str] | None = None) -> Labels:
    """Check a LABELS table, or a part of one; arguments and errors as in ``read_labels``."""
    case_ids = text_column(table, "case_id", where)
    if is_wide(table):
        return _wide_labels(table, case_ids, where, classes)
    annotators = _annotators(table, where)
    labels = text_column(table, "label", where)
    class_names = classes_of_labels(table, where) if classes is None else list(classes)
    number = {name: k for k, name in enumerate(class_names)}
    problem = f"unknown class (known: {', '.join(class_names)}):"
    unknown = [label not in number for label in labels]
    hint = _spelled_alike(labels[unknown.index(True)], class_names) if True in unknown else ""
    fail_at(where, unknown, "label", problem, labels, hint)
    problem = f"labels this case twice (tied answers: {_TIES}):"
    fail_at(where, find_repeats(list(zip(case_ids, annotators, strict=True))), "annotator", problem, annotators)
    order = {case: i for i, case in enumerate(dict.fromkeys(case_ids))}
    rows = np.array([order[case] for case in case_ids], dtype=np.intp)
    counts = np.zeros((len(order), len(class_names)), dtype=np.int64)
    numbers = np.array([number[label] for label in labels], dtype=np.int64)
    np.add.at(counts, (rows, numbers), 1)
    return Labels(list(order), class_names, counts, rows, _further_columns(table), annotators, numbers)


def _spelled_alike(name: str, names: Sequence[str]) -> str:
    """The end of a message about an unknown name that differs from one of the names only in ways hard to see."""
    for other in names:
        if other.strip() == name.strip():
            return f"; it differs from {other!r} in spaces"
        if normalize("NFC", other) == normalize("NFC", name):
            return f"; it differs from {other!r} in how accents are stored (Unicode NFC and NFD)"
        if other.strip().casefold() == name.strip().casefold():
            return f"; it differs from {other!r} in capitals"
    return ""


def _annotators(table: pa.Table, where: Where) -> list[str]:
    """Names of a long table."""
    if "annotator" not in table.column_names:
        if any(name.startswith("prob:") for name in table.column_names):
            raise TableError(f"{where}: this is a table of PREDICTIONS, and LABELS are needed here: were they swapped?")
        raise TableError(
            f"{where}: column 'annotator' is missing; there are {', '.join(table.column_names)}. Where annotators "
            "are not known, give one row per case with columns count:<class>"
        )
    return text_column(table, "annotator", where)


def _wide_labels(table: pa.Table, case_ids: list[str], where: Where, classes: Sequence[str] | None) -> Labels:
    fail_at(where, find_repeats(case_ids), "case_id", "duplicated case", case_ids)
    codes = classes_of_labels(table, where)
    class_names = codes if classes is None else list(classes)
    unknown = [name for name in codes if name not in class_names]
    if unknown:
        hint = _spelled_alike(unknown[0], class_names)
        raise TableError(f"{where}: column count:{unknown[0]}: unknown class (known: {', '.join(class_names)}){hint}")
    counts = np.zeros((len(case_ids), len(class_names)), dtype=np.int64)
    for name in codes:
        values = number_column(table, f"count:{name}", where)
        fail_at(where, values < 0, f"count:{name}", "not a count:", values.tolist())
        problem = f"not a whole number (fractional counts: {_TIES}):"
        fail_at(where, values != np.floor(values), f"count:{name}", problem, values.tolist())
        counts[:, class_names.index(name)] = values.astype(np.int64)
    return Labels(case_ids, class_names, counts, np.arange(len(case_ids)), _further_columns(table))


def _further_columns(table: pa.Table) -> dict[str, list[Any]]:
    names = [n for n in table.column_names if n not in {"case_id", "annotator", "label"}]
    return {name: table.column(name).to_pylist() for name in names if not name.startswith("count:")}


def case_column(labels: Labels, name: str, where: Where) -> npt.NDArray[Any]:
    """A further column of LABELS, one value per case (N,).

    Raises:
        TableError: no such column, a missing value, or one that varies within a case.
    """
    if name not in labels.columns:
        others = ", ".join(labels.columns) or "only the columns that every table of LABELS has"
        raise TableError(f"{where}: column {name!r} is missing; there are {others}")
    values = labels.columns[name]
    fail_at(where, [value is None for value in values], name, "the value is missing:", values)
    per_case = dict(zip(reversed(labels.rows.tolist()), reversed(values), strict=True))
    varies = [per_case[row] != value for row, value in zip(labels.rows.tolist(), values, strict=True)]
    fail_at(where, varies, name, "must be constant within a case, but differs from its first row:", values)
    return np.array([per_case[row] for row in range(len(labels.case_ids))])


def align(labels: Labels, predictions: Predictions, where: Where) -> npt.NDArray[np.intp]:
    """Rows (N_predictions,) of LABELS for each prediction, −1 where a prediction has no label.

    Raises:
        TableError: a label without a prediction.
    """
    stray = without_prediction(labels, predictions)
    if stray:
        raise TableError(
            f"{where}: case {stray[0]!r} has a label but no prediction, {len(stray)} in all"
            f"{_spelled_alike(stray[0], predictions.case_ids)}; --missing drop leaves them out and names them"
        )
    return rows_of_labels(labels, predictions)


def rows_of_labels(labels: Labels, predictions: Predictions) -> npt.NDArray[np.intp]:
    """Rows (N_predictions,) of LABELS for each prediction, −1 where a prediction has no label."""
    row = {case: i for i, case in enumerate(labels.case_ids)}
    return np.array([row.get(case, -1) for case in predictions.case_ids], dtype=np.intp)


def without_prediction(labels: Labels, predictions: Predictions) -> list[str]:
    """Cases with a label and no prediction, in order."""
    predicted = set(predictions.case_ids)
    return [case for case in labels.case_ids if case not in predicted]
