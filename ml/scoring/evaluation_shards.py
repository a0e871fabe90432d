"""Sharded evaluation of long tables on any machine, safe to repeat.

A part is a file of sums over groups of patients.
"""

import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from zipfile import BadZipFile

import numpy as np
from pyarrow import parquet

from ml.metrics.accumulator import GroupSums
from ml.metrics.evaluation import MetricsDocument
from ml.metrics.sums import Debias
from ml.scoring.shards import EvaluationJob, ShardError, begin_job, create_file, require_all, require_job
from ml.tables.reading import TableError
from ml.tables.streaming import Streaming, document_of_sums, span_of
from ml.util.files import file_sha256, read_json, temporary_path

JOB_FILE = "evaluation.json"
_VERSION = 1
_ORDERS = ("first", "second")


@dataclass(frozen=True)
class EvaluatedShard:
    """A part that was done."""

    shard: int  # its number, from 1
    n_shards: int  # number of parts
    n_cases: int  # cases in it
    n_labels: int  # labels in it
    path: Path  # its file


def index_digest(path: Path) -> str:
    """Digest of a Parquet file's length and footer."""
    try:
        size, footer = path.stat().st_size, parquet.read_metadata(path).serialized_size
        with path.open("rb") as stream:
            stream.seek(-footer - 8, 2)
            return hashlib.sha256(f"{size}:".encode() + stream.read()).hexdigest()
    except (OSError, ValueError) as exc:
        raise TableError(f"{path}: shards of an evaluation are parts of sorted Parquet tables: {exc}") from exc


def evaluate_shard(
    stream: Streaming, folder: Path, shard: tuple[int, int], observer: Callable[[int], None] = lambda cases: None
) -> EvaluatedShard:
    """Evaluate one n-th of sorted tables, unless it is there."""
    number, n_shards = shard
    job: EvaluationJob = {
        "version": _VERSION,
        "labels": index_digest(stream.labels),
        "predictions": index_digest(stream.predictions),
        "n_bins": stream.options.n_bins,
        "weights": stream.options.weights,
        "weights2": stream.options.weights2,
        "cluster": stream.options.cluster,
        "n_shards": n_shards,
    }
    digest = begin_job(folder / JOB_FILE, job, dict.fromkeys(job, "another evaluation"))
    path = _file(folder, number, n_shards)
    if not path.exists():
        sums = stream.sums(span_of(stream.predictions, number, n_shards), observer)
        _write(path, digest, sums)
    first, second = _read(path, digest)
    return EvaluatedShard(number, n_shards, first.n_cases, second.n_labels, path)


def finish_evaluation(folder: Path, debias: Debias = "pair") -> MetricsDocument:
    """The evaluation that follows from all parts."""
    require_job(folder / JOB_FILE)
    job = cast(EvaluationJob, read_json(folder / JOB_FILE))
    digest, n_shards = file_sha256(folder / JOB_FILE), job["n_shards"]
    missing = [number for number in range(1, n_shards + 1) if not _file(folder, number, n_shards).exists()]
    require_all(folder, missing, n_shards)
    first, second = _read(_file(folder, 1, n_shards), digest)
    for number in range(2, n_shards + 1):
        part = _read(_file(folder, number, n_shards), digest)
        first, second = first.merge(part[0]), second.merge(part[1])
    return document_of_sums(first, second, debias, (job["weights"] is not None, job["weights2"] is not None))


def _file(folder: Path, shard: int, n_shards: int) -> Path:
    return folder / f"evaluation-{shard:05d}-of-{n_shards:05d}.npz"


def _write(path: Path, job: str, sums: tuple[GroupSums, GroupSums]) -> None:
    arrays = {"job": np.array(job)}
    for order, part in zip(_ORDERS, sums, strict=True):
        arrays |= {f"{order}/{name}": array for name, array in part.to_arrays().items()}
    with temporary_path(path) as written:
        with written.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)
        create_file(written, path)


def _read(path: Path, job: str) -> tuple[GroupSums, GroupSums]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            written = str(arrays["job"])
            sums_by_name = {name: arrays[name] for name in arrays.files if name != "job"}
        orders = [
            {n.removeprefix(f"{o}/"): a for n, a in sums_by_name.items() if n.startswith(f"{o}/")} for o in _ORDERS
        ]
        first, second = (GroupSums.from_arrays(part) for part in orders)
    except (OSError, EOFError, KeyError, ValueError, BadZipFile, zlib.error) as exc:
        raise ShardError(f"{path}: is not what was written ({exc}): delete it and run its shard again") from exc
    if written != job:
        raise ShardError(f"{path}: is a part of another evaluation than {path.parent / JOB_FILE}")
    return first, second
