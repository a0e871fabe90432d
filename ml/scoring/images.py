"""Streamed list of the images to predict, from a folder or a manifest.

Rows are numbered from 0, folders sorted by the bytes of the names. What does
not fit in memory is sorted in temporary files.
"""

import hashlib
import heapq
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import numpy as np

from ml.release.score import PATIENTS, SUFFIXES
from ml.tables.reading import Place, TableError, count_rows, read_rows, text_column
from ml.util.files import file_sha256

#: Images of a run. Shards are whole blocks: an image has the same neighbours.
BLOCK = 64
#: Names and digests of case ids that are sorted in memory.
_IN_MEMORY = 200_000
_DIGEST_BYTES, _NUMBER_BYTES = 16, 8


@dataclass(frozen=True)
class Rows:
    """Consecutive images of a list."""

    first: int  # number of the first of them in the list
    case_ids: list[str]  # of the images
    names: list[str]  # their files as the list has them
    paths: list[Path]  # their files
    hmacs: list[str] | None  # of their patients


@dataclass(frozen=True)
class ImageList:
    """A list of images."""

    source: Path  # the folder, or the manifest
    rows: int  # number of images
    sha256: str  # digest of the manifest, or of the names in the folder
    read: Callable[[int, int], Iterator[Rows]]  # blocks of a range


def open_list(images: Path, *, names_in_memory: int = _IN_MEMORY) -> ImageList:
    """Count and digest a list of images in one pass."""
    if not images.exists():
        raise TableError(f"{images}: there is no such file or folder")
    if images.is_dir():
        return _open_folder(images, names_in_memory)
    rows = count_rows(images)
    if not rows:
        raise TableError(f"{images}: has no rows")
    return ImageList(images, rows, file_sha256(images), lambda first, stop: _manifest_rows(images, first, stop))


def _open_folder(images: Path, names_in_memory: int) -> ImageList:
    count, digest = 0, hashlib.sha256()
    for name in _sorted(_walk(os.fsencode(images)), names_in_memory):
        count += 1
        digest.update(name + b"\0")
    if not count:
        raise TableError(f"{images}: contains no image ({', '.join(sorted(SUFFIXES))})")

    def read(first: int, stop: int) -> Iterator[Rows]:
        names = islice(_sorted(_walk(os.fsencode(images)), names_in_memory), first, stop)
        for start in range(first, stop, BLOCK):
            block = list(islice(names, min(BLOCK, stop - start)))
            # a name that is no UTF-8 is displayed with its bytes, and opened as it is
            shown_as = [name.decode("utf-8", "backslashreplace") for name in block]
            paths = [images / os.fsdecode(name) for name in block]
            yield Rows(start, [name.rpartition(".")[0] for name in shown_as], shown_as, paths, None)

    return ImageList(images, count, digest.hexdigest(), read)


def _manifest_rows(manifest: Path, first: int, stop: int) -> Iterator[Rows]:
    place = Place.of_file(manifest)
    for start, table in read_rows(manifest, ("case_id", "file"), (PATIENTS,), first, stop, BLOCK):
        part = place.part(np.arange(start, start + table.num_rows))
        names = text_column(table, "file", part)
        hmacs = text_column(table, PATIENTS, part) if PATIENTS in table.column_names else None
        paths = [manifest.parent / name for name in names]
        yield Rows(start, text_column(table, "case_id", part), names, paths, hmacs)


def _walk(folder: bytes, inside: bytes = b"") -> Iterator[bytes]:
    """Image and folder names in a folder, unordered, without links."""
    with os.scandir(os.path.join(folder, inside)) as entries:
        for entry in entries:
            name = os.path.join(inside, entry.name)
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, name)
            elif Path(os.fsdecode(entry.name)).suffix.lower() in SUFFIXES and (entry.is_file() or entry.is_symlink()):
                yield name


def _sorted(entries: Iterator[bytes], in_memory: int) -> Iterator[bytes]:
    """Sort in bounded memory, with temporary files."""
    spilled: list[IO[bytes]] = []
    try:
        while chunk := sorted(islice(entries, in_memory)):
            if len(chunk) < in_memory and not spilled:
                yield from chunk
                return
            spilled.append(_spill(chunk))
        yield from heapq.merge(*map(_unspill, spilled))
    finally:
        for file in spilled:
            file.close()


def _spill(entries: list[bytes]) -> IO[bytes]:
    file = TemporaryFile()  # noqa: SIM115
    for entry in entries:
        file.write(len(entry).to_bytes(_NUMBER_BYTES, "big") + entry)
    file.seek(0)
    return file


def _unspill(file: IO[bytes]) -> Iterator[bytes]:
    while length := file.read(_NUMBER_BYTES):
        yield file.read(int.from_bytes(length, "big"))


def repeated_row(identifiers: Iterable[list[str]], *, in_memory: int = _IN_MEMORY) -> int | None:
    """First row, from 0, with a repeated identifier; else None."""
    digests = (
        hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest() + row.to_bytes(_NUMBER_BYTES, "big")
        for row, name in enumerate(chain.from_iterable(identifiers))
    )
    again = (
        second
        for first, second in pairwise(_sorted(digests, in_memory))
        if first[:_DIGEST_BYTES] == second[:_DIGEST_BYTES]
    )
    return min((int.from_bytes(entry[_DIGEST_BYTES:], "big") for entry in again), default=None)
