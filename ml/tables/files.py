"""Label and prediction tables, on disk (CSV or Parquet by extension) or in memory, checked cell by cell.

LABELS come long (``case_id, annotator, label``) or wide (``case_id, count:<class>…``); PREDICTIONS have
``case_id, prob:<class>…`` and optionally ``log_concentration`` or ``disagreement_prob``. Columns are found by name,
in any order. Every error names the file or table, the first offending row (as people count lines of a file; from 0
in memory, as data frames count) and column, and how many there are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

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
    """A table that cannot be used; the message names file, row and column.

    >>> read_labels({"case_id": ["a", "b"], "count:x": [2, -1]})
    Traceback (most recent call last):
        ...
    ml.tables.files.TableError: LABELS: row 1, column count:x: not a count: -1.0, 1 in all
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


def read_table(source: TableSource) -> pa.Table:
    """Read a CSV or Parquet file, or take a table in memory; identifiers and labels in files stay text.

    Raises:
        TableError: no such file, another extension, a broken file, no table, or two columns of one name.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        table, name = _read_file(path), str(path)
    else:
        table, name = _from_memory(source), type(source).__name__
    repeated = sorted({column for column in table.column_names if table.column_names.count(column) > 1})
    if repeated:
        raise TableError(f"{name}: there are several columns {repeated[0]!r}")
    return table


def _read_file(path: Path) -> pa.Table:
    _check_file(path)
    try:
        if path.suffix.lower() == ".parquet":
            return parquet.read_table(path)
        return csv.read_csv(path, convert_options=_CONVERT)
    except (pa.ArrowInvalid, OSError) as exc:
        raise TableError(f"{path}: {exc}") from exc


def _from_memory(source: ArrowTable | Mapping[str, Any]) -> pa.Table:
    try:
        table = pa.table(dict(source) if isinstance(source, Mapping) else source)
        # so that not even a tie between classes depends on where a column stands
        return table.select(sorted(range(table.num_columns), key=table.column_names.__getitem__))
    except (pa.ArrowException, TypeError, ValueError) as exc:
        kinds = "a file name, a mapping of columns, or a table of pandas, polars or pyarrow"
        raise TableError(f"{type(source).__name__} cannot be read as a table ({kinds}): {exc}") from exc


def place_of(source: TableSource, name: str) -> Path:
    """What messages call a table: its file, or this name where it is in memory."""
    return Path(source) if isinstance(source, str | Path) else Path(name)


def read_batches(path: Path, rows: int) -> Iterator[pa.Table]:
    """Read a CSV or Parquet file in batches of about that many rows, for files larger than memory.

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


def fail_at(path: Path, bad: npt.ArrayLike, column: str, problem: str, values: Sequence[Any]) -> None:
    """Raise a ``TableError`` naming the first true row of ``bad``, if there is one.

    Raises:
        TableError: ``bad`` is true somewhere.
    """
    rows = np.flatnonzero(bad)
    if rows.size:
        first = int(rows[0])
        line = first + {".csv": 2, ".parquet": 1}.get(path.suffix.lower(), 0)
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


def read_predictions(source: TableSource) -> Predictions:
    """Read and check a PREDICTIONS table, a file or in memory.

    Raises:
        TableError: a missing column, a duplicated case, a value that is no probability, or a row of
            probabilities that does not sum to one within 1e-6.
    """
    return check_predictions(read_table(source), place_of(source, "PREDICTIONS"))


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
    codes = [name.removeprefix("count:") for name in table.column_names if name.startswith("count:")]
    known = codes if classes is None else list(classes)
    unknown = [name for name in codes if name not in known]
    if unknown:
        raise TableError(f"{path}: column count:{unknown[0]}: unknown class (known: {', '.join(known)})")
    counts = np.zeros((len(case_ids), len(known)), dtype=np.int64)
    for name in codes:
        values = number_column(table, f"count:{name}", path)
        bad = (values < 0) | (values != np.floor(values))
        fail_at(path, bad, f"count:{name}", "not a count:", values.tolist())
        counts[:, known.index(name)] = values.astype(np.int64)
    return Labels(case_ids, known, counts, np.arange(len(case_ids)), _further_columns(table))


def _further_columns(table: pa.Table) -> dict[str, list[Any]]:
    names = [n for n in table.column_names if n not in {"case_id", "annotator", "label"}]
    return {name: table.column(name).to_pylist() for name in names if not name.startswith("count:")}


def case_column(labels: Labels, name: str, path: Path) -> npt.NDArray[Any]:
    """A further column of LABELS, one value per case (N,).

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
