"""All missing shards of a job: by processes of this machine, or as tasks of a Ray cluster.

Ray stores no results and may run a task more than once: a shard is a file, and its files are whole or not there.
"""

import logging
import os
import platform
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ml.release.device import Device
from ml.scoring.images import BLOCK, ImageList, open_list
from ml.scoring.shards import (
    JOB_FILE,
    Job,
    PartDocument,
    ShardError,
    numbers_text,
    open_job,
    read_job,
    rows_of,
    write_shard,
)
from ml.scoring.table import Observer, Scorer
from ml.util.cores import cores

if TYPE_CHECKING:
    from ray import ObjectRef

Engine = Literal["local", "ray"]
#: Makes the shard with a number; picklable.
Work = Callable[[int], PartDocument]
#: Images of a shard at most, unless the folder has a job already.
SHARD_IMAGES = 20_000
#: How often Ray starts a shard again whose process or machine has died.
MAX_RETRIES = 3
#: Seconds that a busy machine has to start Ray.
_START_S = "120"
#: Seconds that a cluster has to answer.
_ANSWER_S = 10
_LOOK_AGAIN_S = 1.0


@dataclass(frozen=True)
class Run:
    """Result of running the missing shards."""

    n_shards: int  # parts of the job
    n_run: int  # those that were missing and have been run
    n_predictions: int  # of all parts
    n_errors: int  # of all parts


def run_missing(
    release: Path,
    images: Path,
    folder: Path,
    engine: Engine = "local",
    observer: Observer = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
    ray_address: str | None = None,
    device: Device = "auto",
) -> Run:
    """Run the shards of a job that are missing."""
    scorer, listed = Scorer(release, tta=tta, seed=seed, device=device), open_list(images)
    with connect_to_ray(ray_address) if engine == "ray" else nullcontext(cores()) as n_cores:
        count = read_job(folder).n_shards if (folder / JOB_FILE).exists() else _shards_for(listed.rows, n_cores)
        job = open_job(scorer, listed, folder, count)
        missing = job.missing()
        # a GPU has one queue for all processes, and one process has all cores for its only shard
        if engine == "local" and (scorer.predictor.on_gpu or min(n_cores, len(missing)) < 2):
            _run_here(scorer, listed, job, missing, observer)
        else:
            work = ShardWork(release.absolute(), images.absolute(), folder.absolute(), job.sha256, tta, seed, device)
            parts = run_on_ray(work, missing) if engine == "ray" else run_in_processes(work, missing, n_cores)
            total, done = _images_of(job, missing), 0
            observer(done, total)
            for part in parts:
                done += part["n_predictions"] + part["n_errors"]
                observer(done, total)
    return _complete_run(job, len(missing))


