"""Label and prediction tables, on disk or in memory, checked cell by cell.

LABELS are long (``case_id, annotator, label``) or wide (``case_id,
count:<class>…``); ``annotator`` may be missing if each case has one label.
PREDICTIONS have ``case_id, prob:<class>…`` and optionally
``log_concentration`` or ``disagreement_prob``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from unicodedata import normalize

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from scipy.special import expit

from ml.annotations import Annotations
from ml.tables.reading import (
    TableError,
    TableSource,
    Where,
    fail_at,
    find_repeats,
    number_column,
    open_table,
    place_of,
    positions,
    read_table,
    text_column,
)
from ml.util.arrays import ROW_SUM_TOLERANCE, EqualByValue, FloatArray, IntArray, gini

#: Where the documents say what to do with tied and shared answers.
_TIES = "docs/reference/tables.md, 'Ties and fractional counts'"
#: Distance from 1 of a row's sum that rounding explains (float16).
ROUNDING = 1e-3 + 1e-9
#: Preferred to ``disagreement_prob``, which is empty for images unlike those of a release.
_RAW = "disagreement_prob_raw"
#: Columns that are not handed on as further columns of a table.
_OF_LABELS = {"case_id", "annotator", "label"}
_OF_PREDICTIONS = {"case_id", "log_concentration", "disagreement_prob", _RAW}


@dataclass(frozen=True, eq=False)
class Predictions(EqualByValue):
    """Class and disagreement probabilities (N, K), (N,) of cases.

    ``renormalised`` has the distances (R,) from 1 of the sums of the R rows that were divided by them; None if R = 0.
    """

    case_ids: list[str]
    classes: list[str]
    class_probs: FloatArray
    disagreement_probs: FloatArray
    columns: dict[str, list[Any]] = field(default_factory=dict)
    renormalised: FloatArray | None = None

    def take(self, rows: npt.NDArray[np.intp]) -> "Predictions":
        """Some of the cases."""
        return replace(
            self,
            case_ids=[self.case_ids[row] for row in rows],
            class_probs=self.class_probs[rows],
            disagreement_probs=self.disagreement_probs[rows],
            columns={name: [values[row] for row in rows] for name, values in self.columns.items()},
        )


def read_predictions(source: TableSource, *, complement: str | None = None, renormalise: bool = False) -> Predictions:
    """Read and check a PREDICTIONS table, a file or in memory.

    Args:
        source: the file, or a table in memory.
        complement: name of the other class if there is one column of probabilities only.
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
    """Check a PREDICTIONS table as ``read_predictions`` does."""
    classes = predicted_classes(table, where, binary=complement is not None)
    case_ids = text_column(table, "case_id", where)
    fail_at(where, find_repeats(case_ids), "case_id", "duplicated case", case_ids)
    probs = np.empty((table.num_rows, len(classes)))
    for k, name in enumerate(classes):
        probs[:, k] = number_column(table, f"prob:{name}", where)
        fail_at(where, (probs[:, k] < 0) | (probs[:, k] > 1), f"prob:{name}", "not a probability:", probs[:, k])
    ends = f"prob:{classes[0]} … prob:{classes[-1]}"
    if complement is not None:
        probs, classes = np.concatenate([probs, 1 - probs], axis=1), [*classes, complement]
    sums = probs.sum(axis=1)
    missed = np.abs(sums - 1)
    off, hint = missed > ROW_SUM_TOLERANCE, ""
    if off.any():
        if not renormalise and missed.max() <= ROUNDING:
            hint = "; rounding does that, and --renormalise (renormalise=True) divides such rows by their sum"
        wrong, problem = missed > ROUNDING if renormalise else off, "the row's probabilities do not sum to 1 but to"
        fail_at(where, wrong, ends, problem, sums, hint)
        probs[off] /= sums[off, None]
    stated = _RAW if _RAW in table.column_names else "disagreement_prob"
    if stated in table.column_names:
        dpe = number_column(table, stated, where)
        fail_at(where, (dpe < 0) | (dpe > 1), stated, "not a probability:", dpe)
    else:
        dpe = gini(probs)
        if "log_concentration" in table.column_names:
            dpe = np.asarray(expit(number_column(table, "log_concentration", where)) * dpe, dtype=np.float64)
    further = _further_columns(table, _OF_PREDICTIONS, "count:", "prob:")
    return Predictions(case_ids, classes, probs, dpe, further, missed[off] if off.any() else None)


