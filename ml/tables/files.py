"""Label and prediction tables on disk: CSV or Parquet by extension, checked cell by cell.

LABELS come long (``case_id, annotator, label``) or wide (``case_id, count:<class>…``); PREDICTIONS have
``case_id, prob:<class>…`` and optionally ``log_concentration`` or ``disagreement_prob``. Every error names
the file, the first offending row (as a person counts lines in the file) and column, and how many there are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import csv, parquet
from scipy.special import expit

from ml.arrays import ROW_SUM_TOLERANCE, FloatArray, IntArray
from ml.distributions.families import gini

_TEXT_COLUMNS = ("case_id", "annotator", "label", "file", "patient", "partition")
_CONVERT = csv.ConvertOptions(
    column_types=dict.fromkeys(_TEXT_COLUMNS, pa.string()), strings_can_be_null=True, quoted_strings_can_be_null=False
)


class TableError(ValueError):
    """A table that cannot be used; the message names file, row and column."""


@dataclass(frozen=True)
class Labels:
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


@dataclass(frozen=True)
class Predictions:
    """Predictions of cases: probabilities (N, K), disagreement probabilities (N,), further columns of the table."""

    case_ids: list[str]
    classes: list[str]
    class_probs: FloatArray
    disagreement_probs: FloatArray
    columns: dict[str, list[Any]] = field(default_factory=dict)


def read_table(path: Path) -> pa.Table:
    """Read a CSV or Parquet file; identifiers and labels stay text.

    Raises:
        TableError: no such file, another extension, or a broken file.
    """
    _check_file(path)
    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_table(path)
        return csv.read_csv(path, convert_options=_CONVERT)
    except (pa.ArrowInvalid, OSError) as exc:
        raise TableError(f"{path}: {exc}") from exc


def read_batches(path: Path, rows: int) -> Iterator[pa.Table]:
    """Read a CSV or Parquet file in batches of about so many rows, for files larger than memory.

    Raises:
        TableError: as ``read_table``.
    """
    _check_file(path)
    try:
        if path.suffix.lower() == ".parquet":
            with parquet.ParquetFile(path) as file:
                yield from (pa.Table.from_batches([batch]) for batch in file.iter_batches(rows))
        else:
            # about 200 characters a row; Arrow cuts at whole rows
            options = csv.ReadOptions(block_size=200 * rows)
            with csv.open_csv(path, read_options=options, convert_options=_CONVERT) as reader:
                yield from (pa.Table.from_batches([batch]) for batch in reader)
    except (pa.ArrowInvalid, OSError) as exc:
        raise TableError(f"{path}: {exc}") from exc


def _check_file(path: Path) -> None:
    if path.suffix.lower() not in {".csv", ".parquet"}:
        raise TableError(f"{path}: the extension must be .csv or .parquet")
    if not path.is_file():
        raise TableError(f"{path}: no such file")


def write_table(columns: dict[str, Any], path: Path) -> None:
    """Write columns as CSV or Parquet, by extension.

    Raises:
        TableError: another extension.
    """
    table = pa.table(columns)
    if path.suffix.lower() == ".parquet":
        parquet.write_table(table, path)
    elif path.suffix.lower() == ".csv":
        csv.write_csv(table, path)
    else:
        raise TableError(f"{path}: the extension must be .csv or .parquet")


def fail_at(path: Path, bad: npt.ArrayLike, column: str, problem: str, values: Sequence[Any]) -> None:
    """Raise a ``TableError`` naming the first true row of ``bad``, if there is one.

    Raises:
        TableError: ``bad`` is true somewhere.
    """
    rows = np.flatnonzero(bad)
    if rows.size:
        first = int(rows[0])
        line = first + 2 if path.suffix.lower() == ".csv" else first + 1
        raise TableError(f"{path}: row {line}, column {column}: {problem} {values[first]!r}, {rows.size} in all")


def text_column(table: pa.Table, name: str, path: Path) -> list[str]:
    """Values of a required text column, none empty.

    Raises:
        TableError: the column is missing, or a value is.
    """
    if name not in table.column_names:
        raise TableError(f"{path}: column {name!r} is missing; there are {', '.join(table.column_names)}")
    values = table.column(name).cast(pa.string()).to_pylist()
    fail_at(path, [not value for value in values], name, "the value is missing:", values)
    return [str(value) for value in values]


def number_column(table: pa.Table, name: str, path: Path) -> FloatArray:
    """Values of a numeric column as float64, none missing.

    Raises:
        TableError: text, a missing value, NaN or infinity.
    """
    column = table.column(name)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        values = column.cast(pa.string()).to_pylist()
        fail_at(path, np.array([not _is_number(v) for v in values], dtype=bool), name, "not a number:", values)
        return np.array([float(v) for v in values], dtype=np.float64)
    numbers = np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    fail_at(path, ~np.isfinite(numbers), name, "not a finite number:", column.to_pylist())
    return numbers


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _repeated(values: Sequence[Any]) -> list[bool]:
    """Whether each value stood before."""
    first = {value: i for i, value in reversed(list(enumerate(values)))}
    return [first[value] != i for i, value in enumerate(values)]


def read_predictions(path: Path) -> Predictions:
    """Read and check a PREDICTIONS table.

    Raises:
        TableError: a missing column, a duplicated case, a value that is no probability, or a row of
            probabilities that does not sum to one within 1e-6.
    """
    return check_predictions(read_table(path), path)


def check_predictions(table: pa.Table, path: Path) -> Predictions:
    """Check a PREDICTIONS table, or a batch of one; errors as in ``read_predictions``.

    Raises:
        TableError: fewer than two columns of probabilities.
    """
    case_ids = text_column(table, "case_id", path)
    fail_at(path, _repeated(case_ids), "case_id", "duplicated case", case_ids)
    names = [name for name in table.column_names if name.startswith("prob:")]
    if len(names) < 2:
        raise TableError(f"{path}: at least two columns prob:<class> are needed, found {len(names)}")
    probs = np.stack([number_column(table, name, path) for name in names], axis=1)
    for k, name in enumerate(names):
        fail_at(path, (probs[:, k] < 0) | (probs[:, k] > 1), name, "not a probability:", probs[:, k].tolist())
    sums = probs.sum(axis=1)
    problem = "the row's probabilities do not sum to 1 but to"
    fail_at(path, np.abs(sums - 1) > ROW_SUM_TOLERANCE, f"{names[0]} … {names[-1]}", problem, sums.tolist())
    dpe = _disagreement(table, path, probs)
    known = {"case_id", "log_concentration", "disagreement_prob", *names}
    further = {name: table.column(name).to_pylist() for name in table.column_names if name not in known}
    return Predictions(case_ids, [name.removeprefix("prob:") for name in names], probs, dpe, further)


def _disagreement(table: pa.Table, path: Path, probs: FloatArray) -> FloatArray:
    if "disagreement_prob" in table.column_names:
        dpe = number_column(table, "disagreement_prob", path)
        fail_at(path, (dpe < 0) | (dpe > 1), "disagreement_prob", "not a probability:", dpe.tolist())
        return dpe
    if "log_concentration" in table.column_names:
        a = number_column(table, "log_concentration", path)
        return np.asarray(expit(a) * gini(probs), dtype=np.float64)
    return gini(probs)


def read_labels(path: Path, classes: Sequence[str] | None = None) -> Labels:
    """Read and check a LABELS table, long or wide.

    Args:
        path: the file.
        classes: the classes that may occur, in the order of the counts' columns; all that occur, sorted,
            where left out.

    Raises:
        TableError: a missing column or value, an unknown class, a negative or fractional count, a
            duplicated case (wide), or an annotator who labels a case twice (long).
    """
    return check_labels(read_table(path), path, classes)


def check_labels(table: pa.Table, path: Path, classes: Sequence[str] | None = None) -> Labels:
    """Check a LABELS table, or a batch of one; arguments and errors as in ``read_labels``."""
    case_ids = text_column(table, "case_id", path)
    if any(name.startswith("count:") for name in table.column_names):
        return _wide_labels(table, case_ids, path, classes)
    annotators = text_column(table, "annotator", path)
    labels = text_column(table, "label", path)
    known = sorted(set(labels)) if classes is None else list(classes)
    number = {name: k for k, name in enumerate(known)}
    problem = f"unknown class (known: {', '.join(known)}):"
    fail_at(path, [label not in number for label in labels], "label", problem, labels)
    pairs = list(zip(case_ids, annotators, strict=True))
    fail_at(path, _repeated(pairs), "annotator", "labels this case twice:", annotators)
    order = {case: i for i, case in enumerate(dict.fromkeys(case_ids))}
    rows = np.array([order[case] for case in case_ids], dtype=np.intp)
    counts = np.zeros((len(order), len(known)), dtype=np.int64)
    numbers = np.array([number[label] for label in labels], dtype=np.int64)
    np.add.at(counts, (rows, numbers), 1)
    return Labels(list(order), known, counts, rows, _further_columns(table), annotators, numbers)


def _wide_labels(table: pa.Table, case_ids: list[str], path: Path, classes: Sequence[str] | None) -> Labels:
    fail_at(path, _repeated(case_ids), "case_id", "duplicated case", case_ids)
    found = [name.removeprefix("count:") for name in table.column_names if name.startswith("count:")]
    known = found if classes is None else list(classes)
    unknown = [name for name in found if name not in known]
    if unknown:
        raise TableError(f"{path}: column count:{unknown[0]}: unknown class (known: {', '.join(known)})")
    counts = np.zeros((len(case_ids), len(known)), dtype=np.int64)
    for name in found:
        values = number_column(table, f"count:{name}", path)
        bad = (values < 0) | (values != np.floor(values))
        fail_at(path, bad, f"count:{name}", "not a count:", values.tolist())
        counts[:, known.index(name)] = values.astype(np.int64)
    return Labels(case_ids, known, counts, np.arange(len(case_ids)), _further_columns(table))


def _further_columns(table: pa.Table) -> dict[str, list[Any]]:
    names = [n for n in table.column_names if n not in {"case_id", "annotator", "label"}]
    return {name: table.column(name).to_pylist() for name in names if not name.startswith("count:")}


def case_column(labels: Labels, name: str, path: Path) -> npt.NDArray[Any]:
    """A further column of LABELS, one value a case (N,).

    Raises:
        TableError: no such column, a missing value, or one that varies within a case.
    """
    if name not in labels.columns:
        raise TableError(f"{path}: column {name!r} is missing; there are {', '.join(labels.columns) or 'none'}")
    values = labels.columns[name]
    fail_at(path, [value is None for value in values], name, "the value is missing:", values)
    per_case = dict(zip(reversed(labels.rows.tolist()), reversed(values), strict=True))
    varies = [per_case[row] != value for row, value in zip(labels.rows.tolist(), values, strict=True)]
    fail_at(path, varies, name, "must be constant within a case, but differs from its first row:", values)
    return np.array([per_case[row] for row in range(len(labels.case_ids))])


def align(labels: Labels, predictions: Predictions, path: Path) -> npt.NDArray[np.intp]:
    """Rows (N_predictions,) of LABELS for each prediction, −1 where a prediction has no label.

    Raises:
        TableError: a label without a prediction.
    """
    row = {case: i for i, case in enumerate(labels.case_ids)}
    known = set(predictions.case_ids)
    stray = [case for case in labels.case_ids if case not in known]
    if stray:
        raise TableError(f"{path}: case {stray[0]!r} has a label but no prediction, {len(stray)} in all")
    return np.array([row.get(case, -1) for case in predictions.case_ids], dtype=np.intp)
