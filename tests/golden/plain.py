"""Results of the library as JSON values: dataclasses without what is as ever, long arrays in short."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Numbers of an array that are kept as they are.
_WHOLE = 3


def plain(value: Any) -> Any:
    """Results as JSON values: a dataclass without fields that are None or as they are by default, an array in short."""
    if is_dataclass(value):
        kept = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: plain(part) for name, part in kept.items() if part is not None and not is_usual(name, part)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return array(value)
    return value.item() if isinstance(value, np.generic) else value


def is_usual(name: str, value: Any) -> bool:
    """Whether a field of an estimate is as it nearly always is, or means something for changes only."""
    return name == "p_of_fall" or (name in {"clipped", "singleton_mass"} and not value)


def array(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A long array: its first numbers, its sum, and one in which every place weighs another number."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    whole = {"shape": list(values.shape), "first": flat[:_WHOLE].tolist()}
    return whole | {"sums": totals(flat)}


def totals(values: npt.ArrayLike) -> list[float]:
    """The sum of values, and one in which every place weighs another number, no larger than two."""
    flat = np.asarray(values, dtype=np.float64)
    return [float(flat.sum()), float(flat @ (1 + np.arange(flat.size) % 97 / 97))]


def attempt(function: Callable[[], Any]) -> Any:
    """What a function gives, or that it refuses."""
    try:
        return plain(function())
    except ValueError:
        return "refused"
