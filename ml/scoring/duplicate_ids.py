"""Detection of duplicate identifiers in a list larger than memory."""

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO

import numpy as np
import numpy.typing as npt

_DIGEST_BYTES = 16
_ENTRY = np.dtype([("digest", f"S{_DIGEST_BYTES}"), ("row", "<i8")])
_FILES = 256
_ENTRIES_IN_MEMORY = 20_000


def repeated_row(identifiers: Iterable[list[str]], *, in_memory: int = _ENTRIES_IN_MEMORY) -> int | None:
    """The first row whose identifier stands in an earlier one.

    Digests are sorted into temporary files by their first byte, so that equal ones meet in a file that is short.

    Args:
        identifiers: of all rows, in lists of any length.
        in_memory: digests that are kept before they are written.

    Returns:
        Its number, from 0; None where every identifier is another.
    """
    files: list[IO[bytes]] = []
    try:
        first: list[int] = []
        for entries in _chunks(identifiers, in_memory):
            if len(entries) < in_memory and not files:
                return min(_repeats(entries), default=None)
            files = files or [TemporaryFile() for _ in range(_FILES)]  # noqa: SIM115
            byte = np.ascontiguousarray(entries["digest"]).view(np.uint8)[::_DIGEST_BYTES]
            for number, file in enumerate(files):
                file.write(entries[byte == number].tobytes())
        for file in files:
            file.seek(0)
            first += _repeats(np.frombuffer(file.read(), dtype=_ENTRY))
        return min(first, default=None)
    finally:
        for file in files:
            file.close()


def _chunks(identifiers: Iterable[list[str]], size: int) -> Iterator[npt.NDArray[np.void]]:
    held: list[tuple[bytes, int]] = []
    row = 0
    for names in identifiers:
        for name in names:
            # no digest ends in a zero byte, which numpy would take away
            held.append((blake2b(name.encode(), digest_size=_DIGEST_BYTES - 1).digest() + b"\1", row))
            row += 1
            if len(held) == size:
                yield np.array(held, dtype=_ENTRY)
                held = []
    yield np.array(held, dtype=_ENTRY)


def _repeats(entries: npt.NDArray[np.void]) -> list[int]:
    """The first row of these that repeats an earlier one, or none."""
    entries = entries[np.lexsort((entries["row"], entries["digest"]))]
    again = np.flatnonzero(entries["digest"][1:] == entries["digest"][:-1]) + 1
    return [int(entries["row"][again].min())] if again.size else []
