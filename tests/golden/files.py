"""The golden files: where they lie, how they are read, compared and renewed."""

import hashlib
from pathlib import Path
from typing import Any

from tests.golden.comparing import Difference, differences, differing_texts, from_lines, in_lines
from tests.golden.worlds import World

_FOLDER = Path(__file__).parent
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
    before = compare_numbers(world, found) if path.exists() else [("the whole file", "nothing", "new")]
    if before:
        path.parent.mkdir(exist_ok=True)
        path.write_text(in_lines(found))
    return before


def document_file(name: str, content: bytes) -> Path:
    """Where a document lies: itself, or its digest where it is large or no text."""
    path = _FOLDER / "documents" / name
    return path if _is_kept(content) else path.with_name(f"{path.name}.sha256")


def _is_kept(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return len(content) <= LARGEST


def _digest(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()} {len(content)} bytes\n"


def compare_document(name: str, content: bytes) -> list[Difference]:
    """Where a document is not the one of its file."""
    path = document_file(name, content)
    if not path.exists():
        return [(name, "nothing", f"{len(content)} bytes")]
    expected = path.read_text()
    if _is_kept(content):
        return differing_texts(expected, content.decode())
    return [] if expected == _digest(content) else [("sha256", expected.strip(), _digest(content).strip())]


def renew_document(name: str, content: bytes) -> list[Difference]:
    """Write a document where it differs, and return where."""
    path, found = document_file(name, content), compare_document(name, content)
    if found:
        path.parent.mkdir(parents=True, exist_ok=True)
        for former in {path.parent / name, path.parent / f"{name}.sha256"} - {path}:
            former.unlink(missing_ok=True)
        path.write_bytes(content if _is_kept(content) else _digest(content).encode())
    return found


def listed(found: list[Difference]) -> str:
    """The first differences, one a line, with both values."""
    lines = [f"  {path}: {expected!r} in the golden file, {actual!r} now" for path, expected, actual in found[:_SHOWN]]
    more = len(found) - _SHOWN
    return "\n".join(lines + ([f"  and {more} more"] if more > 0 else []))
