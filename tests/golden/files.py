"""The golden files: where they lie, how they are read, compared and renewed."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.golden.comparing import (
    NOTHING_THERE,
    Difference,
    differences,
    differing_json,
    differing_texts,
    from_lines,
    in_lines,
)
from tests.golden.worlds import World

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