def _shards_for(rows: int, n_cores: int) -> int:
    return max(min(n_cores, -(-rows // BLOCK)), -(-rows // SHARD_IMAGES))


def _images_of(job: Job, shards: list[int]) -> int:
    spans = (rows_of(shard, job.n_shards, job.document["n_images"]) for shard in shards)
    return sum(stop - first for first, stop in spans)


def _run_here(scorer: Scorer, listed: ImageList, job: Job, missing: list[int], observer: Observer) -> None:
    total, before = _images_of(job, missing), 0
    for shard in missing:

        def observe(done: int, _: int, before: int = before) -> None:
            observer(before + done, total)

        write_shard(scorer, listed, job, shard, observe)
        before += _images_of(job, [shard])


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


@dataclass(frozen=True)
class ShardWork:
    """Work order of a job for other processes; called with a shard's number, it makes that shard."""

    release: Path  # release folder, like the other paths absolute
    images: Path  # folder or manifest
    folder: Path  # contains the parts
    job_sha256: str  # digest of the job that was begun there
    tta: int | None  # augmented views an image, None for the image itself
    seed: int  # of the views
    device: Device  # where the network runs

    def __call__(self, shard: int) -> PartDocument:
        """Predict a shard, unless it is there."""
        if not (self.folder / JOB_FILE).exists() or read_job(self.folder).sha256 != self.job_sha256:
            raise ShardError(
                f"{self.folder}: is not the folder of this job on the machine {platform.node()}: every machine has to "
                "see the same one"
            )
        scorer, listed = _open_release_and_list(self.release, self.images, self.tta, self.seed, self.device)
        job = open_job(scorer, listed, self.folder, read_job(self.folder).n_shards)
        return write_shard(scorer, listed, job, shard, lambda done, total: None)


@lru_cache(maxsize=1)
def _open_release_and_list(
    release: Path, images: Path, tta: int | None, seed: int, device: Device
) -> tuple[Scorer, ImageList]:
    """Release and list, which a process keeps from one shard to the next: it is there for one run only."""
    # one thread: the other cores have shards to work on
    return Scorer(release, tta=tta, seed=seed, threads=1, device=device), open_list(images)


def run_in_processes(work: Work, shards: list[int], n_processes: int) -> Iterator[PartDocument]:
    """Make shards by processes of this machine, which end with this one; their documents, in the order they end."""
    count = min(n_processes, len(shards))
    pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_end_with_parent)
    try:
        for future in as_completed([pool.submit(work, shard) for shard in shards]):
            yield future.result()
    except BrokenProcessPool as exc:
        raise ShardError("a process was killed: start again, the shards that are done are kept") from exc
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End when the parent process has ended, even if it was killed."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)


def run_on_ray(work: Work, shards: list[int]) -> Iterator[PartDocument]:
    """Make shards by tasks of the connected Ray cluster, one core each; their documents, in the order they end."""
    import ray
    from ray.exceptions import RayError

    task = ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_make)
    running = {task.remote(work, shard): shard for shard in shards}
    lost: dict[int, str] = {}
    try:
        while running:
            ended, _ = ray.wait(list(running), num_returns=len(running), timeout=_LOOK_AGAIN_S)
            for reference in ended:
                shard = running.pop(reference)
                try:
                    yield _result(reference)
                except RayError as exc:
                    lost[shard] = type(exc).__name__
    finally:  # a program that stays connected has no use for the others
        for reference in running:
            ray.cancel(reference, force=True)
    if lost:
        kinds = ", ".join(sorted(set(lost.values())))
        raise ShardError(
            f"shards {numbers_text(sorted(lost))} died, and again when Ray had started them anew ({kinds}); all "
            "others are done and kept. Run one of these with --shard to see why"
        )


def _make(work: Work, shard: int) -> PartDocument:
    return work(shard)


def _result(reference: "ObjectRef[PartDocument]") -> PartDocument:
    """Result of a finished task."""
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(reference)
    except RayTaskError as exc:
        if isinstance(exc.cause, ValueError | OSError):
            raise exc.cause from None
        message_lines = str(exc.cause).strip().splitlines()[-1:] or [type(exc.cause).__name__]
        raise ShardError(
            f"a machine of the Ray cluster cannot make shards ({message_lines[0]}): it needs the same Python with the "
            "same 'secondread[cpu,ray]' as this one"
        ) from exc


@contextmanager
def connect_to_ray(address: str | None) -> Iterator[int]:
    """Connect to a Ray cluster, or start one on this machine that ends with this process; yield its number of cores."""
    # before Ray is imported, which reads them then
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", _START_S)
    given_address, address = address, address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local" and "RAY_AUTH_MODE" not in os.environ:
        # other users who reach its ports cannot use it, and no token is left in the home of this user
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray

    if ray.is_initialized():
        if given_address is not None:
            raise ShardError(
                f"Ray ({given_address}) cannot be used: this program is connected to Ray already; name no address"
            )
        yield _cluster_cores()
        return
    _initialise_ray(address)
    try:
        yield _cluster_cores()
    finally:
        ray.shutdown()


def _initialise_ray(address: str) -> None:
    import ray
    from ray.exceptions import RayError

    n_cores = cores() if address == "local" else None
    try:
        _require_reachable(address)
        ray.init(address, num_cpus=n_cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, RuntimeError, OSError, ValueError) as exc:
        message = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise ShardError(f"Ray ({address}) cannot be used: {message}") from exc


def _require_reachable(address: str) -> None:
    """Check that an address answers, since Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()


def _cluster_cores() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))
