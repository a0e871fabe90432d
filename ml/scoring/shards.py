"""Shards of an image list, safe to predict anywhere and more than once.

A job's folder contains ``job.json`` and, for each part, predictions, errors and,
written last, a document. Files are linked into place, whole or not at all.
Shards are whole blocks of the list, and every run gives the same bytes.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import pyarrow as pa
from pyarrow import parquet

from ml.scoring.images import BLOCK, ImageList, repeated_row
from ml.scoring.table import Observer, ScoredTable, Scorer, ScoreRequest, TableWriter, write_rows
from ml.util.files import file_sha256, read_json, replace_file, sync_file, sync_folder, temporary_path, write_json

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
    """Document of a job, shared by its parts."""

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
    """Document of a sharded evaluation, with digests of the tables."""

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
        """A file of a part, counted from 1."""
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

    def parts(self) -> list[PartDocument]:
        """Documents of the parts that are there."""
        return [part for shard in range(1, self.n_shards + 1) if (part := self.part(shard)) is not None]

    def missing(self) -> list[int]:
        """Parts that are not there."""
        return sorted(set(range(1, self.n_shards + 1)).difference(part["shard"] for part in self.parts()))


def parse_shard(text: str) -> tuple[int, int]:
    """Number of a shard and number of shards, of ``i/n``; shards count from 1.

    Raises:
        ShardError: it is something else.

    >>> parse_shard("3/8")
    (3, 8)
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if match is None:
        raise ShardError(f"--shard {text}: write i/n, such as 3/8")
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
    """Move a file into a free place, or keep an identical one."""
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


def begin_job(path: Path, document: JobDocument | EvaluationJob, words: Mapping[str, str]) -> str:
    """Write or compare the document of a job; return its digest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with suppress(ShardError):  # another process was first
            create_json(path, document)
    existing, own = {"device": "cpu"} | read_json(path), {"device": "cpu"} | dict(document)
    for name, other in words.items():
        if existing.get(name) != own.get(name):
            differing = f"{name} {_shortened(existing.get(name))}, here {_shortened(own.get(name))}"
            raise ShardError(f"{path.parent}: has shards of {other} ({differing}): give another folder")
    return file_sha256(path)


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
    begin_job(folder / JOB_FILE, document, _WORDS)
    return read_job(folder)


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
    request: ScoreRequest,
    folder: Path,
    shard: tuple[int, int],
    observer: Observer = lambda done, total: None,
    *,
    threads: int = 0,
) -> PartDocument:
    """Predict one shard of a list of images, unless it is there."""
    scorer, listed = request.open(threads)
    return write_shard(scorer, listed, open_job(scorer, listed, folder, shard[1]), shard[0], observer)


def write_shard(
    scorer: Scorer, listed: ImageList, job: Job, shard: int, observer: Observer = lambda done, total: None
) -> PartDocument:
    """Predict a missing shard of an open job."""
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


@dataclass(frozen=True)
class MergedShards(ScoredTable):
    """Result of merging shards."""

    n_shards: int  # number of parts
    reasons: dict[str, int]  # number of errors for each reason

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {"n_shards": self.n_shards, **super().to_dict(), "reasons": self.reasons}


def merge_job_shards(folder: Path) -> MergedShards:
    """Join the parts of a job, byte for byte those of one run."""
    job = read_job(folder)
    parts = _checked_parts(job)
    again = repeated_row(_cases(job))
    if again is not None:
        name = next(islice(chain.from_iterable(_cases(job)), again, None))
        raise ShardError(f"{folder}: case {name!r} stands twice in the list of images")
    out, wrong = folder / "predictions.parquet", folder / "errors.parquet"
    reasons: Counter[str] = Counter()
    with temporary_path(out) as good_part, temporary_path(wrong) as wrong_part:
        n_predictions = _join(job, "predictions.parquet", good_part, None)
        n_errors = _join(job, "errors.parquet", wrong_part, reasons)
        expected = sum(part["n_predictions"] for part in parts), sum(part["n_errors"] for part in parts)
        if (n_predictions, n_errors) != expected or sum(expected) != job.document["n_images"]:
            images = job.document["n_images"]
            raise ShardError(f"{folder}: {n_predictions:,} predictions and {n_errors:,} errors of {images:,} images")
        replace_file(wrong_part, wrong)
        replace_file(good_part, out)
    return MergedShards(n_predictions, n_errors, out, wrong, job.n_shards, dict(sorted(reasons.items())))


def _checked_parts(job: Job) -> list[PartDocument]:
    require_all(job.folder, job.missing(), job.n_shards)
    parts = job.parts()
    for part in parts:
        for what, digest in (("predictions", part["predictions_sha256"]), ("errors", part["errors_sha256"])):
            path = job.file(part["shard"], f"{what}.parquet")
            if not path.is_file() or file_sha256(path) != digest:
                raise ShardError(
                    f"{path}: is not what was written: delete the three files of shard {part['shard']} and run it again"
                )
    return parts


def _tables(job: Job, what: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    for shard in range(1, job.n_shards + 1):
        with parquet.ParquetFile(job.file(shard, what)) as file:
            # group by group: what `iter_batches` reads ahead grows with the file
            for group in range(file.num_row_groups):
                yield file.read_row_group(group, columns=columns)


def _cases(job: Job) -> Iterator[list[str]]:
    for what in ("predictions.parquet", "errors.parquet"):
        for table in _tables(job, what, ["case_id"]):
            yield table.column("case_id").to_pylist()


def _join(job: Job, what: str, path: Path, reasons: Counter[str] | None) -> int:
    schema = parquet.read_schema(job.file(1, what))
    with TableWriter(path, schema) as writer:
        for table in _tables(job, what):
            if reasons is not None:
                reasons.update(table.column("reason").to_pylist())
            writer.add(table)
    return writer.rows
