"""Missing shards of a job, by processes of this machine or tasks of Ray.

Ray may run a task more than once: files of a shard are whole or missing.
"""

import logging
import os
import platform
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from typing import Literal

from ml.scoring.images import BLOCK, ImageList
from ml.scoring.shards import (
    JOB_FILE,
    PartDocument,
    ShardError,
    numbers_text,
    open_job,
    read_job,
    rows_of,
    write_shard,
)
from ml.scoring.table import Observer, Scorer, ScoreRequest
from ml.util.files import cores

Engine = Literal["local", "ray"]
#: Makes the shard with a number; picklable.
Work = Callable[[int], PartDocument]
#: Images of a shard at most, unless the folder has a job already.
SHARD_IMAGES = 20_000
#: Seconds that a busy machine has to start Ray.
_START_S = "120"
#: Seconds that a cluster has to answer.
_ANSWER_S = 10


@dataclass(frozen=True)
class Run:
    """Result of running the missing shards."""

    n_shards: int  # parts of the job
    n_run: int  # those that were missing and have been run
    n_predictions: int  # of all parts
    n_errors: int  # of all parts


def run_missing(
    request: ScoreRequest,
    folder: Path,
    engine: Engine = "local",
    observer: Observer = lambda done, total: None,
    *,
    ray_address: str | None = None,
) -> Run:
    """Run missing shards; a new job has at least one shard per core."""
    scorer, listed = request.open()
    with connect_to_ray(ray_address) if engine == "ray" else nullcontext(cores()) as n_cores:
        n_shards = max(min(n_cores, -(-listed.rows // BLOCK)), -(-listed.rows // SHARD_IMAGES))
        if (folder / JOB_FILE).exists():
            n_shards = read_job(folder).n_shards
        job = open_job(scorer, listed, folder, n_shards)
        missing = job.missing()
        absolute = replace(request, release=request.release.absolute(), images=request.images.absolute())
        work = ShardWork(absolute, folder.absolute(), n_shards)
        parts: Iterable[PartDocument]
        if engine == "ray":
            parts = run_on_ray(work, missing)
        elif scorer.predictor.on_gpu or min(n_cores, len(missing)) < 2:
            # a GPU has one queue, and a single shard has all cores
            parts = (write_shard(scorer, listed, job, shard) for shard in missing)
        else:
            parts = run_in_processes(work, missing, n_cores)
        spans = [rows_of(shard, n_shards, listed.rows) for shard in missing]
        done, total = 0, sum(stop - first for first, stop in spans)
        observer(done, total)
        for part in parts:
            done += part["n_predictions"] + part["n_errors"]
            observer(done, total)
    absent = job.missing()
    if absent:
        raise ShardError(
            f"{folder}: shards {numbers_text(absent)} were made, and are not here: is it another folder on another "
            "machine, or was it emptied meanwhile?"
        )
    n_predictions, n_errors = (sum(part[name] for part in job.parts()) for name in ("n_predictions", "n_errors"))
    return Run(n_shards, len(missing), n_predictions, n_errors)


@dataclass(frozen=True)
class ShardWork:
    """Work order of a job for other processes, called with a shard."""

    request: ScoreRequest  # its paths are absolute
    folder: Path
    n_shards: int

    def __call__(self, shard: int) -> PartDocument:
        """Predict a shard, unless it is there."""
        if not (self.folder / JOB_FILE).exists():
            raise ShardError(
                f"{self.folder}: is not the folder of this job on the machine {platform.node()}: every machine has to "
                "see the same one"
            )
        scorer, listed = _open_once(self.request)
        return write_shard(scorer, listed, open_job(scorer, listed, self.folder, self.n_shards), shard)


@lru_cache(maxsize=1)
def _open_once(request: ScoreRequest) -> tuple[Scorer, ImageList]:
    return request.open(threads=1)  # the other cores have shards to work on


def run_in_processes(work: Work, shards: list[int], n_processes: int) -> Iterator[PartDocument]:
    """Make shards by local processes; yield their documents."""
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
    """End with the parent process, however it ends."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_on_ray(work: Work, shards: list[int]) -> Iterator[PartDocument]:
    """Make shards by Ray tasks, one core each; yield their documents."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    task = ray.remote(_make)
    running = {task.remote(work, shard): shard for shard in shards}
    lost: dict[int, str] = {}
    while running:
        ended, _ = ray.wait(list(running))
        shard = running.pop(ended[0])
        try:
            yield ray.get(ended[0])
        except RayTaskError as exc:
            if isinstance(exc.cause, ValueError | OSError):
                raise exc.cause from None
            message_lines = str(exc.cause).strip().splitlines()[-1:] or [type(exc.cause).__name__]
            raise ShardError(
                f"a machine of the Ray cluster cannot make shards ({message_lines[0]}): it needs the same Python with "
                "the same 'secondread-cells[cpu,ray]' as this one"
            ) from exc
        except RayError as exc:
            lost[shard] = type(exc).__name__
    if lost:
        kinds = ", ".join(sorted(set(lost.values())))
        raise ShardError(
            f"shards {numbers_text(sorted(lost))} died, and again after Ray had restarted them ({kinds}); all "
            "others are done and kept. Run one of these with --shard to see why"
        )


def _make(work: Work, shard: int) -> PartDocument:
    return work(shard)


@contextmanager
def connect_to_ray(address: str | None) -> Iterator[int]:
    """Connect to Ray, or start it here; yield its number of cores."""
    # before Ray is imported, which reads them then
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", _START_S)
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local" and "RAY_AUTH_MODE" not in os.environ:
        # no other user can use its ports, and no token is left in the home
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray

    connected_before = ray.is_initialized()
    if not connected_before:
        _initialise_ray(address)
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if not connected_before:
            ray.shutdown()


def _initialise_ray(address: str) -> None:
    import ray
    from ray.exceptions import RayError

    host, colon, port = address.removeprefix("ray://").rpartition(":")
    n_cores = cores() if address == "local" else None
    try:
        if colon and port.isdecimal():  # Ray itself would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        ray.init(address, num_cpus=n_cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, RuntimeError, OSError, ValueError) as exc:
        message = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
        raise ShardError(f"Ray ({address}) cannot be used: {message}") from exc
