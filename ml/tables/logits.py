"""Outputs of a model as a table: ``case_id``, ``logit:<class>`` or ``prob:<class>``, and ``feature:<name>``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ml.tables.files import ROUNDING, classes_in
from ml.tables.reading import (
    Place,
    TableError,
    TableSource,
    fail_at,
    find_repeats,
    number_column,
    open_table,
    positions,
    text_column,
)
from ml.util.arrays import FloatArray, refuse_probabilities

#: What the columns of a table, or the output of a network, contain.
Output = Literal["logits", "probabilities"]
LOGIT, PROB, FEATURE = "logit:", "prob:", "feature:"
#: Probability below which a logarithm is cut off.
LEAST_PROBABILITY = 1e-12


@dataclass(frozen=True)
class OutputTable:
    """Logits (N, K) and features (N, D) of cases, by name."""

    place: Place
    case_ids: list[str]
    classes: list[str]
    logits: FloatArray  # logarithms if the columns are probabilities
    output: Output
    features: FloatArray  # D = 0 without any
    feature_names: list[str]

    def named_features(self, names: Sequence[str]) -> FloatArray:
        """Features (N, D) in the order of names; one that is equal for all cases without any."""
        lacking = [name for name in names if name not in self.feature_names]
        if lacking:
            ends = f"feature:{names[0]} … feature:{names[-1]}"
            raise TableError(f"{self.place}: feature:{lacking[0]} is missing; the release needs {len(names)} ({ends})")
        if not names:
            return np.zeros((len(self.case_ids), 1))
        # row after row, as a network gives them: products then round alike
        return np.ascontiguousarray(self.features[:, [self.feature_names.index(name) for name in names]])

    def take(self, case_ids: Sequence[str]) -> "OutputTable":
        """Rows of cases that the table has."""
        rows = positions(case_ids, self.case_ids)
        return replace(self, case_ids=list(case_ids), logits=self.logits[rows], features=self.features[rows])


def log_probabilities(probs: Any) -> FloatArray:
    """Logarithms (N, K) of probabilities, finite at zero."""
    return np.asarray(np.log(np.clip(probs, LEAST_PROBABILITY, 1)))


def read_outputs(
    source: TableSource, features: TableSource | None = None, classes: Sequence[str] | None = None
) -> OutputTable:
    """Read a table of logits or probabilities.

    Args:
        source: ``case_id``, a column ``logit:<class>`` (or ``prob:<class>``) per class, and optionally
            ``feature:<name>``.
        features: another table with ``case_id`` and ``feature:<name>``, in place of such columns.
        classes: the classes in their order; as the columns stand, if left out.

    Raises:
        TableError: a missing column or case, another class, a duplicated case, or a value that is no finite number or
            no probability.
    """
    table, place = open_table(source, "LOGITS")
    cases = _cases(table, place)
    prefix = LOGIT if classes_in(table, LOGIT) or not classes_in(table, PROB) else PROB
    named = classes_in(table, prefix)
    if len(named) < 2:
        raise TableError(
            f"{place}: at least two columns logit:<class> (or prob:<class>) are needed, found {len(named)}; there are "
            f"{', '.join(table.column_names)}"
        )
    order = named if classes is None else list(classes)
    if set(order) != set(named):
        raise TableError(f"{place}: has the classes {', '.join(named)}, and {', '.join(order)} are expected")
    values = np.stack([number_column(table, prefix + name, place) for name in order], axis=1)
    if prefix == PROB:
        _require_probabilities(values, place, order)
        values = log_probabilities(values)
    else:
        try:
            refuse_probabilities(values)
        except ValueError as exc:
            raise TableError(f"{place}: the columns logit:<class> are probabilities: name them prob:<class>") from exc
    hidden, names = _features(table, place, cases) if features is None else _other_features(features, cases)
    return OutputTable(place, cases, order, values, "logits" if prefix == LOGIT else "probabilities", hidden, names)


def _cases(table: pa.Table, place: Place) -> list[str]:
    cases = text_column(table, "case_id", place)
    fail_at(place, find_repeats(cases), "case_id", "duplicated case", cases)
    return cases


def _require_probabilities(values: FloatArray, place: Place, classes: list[str]) -> None:
    for k, name in enumerate(classes):
        wrong = (values[:, k] < 0) | (values[:, k] > 1)
        fail_at(place, wrong, PROB + name, "not a probability:", values[:, k])
    sums = values.sum(axis=1)
    ends = f"{PROB}{classes[0]} … {PROB}{classes[-1]}"
    fail_at(place, np.abs(sums - 1) > ROUNDING, ends, "the row's probabilities do not sum to 1 but to", sums)


def _features(table: pa.Table, place: Place, cases: list[str]) -> tuple[FloatArray, list[str]]:
    names = classes_in(table, FEATURE)
    columns = [number_column(table, FEATURE + name, place) for name in names]
    return (np.stack(columns, axis=1) if columns else np.empty((len(cases), 0))), names


def _other_features(source: TableSource, cases: list[str]) -> tuple[FloatArray, list[str]]:
    table, place = open_table(source, "FEATURES")
    values, names = _features(table, place, _cases(table, place))
    if not names:
        raise TableError(f"{place}: there is no column feature:<name>; there are {', '.join(table.column_names)}")
    rows = positions(cases, text_column(table, "case_id", place))
    lacking = [case for case, row in zip(cases, rows.tolist(), strict=True) if row < 0]
    if lacking:
        raise TableError(f"{place}: case {lacking[0]!r} has outputs but no features, {len(lacking)} in all")
    return values[rows], names
