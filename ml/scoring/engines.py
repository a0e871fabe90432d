"""Engines that run missing shards: sequential, multiprocess or Ray."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Literal, Protocol

from ml.release.device import Device
from ml.scoring.image_list import BLOCK, ImageList, open_list
from ml.scoring.predicting import Scorer
from ml.scoring.ray_pool import connect_to_ray
from ml.scoring.score_table import Observer
from ml.scoring.shard_store import JOB_FILE, Job, PartDocument, numbers_text, read_job
from ml.scoring.shards import open_job, rows_of, write_shard
from ml.scoring.work import ShardWork
from ml.scoring.writing import ShardError
from ml.util.cores import cores

Engine = Literal["local", "processes", "ray"]
#: Images of a shard, where nobody said how many shards there are.
SHARD_IMAGES = 20_000


@dataclass(frozen=True)
class Run:
    """Result of an engine.

    Attributes:
        n_shards: parts of the job.
        n_run: those that were missing and have been run.
        n_predictions: of all parts.
        n_errors: of all parts.
    """

    n_shards: int
    n_run: int
    n_predictions: int
    n_errors: int


class Pool(Protocol):
    """Processes that make shards, wherever they are."""

    @property
    def cores(self) -> int:
        """Number of shards made at once."""
        ...

    def run(self, work: ShardWork, shards: list[int]) -> Iterator[PartDocument]:
        """Make shards; what they contain, in the order in which they end."""
        ...


def run_missing(
    release: Path,
    images: Path,
    folder: Path,
    engine: Engine,
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    ray_address: str | None = None,
    device: Device = "auto",
) -> Run:
    """Run the shards of a job that are missing.

    A folder without a job is given one: as many shards as there are cores, more where one would have more than
    ``SHARD_IMAGES`` images.

    Args:
        release: release folder.
        images: folder or manifest, as of ``score_images``.
        folder: where the parts lie.
        engine: ``local``: one after the other; ``processes``: one process a core; ``ray``: tasks of a Ray cluster.
        observer: called with images done and in all.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        ray_address: of the cluster; None for that in ``RAY_ADDRESS``, or for one on this machine.
        device: where the network runs.

    Raises:
        ShardError: the folder has another job, processes were killed, or the cluster cannot be used.
        ValueError: the list or the release cannot be read, or the device not used.
    """
    scorer, listed = Scorer(release, tta=tta, seed=seed, device=device), open_list(images)
    with _pool(engine, ray_address) as pool:
        count = read_job(folder).n_shards if (folder / JOB_FILE).exists() else _shards_for(listed.rows, pool)
        job = open_job(scorer, listed, folder, count)
        missing = job.missing()
        if pool is None or (engine == "processes" and len(missing) < 2):
            _run_here(scorer, listed, job, missing, observer)
        else:
            work = ShardWork(release.absolute(), images.absolute(), folder.absolute(), job.sha256, tta, seed, device)
            _run_in(pool, work, job, missing, observer)
    return _complete_run(job, len(missing))


def _complete_run(job: Job, n_run: int) -> Run:
    """Summarise a finished run."""
    absent = job.missing()
    if absent:
        raise ShardError(
            f"{job.folder}: shards {numbers_text(absent)} were made, and are not here: is it another folder on another "
            "machine, or was it emptied meanwhile?"
        )
    parts = [part for shard in range(1, job.n_shards + 1) if (part := job.part(shard)) is not None]
    n_predictions, n_errors = (sum(part[name] for part in parts) for name in ("n_predictions", "n_errors"))
    return Run(job.n_shards, n_run, n_predictions, n_errors)


def _shards_for(rows: int, pool: Pool | None) -> int:
    workers = cores() if pool is None else pool.cores
    return max(min(workers, -(-rows // BLOCK)), -(-rows // SHARD_IMAGES))


def _images_of(job: Job, shard: int) -> int:
    first, stop = rows_of(shard, job.n_shards, job.document["n_images"])
    return stop - first


def _run_here(scorer: Scorer, listed: ImageList, job: Job, missing: list[int], observer: Observer) -> None:
    total, before = sum(_images_of(job, shard) for shard in missing), 0
    for shard in missing:

        def observe(done: int, _: int, before: int = before) -> None:
            observer(before + done, total)

        write_shard(scorer, listed, job, shard, observe)
        before += _images_of(job, shard)


def _run_in(pool: Pool, work: ShardWork, job: Job, missing: list[int], observer: Observer) -> None:
    total, done = sum(_images_of(job, shard) for shard in missing), 0
    observer(done, total)
    for part in pool.run(work, missing):
        done += part["n_predictions"] + part["n_errors"]
        observer(done, total)


@contextmanager
def _pool(engine: Engine, ray_address: str | None) -> Iterator[Pool | None]:
    """Processes for an engine; None where this one does it all."""
    if engine == "ray":
        with connect_to_ray(ray_address) as cluster:
            yield cluster
    else:
        yield None if engine == "local" else Processes(cores())


@dataclass(frozen=True)
class Processes:
    """Processes of this machine, which end with this one, however it ends.

    Attributes:
        cores: how many.
    """

    cores: int

    def run(self, work: ShardWork, shards: list[int]) -> Iterator[PartDocument]:
        """Make shards; what they contain, in the order in which they end.

        Raises:
            ShardError: a process was killed.
        """
        count = max(1, min(self.cores, len(shards)))
        pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent)
        try:
            for future in as_completed([pool.submit(work, shard) for shard in shards]):
                yield future.result()
        except BrokenProcessPool as exc:
            raise ShardError("a process was killed: start again, the shards that are done are kept") from exc
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End when the process that asked has ended, though it was killed."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
