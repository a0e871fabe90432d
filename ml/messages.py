"""Sentences in English that keep their parts, so that pages can translate.

The code of a message is its sentence with names in braces, the key of the
catalogues, which ``tools/catalogues.py`` fills.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from string import Formatter
from typing import Any, Self, TypeVar

#: Marks a message among stored JSON values.
_CODE = "$message"
_START = f'{{"{_CODE}":'


@lru_cache(maxsize=1024)
def _parsed(code: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    pieces = list(Formatter().parse(code))
    fields = tuple((name, form or "") for _, name, form, _ in pieces if name is not None)
    key = "".join(text + ("" if name is None else f"{{{name}}}") for text, name, _, _ in pieces)
    return key, fields


def key_of(code: str) -> str:
    """A code without the formats of its values.

    >>> key_of("{n:,} of {total:,} rows")
    '{n} of {total} rows'
    """
    return _parsed(code)[0]


class Term(str):
    """A code that pages translate as a word, such as a job's state."""


class Number(str):
    """A number as English writes it; pages write it as their language does."""


class Share(Number):
    """A probability with decimals, which pages show as a whole percentage.

    >>> Message("disagreement above {threshold}", threshold=Share("0.20"))
    'disagreement above 0.20'
    """


#: Kinds of values by their mark among stored JSON values.
_NUMBERS = {"$number": Number, "$share": Share}
_MARKS = {kind: mark for mark, kind in _NUMBERS.items()}


class Message(str):
    """A sentence, or a part of one, in English.

    >>> message = Message("{n:,} of {total:,} rows", n=1200, total=3000)
    >>> message, message.code
    ('1,200 of 3,000 rows', '{n} of {total} rows')
    """

    code: str
    values: Mapping[str, str]

    def __new__(cls, code: str, /, **values: object) -> Self:
        """Make the text."""
        if not values:
            return cls._of(code, {})
        key, fields = _parsed(code)
        return cls._of(key, {name: _shown(values[name], form) for name, form in fields})

    @classmethod
    def _of(cls, key: str, shown: Mapping[str, str]) -> Self:
        made = super().__new__(cls, key.format_map(shown) if shown else key)
        made.code, made.values = key, shown
        return made

    def __str__(self) -> str:
        """The message itself, so that ``str`` of an error keeps it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy is made of."""
        return _restored, (self.code, dict(self.values))


def _shown(value: object, form: str) -> str:
    if isinstance(value, Message | Term | Number):
        return value
    text = format(value, form)
    return Number(text) if isinstance(value, Real) and not text.isalnum() else text


def _restored(code: str, values: Mapping[str, str]) -> Message:
    return Message._of(code, values)


def joined(separator: str, parts: Iterable[str]) -> Message:
    """Messages one after the other.

    >>> joined("; ", [Message("{n} cases", n=2), "closed"]).code
    '{p0}; {p1}'
    """
    values = {f"p{place}": part for place, part in enumerate(parts)}
    return Message(separator.join(f"{{{name}}}" for name in values), **values)


def separated(text: str, separator: str) -> list[str]:
    """What was joined.

    >>> separated(joined("; ", ["one; two", "three"]), "; ")
    ['one; two', 'three']
    """
    if isinstance(text, Message) and text.code == separator.join(f"{{{name}}}" for name in text.values):
        return list(text.values.values())
    return text.split(separator) if separator else [text]


def listed(parts: Sequence[str]) -> str:
    """Parts with "and" before the last.

    >>> str(listed(["a", "b", "c"])), listed(["a"])
    ('a, b and c', 'a')
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0] if len(parts) == 2 else joined(", ", parts[:-1])
    return Message("{parts} and {parts2}", parts=first, parts2=parts[-1])


_Texts = TypeVar("_Texts", bound=Mapping[Any, str] | tuple[str, ...])


def messages(texts: _Texts) -> _Texts:
    """Mark codes, in a tuple or by key, for the catalogues."""
    return texts


def packed(value: Any) -> Any:
    """JSON values in which messages keep their codes and values."""
    if isinstance(value, Message):
        return _packed(value)
    if isinstance(value, dict):
        return {name: packed(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple) and value and not isinstance(value[0], float):
        return [packed(inner) for inner in value]
    return value


def _packed(value: str) -> Any:
    if isinstance(value, Message):
        return {_CODE: value.code, "values": {name: _packed(inner) for name, inner in value.values.items()}}
    if isinstance(value, Number):
        return {_MARKS[type(value)]: str(value)}
    return {_CODE: value, "values": None} if isinstance(value, Term) else value


def unpacked(found: Any) -> Any:
    """Message or number of a JSON object, or the object: an ``object_hook``."""
    if len(found) == 1:
        ((mark, text),) = found.items()
        ours = mark in _NUMBERS and isinstance(text, str) and (mark != "$share" or text.replace(".", "", 1).isdecimal())
        return _NUMBERS[mark](text) if ours else found
    code, values = found.get(_CODE), found.get("values", "")
    if len(found) != 2 or not isinstance(code, str) or not (values is None or isinstance(values, dict)):
        return found
    try:
        return Term(code) if values is None else _restored(code, values)
    except (KeyError, ValueError):  # somebody else's
        return found


def to_json(value: Any) -> str:
    """JSON text that keeps messages."""
    return json.dumps(packed(value))


_decode = json.JSONDecoder(object_hook=unpacked).decode


def from_json(text: str | bytes) -> Any:
    """What ``to_json`` was given."""
    return _decode(text if isinstance(text, str) else text.decode())


def to_text(text: str) -> str:
    """What is stored of a text that may be a message."""
    if isinstance(text, Message) and text.values:
        return json.dumps(_packed(text), ensure_ascii=False)
    # a text of somebody that looks like a stored message
    return to_text(_restored("{text}", {"text": str.__str__(text)})) if text.startswith(_START) else str.__str__(text)


def from_text(stored: str) -> str:
    """What ``to_text`` was given."""
    if not stored.startswith(_START):
        return stored
    try:
        value = from_json(stored)
    except ValueError:  # stored by an earlier version
        return stored
    return value if isinstance(value, Message) else stored
