"""Shards that are missing, run here: one after the other, or in several processes."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Literal

from ml.release.device import Device
from ml.scoring.image_list import BLOCK, ImageList, open_list
from ml.scoring.one_table import Observer
from ml.scoring.parts import JOB_FILE, Job, PartDocument, read_job
from ml.scoring.predicting import Scorer
from ml.scoring.shards import open_job, rows_of, score_shard, write_shard
from ml.scoring.writing import ShardError

Engine = Literal["local", "processes"]
#: Images of a shard, where nobody said how many shards there are.
SHARD_IMAGES = 20_000


@dataclass(frozen=True)
class Run:
    """What an engine did.

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


def run_missing(
    release: Path,
    images: Path,
    folder: Path,
    engine: Engine,
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    device: Device = "auto",
) -> Run:
    """Run the shards of a job that are missing.

    A folder without a job is given one: as many shards as there are cores, more where one would have more than
    ``SHARD_IMAGES`` images.

    Args:
        release: release folder.
        images: folder or manifest, as of ``score_images``.
        folder: where the parts lie.
        engine: ``local``: one after the other; ``processes``: one process a core.
        observer: called with images done and in all.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        device: where the network runs.

    Raises:
        ShardError: the folder has another job, or a process was killed.
        ValueError: the list or the release cannot be read, or the device not used.
    """
    scorer, listed = Scorer(release, tta=tta, seed=seed, device=device), open_list(images)
    cores = len(os.sched_getaffinity(0))
    count = read_job(folder).n_shards if (folder / JOB_FILE).exists() else _shards_for(listed.rows, cores)
    job = open_job(scorer, listed, folder, count)
    missing = job.missing()
    if engine == "local" or len(missing) < 2:
        _run_here(scorer, listed, job, missing, observer)
    else:

        def work(pool: ProcessPoolExecutor) -> None:
            _run_in(pool, job, missing, observer, (release, images, tta, seed, device))

        _with_processes(min(cores, len(missing)), work)
    parts = [part for shard in range(1, job.n_shards + 1) if (part := job.part(shard)) is not None]
    return Run(
        job.n_shards,
        len(missing),
        sum(part["n_predictions"] for part in parts),
        sum(part["n_errors"] for part in parts),
    )


def _shards_for(rows: int, cores: int) -> int:
    return max(min(cores, -(-rows // BLOCK)), -(-rows // SHARD_IMAGES))


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


def _with_processes(count: int, work: Callable[[ProcessPoolExecutor], None]) -> None:
    """Do something with processes that end with this one, however it ends.

    Raises:
        ShardError: a process was killed.
    """
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        work(pool)
    except BrokenProcessPool as exc:
        raise ShardError("a process was killed: start again, the shards that are done are kept") from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _run_in(
    pool: ProcessPoolExecutor,
    job: Job,
    missing: list[int],
    observer: Observer,
    how: tuple[Path, Path, int | None, int, Device],
) -> None:
    release, images, tta, seed, device = how
    total, done = sum(_images_of(job, shard) for shard in missing), 0
    running = {
        pool.submit(_shard_alone, release, images, job.folder, (shard, job.n_shards), tta, seed, device)
        for shard in missing
    }
    while running:
        ended, running = wait(running, return_when=FIRST_COMPLETED)
        for future in ended:
            part = future.result()
            done += part["n_predictions"] + part["n_errors"]
            observer(done, total)


def _shard_alone(
    release: Path, images: Path, folder: Path, shard: tuple[int, int], tta: int | None, seed: int, device: Device
) -> PartDocument:
    # the other cores have shards of their own
    return score_shard(release, images, folder, shard, tta=tta, seed=seed, threads=1, device=device)


def _end_with_parent() -> None:
    """End when the process that asked has ended, though it was killed."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
