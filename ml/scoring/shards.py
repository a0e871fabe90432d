"""One of n shards of an image list, safe to predict on any machine and more than once.

Shards are made of whole blocks in the order of the list, and every run gives the same bytes: a second run leaves the
files that exist, and a shard whose process was killed is made again. The folder of a job contains ``job.json``, which
pins what the parts belong to, and of each part its predictions, its errors and, written last, its document. All are
written beside and linked into place, so that they are whole or not there.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict, cast

from ml.release.device import Device
from ml.scoring.images import BLOCK, ImageList, open_list
from ml.scoring.table import Observer, Scorer, write_rows
from ml.util.files import file_sha256, read_json, sync_file, sync_folder, temporary_path, write_json

JOB_FILE = "job.json"
VERSION = 1
#: Words for the fields of a job, used if they differ.
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


class ShardError(ValueError):
    """Parts of predictions that do not belong together, or are not all there."""


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


class EvaluationJob(TypedDict):
    """Document shared by the shards of an evaluation, with digests of the tables' indexes."""

    version: int
    labels: str
    predictions: str
    n_bins: int
    weights: str | None
    weights2: str | None
    cluster: str | None
    n_shards: int


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
    """The job of a folder."""

    folder: Path  # contains its parts
    document: JobDocument  # shared by the parts
    sha256: str  # digest of its file

    @property
    def n_shards(self) -> int:
        """Number of parts."""
        return self.document["n_shards"]

    def file(self, shard: int, what: str) -> Path:
        """A file of a part, counted from 1: ``predictions.parquet``, ``errors.parquet`` or ``json``."""
        return self.folder / f"shard-{shard:05d}-of-{self.n_shards:05d}.{what}"

    def part(self, shard: int) -> PartDocument | None:
        """Document of a part, None if it is missing."""
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


def parse_shard(text: str) -> tuple[int, int]:
    """Number of a shard and number of shards, of ``i/n``; shards count from 1.

    Raises:
        ShardError: it is something else.

    >>> parse_shard("3/8")
    (3, 8)
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None:
        raise ShardError(f"--shard {text}: say i/n, such as 3/8")
    shard, count = int(match[1]), int(match[2])
    if not 1 <= shard <= count:
        raise ShardError(f"--shard {text}: shards count from 1 to n, here from 1/{count} to {count}/{count}")
    return shard, count


def rows_of(shard: int, n_shards: int, n_rows: int) -> tuple[int, int]:
    """First row of a shard, and the row after its last one.

    >>> [rows_of(shard, 3, 500) for shard in (1, 2, 3)]
    [(0, 128), (128, 320), (320, 500)]
    """
    blocks = -(-n_rows // BLOCK)
    first, stop = (blocks * number // n_shards * BLOCK for number in (shard - 1, shard))
    return min(first, n_rows), min(stop, n_rows)


def create_file(path: Path, target: Path) -> None:
    """Move a written file to a free place in its folder, or keep an identical file that is there."""
    sync_file(path)
    try:
        os.link(path, target)
    except FileExistsError as exc:
        if file_sha256(path) != file_sha256(target):
            raise ShardError(
                f"{target}: is there already with other bytes: was it made on another kind of machine, or with other "
                "versions of the packages?"
            ) from exc
    sync_folder(target.parent)


def create_json(path: Path, document: JobDocument | EvaluationJob | PartDocument) -> None:
    """Write a document where none is."""
    with temporary_path(path) as written:
        write_json(written, document)
        create_file(written, path)


def begin_job(path: Path, document: JobDocument | EvaluationJob) -> None:
    """Write the document of a job unless its folder has one, which the caller compares with its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with suppress(ShardError):  # another process was first
            create_json(path, document)


def require_job(path: Path) -> None:
    """Check that a folder has the document of a job."""
    if not path.exists():
        raise ShardError(f"{path.parent}: has no {path.name}: no shard was ever written there")


def require_all(folder: Path, missing: list[int], n_shards: int) -> None:
    """Check that no part of a job is missing."""
    if missing:
        words = "shard is" if len(missing) == 1 else "shards are"
        raise ShardError(f"{folder}: {len(missing):,} of {n_shards:,} {words} missing: {numbers_text(missing)}")


def read_job(folder: Path) -> Job:
    """The job of a folder."""
    path = folder / JOB_FILE
    require_job(path)
    return Job(folder, cast(JobDocument, read_json(path)), file_sha256(path))


def join_job(folder: Path, document: JobDocument) -> Job:
    """Begin a job in a folder, or check that it is the one that was begun there."""
    begin_job(folder / JOB_FILE, document)
    job = read_job(folder)
    there, here = {"device": "cpu"} | dict(job.document), {"device": "cpu"} | dict(document)
    for name, words in _WORDS.items():
        if there.get(name) != here.get(name):
            differing = f"{name} {_shortened(there.get(name))}, here {_shortened(here.get(name))}"
            raise ShardError(f"{folder}: has shards of {words} ({differing}): give another folder")
    return job


def _shortened(value: object) -> str:
    text = str(value)
    return f"{text[:12]}…" if len(text) > 64 else text


def open_job(scorer: Scorer, listed: ImageList, folder: Path, n_shards: int) -> Job:
    """The job of a list in a folder."""
    document: JobDocument = {
        "version": VERSION,
        "release_sha256": scorer.release_sha256,
        "images_sha256": listed.sha256,
        "n_images": listed.rows,
        "n_shards": n_shards,
        "tta": scorer.tta,
        "seed": scorer.seed if scorer.tta is not None else 0,
        "columns": [f"{field.name} {field.type}" for field in scorer.schema],
    }
    if scorer.predictor.on_gpu:
        document["device"] = "cuda"
    return join_job(folder, document)


def score_shard(
    release: Path,
    images: Path,
    folder: Path,
    shard: tuple[int, int],
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    threads: int = 0,
    device: Device = "auto",
) -> PartDocument:
    """Predict one shard of a list of images, unless it is there."""
    scorer, listed = Scorer(release, tta=tta, seed=seed, threads=threads, device=device), open_list(images)
    return write_shard(scorer, listed, open_job(scorer, listed, folder, shard[1]), shard[0], observer)


def write_shard(scorer: Scorer, listed: ImageList, job: Job, shard: int, observer: Observer) -> PartDocument:
    """The same, of a job that is open."""
    existing = job.part(shard)
    if existing is not None:
        return existing
    good, bad = job.file(shard, "predictions.parquet"), job.file(shard, "errors.parquet")
    with temporary_path(good) as part, temporary_path(bad) as wrong:
        first, stop = rows_of(shard, job.n_shards, listed.rows)
        n_predictions, n_errors = write_rows(scorer, listed, first, stop, (part, wrong), observer)
        create_file(part, good)
        create_file(wrong, bad)
    document: PartDocument = {
        "job_sha256": job.sha256,
        "shard": shard,
        "n_predictions": n_predictions,
        "n_errors": n_errors,
        "predictions_sha256": file_sha256(good),
        "errors_sha256": file_sha256(bad),
    }
    create_json(job.file(shard, "json"), document)
    return document


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