def _further_columns(table: pa.Table, others: set[str], *prefixes: str) -> dict[str, list[Any]]:
    names = [name for name in table.column_names if name not in others and not name.startswith(prefixes)]
    return table.select(names).to_pydict()  # type: ignore[no-any-return]


def classes_in(table: pa.Table, prefix: str) -> list[str]:
    """Classes of the columns ``count:<class>`` or ``prob:<class>``."""
    return [name.removeprefix(prefix) for name in table.column_names if name.startswith(prefix)]


def predicted_classes(table: pa.Table, where: Where, *, binary: bool = False) -> list[str]:
    """Classes of a PREDICTIONS table, two at least or one."""
    names = classes_in(table, "prob:")
    if not names:
        if classes_in(table, "count:") or {"annotator", "label"} & set(table.column_names):
            raise TableError(f"{where}: this is a table of LABELS, and PREDICTIONS are needed here: were they swapped?")
        raise TableError(f"{where}: there is no column prob:<class>; there are {', '.join(table.column_names)}")
    if binary and len(names) != 1:
        raise TableError(f"{where}: with --binary one column prob:<class> is needed, found {len(names)}")
    if not binary and len(names) < 2:
        hint = "; --binary takes one, whose complement is the other class"
        raise TableError(f"{where}: at least two columns prob:<class> are needed, found {len(names)}{hint}")
    return names


def read_labels(source: TableSource, classes: Sequence[str] | None = None) -> Annotations:
    """Read and check a LABELS table, long or wide.

    Args:
        source: the file, or a table in memory.
        classes: the classes that may occur, in the order of the counts' columns; all that occur, sorted,
            where left out.

    Returns:
        The labels in the order of the rows; histograms of a table without annotators.

    Raises:
        TableError: a missing column or value, an unknown class, a negative or fractional count, a
            duplicated case (wide), or an annotator who labels a case twice (long).
    """
    return check_labels(read_table(source), place_of(source, "LABELS"), classes)


def read_annotations(source: TableSource, classes: Sequence[str] | None = None) -> Annotations:
    """Read a LABELS table with annotators, a file or in memory.

    Args:
        source: the file, or a table in memory.
        classes: the classes that may occur, in their order; all that occur, sorted, if left out.

    Returns:
        The labels in the order of their cases.

    Raises:
        TableError: a table that cannot be used, that names no annotators, or of several findings.

    >>> labels = read_annotations({"case_id": ["a", "a"], "annotator": ["r", "s"], "label": ["x", "y"]})
    >>> labels.annotators, labels.classes, labels.counts().tolist()
    (('r', 's'), ('x', 'y'), [[1, 1]])
    """
    table, place = open_table(source, "LABELS")
    if "finding" in table.column_names:
        raise TableError(f"{place}: the table has several findings: take one at a time")
    labels = check_labels(table, place, classes)
    if not labels.annotators:
        raise TableError(f"{place}: a column 'annotator' is needed: it names who gave each label")
    return labels.by_case()


def classes_of_labels(table: pa.Table, where: Where) -> list[str]:
    """Classes of a LABELS table: sorted, or in the order of its columns."""
    return classes_in(table, "count:") or sorted(set(text_column(table, "label", where)))


