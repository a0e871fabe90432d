"""Golden files: where they lie, how they are read, compared and renewed, and how numbers stand in them."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.golden.worlds import World

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


_FOLDER = Path(__file__).parent
_DOCUMENTS = _FOLDER / "documents"
#: A document above so many bytes is kept as its digest alone.
LARGEST = 100_000
#: What a failing test adds to the list of differences.
HOW_TO_RENEW = (
    "`make golden` renews the golden files. That is right only where an issue names what changes: "
    "name it in the commit, and see by `git diff tests/golden` that nothing else did."
)
_SHOWN = 10


def numbers_file(world: World) -> Path:
    """Where a world's numbers lie."""
    return _FOLDER / "numbers" / f"{world.name}.json"


def compare_numbers(world: World, found: dict[str, Any]) -> list[Difference]:
    """Where the numbers of a world are not those of its file."""
    return differences(from_lines(numbers_file(world).read_text()), found)


def renew_numbers(world: World, found: dict[str, Any]) -> list[Difference]:
    """Write the numbers of a world where they differ, and return where."""
    path = numbers_file(world)
    before = compare_numbers(world, found) if path.exists() else [("the whole file", NOTHING_THERE, "new")]
    if before:
        path.parent.mkdir(exist_ok=True)
        path.write_text(in_lines(found))
    return before


def document_file(name: str, content: bytes) -> Path:
    """Where a document lies: itself, or its digest where it is large or no text."""
    path = _DOCUMENTS / name
    return path if _is_kept(content) else path.with_name(f"{path.name}.sha256")


def _is_kept(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return len(content) <= LARGEST and b"\0" not in content


def _digest(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()} {len(content)} bytes\n"


def compare_documents(group: str, found: Mapping[str, bytes]) -> list[Difference]:
    """Where the documents of a folder are not its files, and which of the files are no document any more."""
    files = {document_file(f"{group}/{name}", content) for name, content in found.items()}
    others = sorted(path for path in (_DOCUMENTS / group).rglob("*") if path.is_file() and path not in files)
    different = [(name, row) for name, content in found.items() for row in _compare(f"{group}/{name}", content)]
    gone = [(str(path.relative_to(_DOCUMENTS)), "a document", NOTHING_THERE) for path in others]
    return [(f"{group}/{name} {path}".strip(), *values) for name, (path, *values) in different] + gone


def _compare(name: str, content: bytes) -> list[Difference]:
    path = document_file(name, content)
    if not path.exists():
        return [("", NOTHING_THERE, f"{len(content)} bytes")]
    expected = path.read_text()
    if _is_kept(content):
        differing = differing_json if name.endswith(".json") else differing_texts
        return differing(expected, content.decode())
    return [] if expected == _digest(content) else [("sha256", expected.strip(), _digest(content).strip())]


def renew_documents(group: str, found: Mapping[str, bytes]) -> list[Difference]:
    """Write the documents of a folder where they differ, and return where."""
    before = compare_documents(group, found)
    different = {name: content for name, content in found.items() if _compare(f"{group}/{name}", content)}
    files = {document_file(f"{group}/{name}", content) for name, content in found.items()}
    for path in (_DOCUMENTS / group).rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()
    for name, content in different.items():
        path = document_file(f"{group}/{name}", content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if _is_kept(content) else _digest(content).encode())
    return before


def listed(found: list[Difference]) -> str:
    """The first differences, one a line, with both values."""
    lines = [f"  {path}: {expected!r} in the golden file, {actual!r} now" for path, expected, actual in found[:_SHOWN]]
    more = len(found) - _SHOWN
    return "\n".join(lines + ([f"  and {more} more"] if more > 0 else []))
