"""Data frames as (N, K) arrays, with columns matched by class name.

No package of data frames is imported. Columns 0 … K − 1 in this order are no
names.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt


def _keys(values: Any) -> list[Any] | None:
    if isinstance(values, Mapping):
        return list(values)
    if hasattr(values, "collect_schema") and not hasattr(values, "to_numpy"):
        raise ValueError(f"a {type(values).__name__} has not been computed yet: collect() it first")
    # `columns` of pyarrow are values, so `column_names` come first
    for names in (
        getattr(values, "column_names", None),
        getattr(values, "columns", None),
        getattr(getattr(values, "dtype", None), "names", None),
    ):
        if names is not None:
            keys = list(names)
            return None if keys == list(range(len(keys))) else keys
    return None


def column_names(values: Any) -> list[str] | None:
    """Names of a table's columns; None of an array.

    >>> column_names({"x": [1], "y": [0]}), column_names([[1, 0]])
    (['x', 'y'], None)
    """
    keys = _keys(values)
    return None if keys is None else [str(key) for key in keys]


def has_cases(source: Any) -> bool:
    """Whether something is a file or a table whose rows are named by ``case_id``."""
    return isinstance(source, str | Path) or "case_id" in (_keys(source) or ())


def refuse_names(values: Any, what: str) -> None:
    """Refuse a table where nothing says in which order its columns belong."""
    if type(values) is np.ndarray and values.dtype.names is None:
        return
    for table in _tables(values):
        names = column_names(table)
        if names is not None:
            raise ValueError(
                f"{what} has named columns ({_shown(names)}), and nothing here to match the names with: "
                "pass an array with the classes in the order of the others"
            )


def by_class(
    label_counts: Any,
    class_probs: Any,
    classes: Sequence[str] | None = None,
    names: tuple[str, str] = ("class_probs", "prob:"),
) -> tuple[npt.ArrayLike, npt.ArrayLike, list[str] | None]:
    """Bring label counts and class probabilities into one class order.

    That is the order of ``classes``, or of the names, so that nothing depends on where a column stands; a prefix that
    all columns have is no part of the names.

    Raises:
        ValueError: names that differ, stand twice or are missing on one side, or rows that are named differently.

    >>> by_class({"x": [2], "y": [0]}, {"prob:y": [0.1], "prob:x": [0.9]})
    (array([[2, 0]]), array([[0.9, 0.1]]), ['x', 'y'])
    """
    both = label_counts, class_probs
    if set(map(type, both)) == {np.ndarray} and not (label_counts.dtype.names or class_probs.dtype.names):
        return *both, None if classes is None else list(classes)
    what, prefix = names
    counted, predicted = _classes(label_counts, "count:", "label_counts"), _classes(class_probs, prefix, what)
    if counted is None and predicted is None:
        return label_counts, class_probs, None if classes is None else list(classes)
    if classes is None and (counted is None or predicted is None):
        named, unnamed = (what, "label_counts") if counted is None else ("label_counts", what)
        raise ValueError(
            f"the columns of {named} are named ({_shown(counted or predicted or [])}) and those of {unnamed} are not: "
            "name both, or pass two arrays with the classes in one order"
        )
    order = list(classes) if classes is not None else sorted(predicted or [])
    return (
        _in_order(label_counts, counted, order, "label_counts"),
        _in_order(class_probs, predicted, order, what),
        order,
    )


def values_of(values: Any, what: str) -> npt.ArrayLike:
    """Columns of a table as an array (N, K); arrays as they are."""
    names = _classes(values, "", what)
    return values if names is None else _in_order(values, names, names, what)


def same_rows(**values: Any) -> None:
    """Refuse data frames with different row names."""
    # A frame with rows 0 … N − 1 differs from one with names: it may be shuffled.
    if set(map(type, values.values())) <= {np.ndarray, NoneType}:
        return
    named = list(_named_rows(values))
    if all(_are_numbered(names) for _, names in named):
        return
    for (first, names), (second, others) in pairwise(named):
        if not np.array_equal(names, others):
            raise ValueError(
                f"the rows of {first} and {second} have different names (pandas index) or another order, first at "
                f"{_first_difference(names, others)}: bring them into one order, or drop the names with "
                "reset_index(drop=True)"
            )


def refuse_row_names(**values: Any) -> None:
    """Refuse data frames with named rows, where none are matched."""
    for what, names in _named_rows(values):
        if not _are_numbered(names):
            raise ValueError(
                f"the rows of {what} have names (pandas index) or another order, and nothing here to match the names "
                "with: bring all rows into one order, and drop the names with reset_index(drop=True)"
            )


def refuse_tables(**values: Any) -> None:
    """Refuse tables in place of arrays."""
    for what, tables in values.items():
        for table in _tables(tables):
            if not isinstance(table, np.ndarray) and (_keys(table) is not None or _index(table) is not None):
                raise ValueError(f"{what} must be an array, got {type(table).__name__}: pass its values (to_numpy())")


def _tables(values: Any) -> list[Any]:
    """The members of a list of tables, or the table itself."""
    return list(values) if isinstance(values, list | tuple) else [values]


def _named_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    for what, tables in values.items():
        for table in _tables(tables):
            index = _index(table)
            if index is not None:
                yield what, index


def _index(table: Any) -> npt.NDArray[Any] | None:
    index = getattr(table, "index", None)
    return None if index is None or callable(index) else np.asarray(index)  # `index` of lists is a method


def _are_numbered(names: npt.NDArray[Any]) -> bool:
    return np.array_equal(names, np.arange(len(names)))


def _first_difference(names: npt.NDArray[Any], others: npt.NDArray[Any]) -> str:
    rows = enumerate(zip_longest(list(names), list(others), fillvalue="nothing"))
    different = (f"row {row} ({name} and {other})" for row, (name, other) in rows if name != other)
    return next(different, f"their types ({names.dtype} and {others.dtype})")


def _classes(values: Any, prefix: str, what: str) -> list[str] | None:
    """Class names of columns, without a shared prefix."""
    names = column_names(values)
    if names is None:
        return None
    if all(name.startswith(prefix) for name in names):
        names = [name.removeprefix(prefix) for name in names]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{what} has several columns {repeated[0]!r}")
    return names


def _in_order(values: Any, names: list[str] | None, order: list[str], what: str) -> npt.ArrayLike:
    """Columns in the order of the classes; an array as it is."""
    if names is None:
        return np.asarray(values)
    unknown, missing = sorted(set(names) - set(order)), sorted(set(order) - set(names))
    if unknown or missing:
        parts = [f"{word} {_shown(some)}" for word, some in (("unknown", unknown), ("missing", missing)) if some]
        hint = "; tables with case_id are for secondread.evaluate" if "case_id" in unknown else ""
        raise ValueError(f"the columns of {what} are not the classes: {', '.join(parts)}{hint}")
    keys = dict(zip(names, _keys(values) or [], strict=True))
    return np.stack([_numbers(values, keys[name], what) for name in order], axis=1)


def _numbers(values: Any, key: Any, what: str) -> npt.NDArray[Any]:
    try:
        column = np.asarray(values[key])
        # nullable columns of pandas are objects
        numbers = column.astype(np.float64) if column.dtype.kind in "OUS" else column
    except (TypeError, ValueError) as exc:
        raise ValueError(f"column {str(key)!r} of {what} cannot be read as numbers: {exc}") from exc
    if numbers.ndim != 1 or numbers.dtype.kind not in "biuf":
        raise ValueError(
            f"column {str(key)!r} of {what} must have one number per row, got {column.dtype} {column.shape}"
        )
    return numbers


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