def check_labels(table: pa.Table, where: Where, classes: Sequence[str] | None = None) -> Annotations:
    """Check a LABELS table as ``read_labels`` does."""
    case_ids = text_column(table, "case_id", where)
    if counted := classes_in(table, "count:"):
        return _wide_labels(table, case_ids, counted, where, classes)
    named = "annotator" in table.column_names
    if not named:
        _require_one_label_each(table, case_ids, where)
    labels = text_column(table, "label", where)
    class_names = sorted(set(labels)) if classes is None else list(classes)
    label = positions(labels, class_names)
    unknown = label < 0
    if unknown.any():
        hint = spelled_alike(labels[int(unknown.argmax())], class_names)
        fail_at(where, unknown, "label", f"unknown class (known: {', '.join(class_names)}):", labels, hint)
    further = _further_columns(table, _OF_LABELS, "count:")
    if not named:
        return _histograms(case_ids, class_names, np.eye(len(class_names), dtype=np.int64)[label], further)
    names, cases = text_column(table, "annotator", where), tuple(dict.fromkeys(case_ids))
    annotators = tuple(sorted(set(names)))
    case, annotator = positions(case_ids, cases), positions(names, annotators)
    problem = f"labels this case twice (tied answers: {_TIES}):"
    fail_at(where, find_repeats((case * len(annotators) + annotator).tolist()), "annotator", problem, names)
    return Annotations(
        *(case, annotator, label, len(cases), len(annotators), len(class_names), cases, annotators, tuple(class_names)),
        columns=further,
    )


def _require_one_label_each(table: pa.Table, case_ids: list[str], where: Where) -> None:
    """Refuse a long table without annotators in which a case has several labels."""
    if classes_in(table, "prob:"):
        raise TableError(f"{where}: this is a table of PREDICTIONS, and LABELS are needed here: were they swapped?")
    if "label" not in table.column_names or len(set(case_ids)) < len(case_ids):
        raise TableError(
            f"{where}: column 'annotator' is missing; there are {', '.join(table.column_names)}. Where annotators "
            "are not known, give one row per case: with a label, or with columns count:<class>"
        )


def _histograms(
    case_ids: list[str], classes: Sequence[str], counts: IntArray, columns: dict[str, list[Any]]
) -> Annotations:
    """Labels by annotators without names."""
    none = np.empty(0, dtype=np.int64)
    numbers = (np.arange(len(case_ids)), none, none, len(case_ids), 0, len(classes))
    return Annotations(*numbers, case_ids=tuple(case_ids), classes=tuple(classes), histograms=counts, columns=columns)


def spelled_alike(name: str, names: Sequence[str]) -> str:
    """Hint at a name that differs only in ways hard to see."""
    for other in names:
        if other.strip() == name.strip():
            return f"; it differs from {other!r} in spaces"
        if normalize("NFC", other) == normalize("NFC", name):
            return f"; it differs from {other!r} in how accents are stored (Unicode NFC and NFD)"
        if other.strip().casefold() == name.strip().casefold():
            return f"; it differs from {other!r} in capitals"
    return ""


def _wide_labels(
    table: pa.Table, case_ids: list[str], codes: list[str], where: Where, classes: Sequence[str] | None
) -> Annotations:
    fail_at(where, find_repeats(case_ids), "case_id", "duplicated case", case_ids)
    class_names = codes if classes is None else list(classes)
    counts = np.zeros((len(case_ids), len(class_names)), dtype=np.int64)
    for name in codes:
        values = number_column(table, f"count:{name}", where)
        fail_at(where, values < 0, f"count:{name}", "not a count:", values)
        problem = f"not a whole number (fractional counts: {_TIES}):"
        fail_at(where, values != np.floor(values), f"count:{name}", problem, values)
        if name in class_names:
            counts[:, class_names.index(name)] = values.astype(np.int64)
        elif values.any():  # another finding's class has no label here
            hint = spelled_alike(name, class_names)
            raise TableError(f"{where}: column count:{name}: unknown class (known: {', '.join(class_names)}){hint}")
    return _histograms(case_ids, class_names, counts, _further_columns(table, _OF_LABELS, "count:"))


def case_column(labels: Annotations, name: str, where: Where, *, blank: bool = False) -> npt.NDArray[Any]:
    """A further column of LABELS, one value per case (N,), which may be blank only if told so."""
    if name not in labels.columns:
        others = ", ".join(labels.columns) or "only the columns that every table of LABELS has"
        raise TableError(f"{where}: column {name!r} is missing; there are {others}")
    values = ["" if blank and value is None else value for value in labels.columns[name]]
    missing = [value is None or not (blank or str(value).strip()) for value in values]
    fail_at(where, missing, name, "the value is missing:", values)
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    first = cells[np.unique(labels.case, return_index=True)[1]]
    problem = "must be constant within a case, but differs from its first row:"
    fail_at(where, first[labels.case] != cells, name, problem, values)
    return np.array(first.tolist())
