"""Comparison of golden files with what is computed now, and how their numbers stand in files."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

#: Numbers may differ by this share, or by ``NOTHING`` near zero.
RELATIVE, NOTHING = 1e-12, 1e-15
#: What a fit, a root finder or a quadrature ends with may differ by this share.
FITTED_RELATIVE = 1e-6
#: Section of the numbers to which ``FITTED_RELATIVE`` belongs.
FITTED = "fitted"
# parts of an estimate
_ENDS = ("value", "se", "low", "high", "low_new", "high_new")
#: Path, expected value and value now.
Difference = tuple[str, Any, Any]
#: Stands for a value that is missing.
NOTHING_THERE = "nothing"
# numbers of a text that are not whole; with so many decimals nobody has rounded them
_NUMBER = re.compile(r"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)")
_UNROUNDED = 9


def differences(expected: Any, actual: Any, path: str = "") -> list[Difference]:
    """Paths where two trees of JSON values differ, with both values."""
    ours, theirs = dict(leaves(expected, path)), dict(leaves(actual, path))
    scales = _scales(ours)
    pairs = ((name, ours.get(name, NOTHING_THERE), theirs.get(name, NOTHING_THERE)) for name in ours | theirs)
    return [row for row in pairs if not same(*row, scale=scales.get(row[0].rpartition("/")[0], 0.0))]


def _scales(values: Mapping[str, Any]) -> dict[str, float]:
    """The largest part of each estimate: an end near zero is a difference of numbers that are not."""
    scales: dict[str, float] = {}
    for path, value in values.items():
        parent, _, name = path.rpartition("/")
        if name in _ENDS and isinstance(value, float) and math.isfinite(value):
            scales[parent] = max(scales.get(parent, 0.0), abs(value))
    return scales


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Values of a tree with their paths."""
    if isinstance(tree, Mapping):
        for name, part in tree.items():
            yield from leaves(part, f"{path}/{name}" if path else str(name))
    elif isinstance(tree, list | tuple):
        for number, part in enumerate(tree):
            yield from leaves(part, f"{path}/{number}")
        if not tree:
            yield f"{path}/empty", True
    else:
        yield path, tree


def same(path: str, first: Any, second: Any, scale: float = 0.0) -> bool:
    """Whether two values are the same: of numbers that are not whole up to rounding, of anything else entirely.

    Args:
        path: of the values.
        first: one of them.
        second: the other.
        scale: of the numbers that they were worked out from, where it is larger than they are.
    """
    if type(first) is type(second) and not isinstance(first, float):
        return bool(first == second)
    if {type(first), type(second)} - {int, float}:
        return False
    relative = FITTED_RELATIVE if path.startswith(f"{FITTED}/") else RELATIVE
    both_nan = math.isnan(first) and math.isnan(second)
    return both_nan or math.isclose(first, second, rel_tol=relative, abs_tol=max(NOTHING, relative * scale))


def differing_texts(expected: str, actual: str) -> list[Difference]:
    """Lines where two texts differ; numbers with many digits may differ up to rounding."""
    ours, theirs = expected.splitlines(), actual.splitlines()
    longest = max(len(ours), len(theirs))
    ours, theirs = (lines + [NOTHING_THERE] * (longest - len(lines)) for lines in (ours, theirs))
    return [
        (f"line {number}", *_around(first, second))
        for number, (first, second) in enumerate(zip(ours, theirs, strict=True), 1)
        if not _same_line(first, second)
    ]


def differing_json(expected: str, actual: str) -> list[Difference]:
    """Lines where two JSON documents differ in more than numbers, and paths of numbers that differ."""
    texts = (_NUMBER.sub("a number", text) for text in (expected, actual))
    return differing_texts(*texts) or differences(json.loads(expected), json.loads(actual))


def _same_line(first: str, second: str) -> bool:
    if first == second:
        return True
    if _NUMBER.sub("", first) != _NUMBER.sub("", second):
        return False
    return all(map(_same_number, _NUMBER.findall(first), _NUMBER.findall(second)))


def _same_number(first: str, second: str) -> bool:
    unrounded = any("e" in text or len(text.partition(".")[2]) >= _UNROUNDED for text in (first, second))
    return first == second or (unrounded and same("", float(first), float(second)))


def _around(first: str, second: str, width: int = 60) -> tuple[str, str]:
    """The parts of two lines where they begin to differ."""
    place = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), 0)
    start = max(0, place - width)
    return first[start : place + width], second[start : place + width]


def in_lines(tree: Any) -> str:
    """JSON with one line for each list, and each mapping that holds values only, so that a change is read in a diff."""
    rows = (f"{json.dumps(path)}: {json.dumps(part, separators=(',', ':'))}" for path, part in _flat_parts(tree, ""))
    return "{\n" + ",\n".join(rows) + "\n}\n"


def from_lines(text: str) -> dict[str, Any]:
    """Values by their paths, as ``in_lines`` wrote them."""
    return json.loads(text)


def _flat_parts(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping) and any(isinstance(part, Mapping | list | tuple) for part in tree.values()):
        for name, part in tree.items():
            yield from _flat_parts(part, f"{path}/{name}" if path else str(name))
    else:
        yield path, tree
