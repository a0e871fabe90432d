"""Shard store: the folder of a sharded job, its document, and its finished parts.

``job.json`` says of what the parts are parts. Of each part there are its predictions, its errors and, written last,
what it contains. All are written beside and linked into place, so that they are whole or not there.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from ml.scoring.writing import ShardError, create_file, temporary_path
from ml.util.files import file_sha256, read_json, write_json

JOB_FILE = "job.json"
_VERSION = 1
#: What the fields of a job are, where they differ.
_WORDS = {
    "version": "another version of secondread",
    "release_sha256": "another release",
    "images_sha256": "another list of images",
    "n_images": "another list of images",
    "n_shards": "another number of shards",
    "tta": "another number of augmented views",
    "seed": "another seed",
    "columns": "other columns",
    "device": "another device",
}


class JobDocument(TypedDict):
    """Document shared by all parts; without ``device`` the CPU predicts, with other last bits."""

    version: int
    release_sha256: str
    images_sha256: str
    n_images: int
    n_shards: int
    tta: int | None
    seed: int
    columns: list[str]
    device: NotRequired[str]


class PartDocument(TypedDict):
    """Document of a part, with digests of ``job.json`` and of both tables."""

    job_sha256: str
    shard: int
    n_predictions: int
    n_errors: int
    predictions_sha256: str
    errors_sha256: str


@dataclass(frozen=True)
class Job:
    """The job of a folder.

    Attributes:
        folder: where its parts lie.
        document: what they have in common.
        sha256: digest of its file.
    """

    folder: Path
    document: JobDocument
    sha256: str

    @property
    def n_shards(self) -> int:
        """Number of parts."""
        return self.document["n_shards"]

    def file(self, shard: int, what: str) -> Path:
        """A file of a part, counted from 1: ``predictions.parquet``, ``errors.parquet`` or ``json``."""
        return self.folder / f"shard-{shard:05d}-of-{self.n_shards:05d}.{what}"

    def part(self, shard: int) -> PartDocument | None:
        """Document of a part, None where it is missing.

        Raises:
            ShardError: it is of another job.
        """
        path = self.file(shard, "json")
        if not path.exists():
            return None
        document = cast(PartDocument, read_json(path))
        if document.get("job_sha256") != self.sha256 or document.get("shard") != shard:
            raise ShardError(f"{path}: is a part of another job than {self.folder / JOB_FILE}")
        return document

    def missing(self) -> list[int]:
        """Parts that are not there."""
        return [shard for shard in range(1, self.n_shards + 1) if self.part(shard) is None]


def create_json(path: Path, document: JobDocument | PartDocument) -> None:
    """Write a document where none is.

    Raises:
        ShardError: another one is there.
    """
    with temporary_path(path) as written:
        write_json(written, document)
        create_file(written, path)


def read_job(folder: Path) -> Job:
    """The job of a folder.

    Raises:
        ShardError: there is none.
    """
    path = folder / JOB_FILE
    if not path.exists():
        raise ShardError(f"{folder}: has no {JOB_FILE}: no shard was ever written there")
    return Job(folder, cast(JobDocument, read_json(path)), file_sha256(path))


def join_job(folder: Path, document: JobDocument) -> Job:
    """Begin a job in a folder, or find that it is the one that was begun there.

    Args:
        folder: made where there is none.
        document: the job.

    Raises:
        ShardError: the folder has another job; the message says in what it differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / JOB_FILE).exists():
        with suppress(ShardError):  # somebody else was first: what differs is said below
            create_json(folder / JOB_FILE, document)
    job = read_job(folder)
    there, here = {"device": "cpu"} | dict(job.document), {"device": "cpu"} | dict(document)
    for name, words in _WORDS.items():
        if there.get(name) != here.get(name):
            differing = f"{name} {_shown(there.get(name))}, here {_shown(here.get(name))}"
            raise ShardError(f"{folder}: has shards of {words} ({differing}): give another folder")
    return job


def job_document(
    release_sha256: str, images: tuple[str, int], n_shards: int, views: tuple[int | None, int], columns: list[str]
) -> JobDocument:
    """A job.

    Args:
        release_sha256: digest of the release's card.
        images: digest and length of the list.
        n_shards: number of parts.
        views: augmented views an image, and their seed.
        columns: of the predictions, with their types.
    """
    return {
        "version": _VERSION,
        "release_sha256": release_sha256,
        "images_sha256": images[0],
        "n_images": images[1],
        "n_shards": n_shards,
        "tta": views[0],
        "seed": views[1],
        "columns": columns,
    }


def _shown(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) > 64 else text


def numbers_text(numbers: list[int]) -> str:
    """Numbers in order as people write them.

    >>> numbers_text([1, 3, 4, 5, 9])
    '1, 3–5, 9'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{low}" if low == high else f"{low}–{high}" for low, high in runs)
