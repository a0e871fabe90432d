"""Merging of a job's shards into one table of predictions and one of errors, without the release."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from ml.scoring.images import repeated_row
from ml.scoring.shards import Job, PartDocument, ShardError, read_job, require_all
from ml.scoring.table import TableWriter
from ml.util.files import file_sha256, replace_file, temporary_path


@dataclass(frozen=True)
class MergedShards:
    """Result of merging shards."""

    n_shards: int  # number of parts
    n_predictions: int  # images that were predicted
    n_errors: int  # images that could not be read
    reasons: dict[str, int]  # number of them for each reason
    predictions: Path  # table of the first
    errors: Path  # table of the second


def merge_job_shards(folder: Path) -> MergedShards:
    """Join the parts of a job into ``predictions.parquet`` and ``errors.parquet``, byte for byte those of one run."""
    job = read_job(folder)
    parts = _checked_parts(job)
    _check_cases(job)
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
    return MergedShards(job.n_shards, n_predictions, n_errors, dict(sorted(reasons.items())), out, wrong)


def _checked_parts(job: Job) -> list[PartDocument]:
    """Documents of all parts, checked."""
    require_all(job.folder, job.missing(), job.n_shards)
    parts = [part for shard in range(1, job.n_shards + 1) if (part := job.part(shard)) is not None]
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


def _check_cases(job: Job) -> None:
    """Every case stands once."""
    again = repeated_row(_cases(job))
    before = 0
    for names in _cases(job) if again is not None else ():
        if again is not None and again < before + len(names):
            raise ShardError(f"{job.folder}: case {names[again - before]!r} stands twice in the list of images")
        before += len(names)


def _join(job: Job, what: str, path: Path, reasons: Counter[str] | None) -> int:
    schema = parquet.read_schema(job.file(1, what))
    with TableWriter(path, schema) as writer:
        for table in _tables(job, what):
            if reasons is not None:
                reasons.update(table.column("reason").to_pylist())
            writer.add(table)
    return writer.rows
