"""Dataclasses as JSON documents and back, by their fields and type hints.

A float that is not finite is null. An object with ``to_dict`` or ``from_dict``
is left to these.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from math import isfinite, nan
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

_T = TypeVar("_T")
#: Kinds of array that are read as each kind; null makes objects.
_KINDS = {"f": "iufO", "i": "iu", "u": "iu"}
_KEY, _LEFT_OUT = "key of documents", "left out of documents"
#: Metadata of a field that no document has; it needs a default.
LEFT_OUT: Mapping[str, Any] = MappingProxyType({_LEFT_OUT: True})


def named(key: str) -> Mapping[str, Any]:
    """Metadata of a field with another key in documents."""
    return MappingProxyType({_KEY: key})


def to_document(value: Any) -> dict[str, Any]:
    """JSON values of a dataclass, by its fields.

    Raises:
        ValueError: a field has no JSON form.

    >>> from dataclasses import dataclass, field
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: float
    ...     tags: tuple[str, ...] = field(default=(), metadata=named("labels"))
    >>> to_document(Point(float("nan"), ("a", "b")))
    {'x': None, 'labels': ['a', 'b']}
    >>> from_document(Point, {"x": 1})
    Point(x=1.0, tags=())
    """
    cls: Any = type(value)
    return {_key(field): _written(getattr(value, field.name), field.name) for field in _fields(cls)}


class AsDocument(Generic[_T]):
    """A dataclass that can be written as a JSON document of a type."""

    def to_dict(self) -> _T:
        """Return it as JSON values: NaN becomes None."""
        return cast(_T, to_document(self))


def from_document(cls: type[_T], document: Any) -> _T:
    """Read back what ``to_document`` wrote; keys of no field are left alone."""
    value: _T = _read_fields(cls, document, cls.__name__)
    return value


@cache
def _fields(cls: Any) -> tuple[Field[Any], ...]:
    return tuple(field for field in fields(cls) if _LEFT_OUT not in field.metadata)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _key(field: Field[Any]) -> str:
    return str(field.metadata.get(_KEY, field.name))


def _written(value: Any, name: str) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        plain = value.dtype.kind != "f" or bool(np.isfinite(value).all())
        return value.tolist() if plain else _written(value.tolist(), name)
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): _written(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_written(inner, name) for inner in value]
    if is_dataclass(value):
        return to_document(value)
    raise ValueError(f"{name}: a {type(value).__name__} has no JSON form")


def _read_fields(cls: Any, document: Any, where: str) -> Any:
    if not isinstance(document, Mapping):
        raise ValueError(f"{where}: must be an object, got {type(document).__name__}")
    present = [field for field in _fields(cls) if _key(field) in document]
    required = [field for field in _fields(cls) if field.default is MISSING and field.default_factory is MISSING]
    missing = [_key(field) for field in required if field not in present]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} missing")
    hints = _hints(cls)
    return cls(**{f.name: _read(hints[f.name], document[_key(f)], f"{where}.{_key(f)}") for f in present})


def _read(hint: Any, value: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in {Union, UnionType}:
        absent = value is None and NoneType in args
        return None if absent else _read_first([arg for arg in args if arg is not NoneType], value, where)
    if hint is float and value is None:
        return nan
    if hint in {str, int, float, bool} and type(value) in ({int, float} if hint is float else {hint}):
        return hint(value)
    if hint is Any or (origin is Literal and value in args):
        return value
    if origin is np.ndarray:
        return _read_array(np.dtype(get_args(args[1])[0]), value, where)
    if origin in {list, tuple, Sequence} and isinstance(value, list | tuple):
        inner = args if origin is tuple and args[1:] != (...,) else [args[0]] * len(value)
        if len(inner) == len(value):
            parts = [_read(part, value[i], f"{where}[{i}]") for i, part in enumerate(inner)]
            return tuple(parts) if origin is tuple else parts
    if origin in {dict, Mapping} and isinstance(value, Mapping):
        return {key: _read(args[1], inner, f"{where}.{key}") for key, inner in value.items()}
    if is_dataclass(hint):
        return hint.from_dict(value) if hasattr(hint, "from_dict") else _read_fields(hint, value, where)
    expected = " or ".join(map(repr, args)) if origin is Literal else getattr(hint, "__name__", str(hint))
    raise ValueError(f"{where}: must be {expected}, got {value!r:.80}")


def _read_first(hints: list[Any], value: Any, where: str) -> Any:
    for hint in hints[:-1]:
        with suppress(ValueError):
            return _read(hint, value, where)
    return _read(hints[-1], value, where)


def _read_array(dtype: np.dtype[Any], value: Any, where: str) -> Any:
    try:
        given = np.asarray(value)
        if given.size and given.dtype.kind not in _KINDS.get(dtype.kind, dtype.kind):
            raise ValueError(f"{given.dtype} instead of {dtype}")
        return given.astype(dtype)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"{where}: must be an array: {exc}") from exc
