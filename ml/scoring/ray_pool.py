"""Shards as Ray tasks, which may run more than once; Ray stores no results."""

import logging
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ml.scoring.shard_store import PartDocument, numbers_text
from ml.scoring.work import ShardWork
from ml.scoring.writing import ShardError
from ml.util.cores import cores as own_cores

if TYPE_CHECKING:
    from ray import ObjectRef

#: How often a shard is started again whose process or machine has died.
MAX_RETRIES = 3
#: Seconds that a busy machine has to start Ray.
_START_S = "120"
#: Seconds that a cluster has to answer.
_ANSWER_S = 10
_LOOK_AGAIN_S = 1.0
#: Kills processes, given as file descriptors, when whoever writes to its standard input is gone.
_KILLER = """
import signal, sys
sys.stdin.read()
for process in map(int, sys.argv[1:]):
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
    except OSError:
        pass
"""


@dataclass(frozen=True)
class RayPool:
    """A Ray cluster that this process is connected to.

    Attributes:
        cores: of all its machines.
    """

    cores: int

    def run(self, work: ShardWork, shards: list[int]) -> Iterator[PartDocument]:
        """Make shards, each by a task that has one core.

        Args:
            work: how.
            shards: their numbers.

        Returns:
            What each contains, in the order in which they end.

        Raises:
            ShardError: processes of a shard died again and again; it is said once all others are done.
        """
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


def _make(work: ShardWork, shard: int) -> PartDocument:
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
def connect_to_ray(address: str | None) -> Iterator[RayPool]:
    """Connect to a Ray cluster, or start one on this machine that ends with this process.

    Args:
        address: of the cluster, such as ``10.0.0.1:6379`` or ``auto``; None for that in ``RAY_ADDRESS``, or for one on
            this machine. A program that is connected already stays so, and names none.

    Raises:
        ShardError: there is no such cluster, or it cannot be used.
    """
    # before Ray is imported, which reads them then
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_raylet_start_wait_time_s", _START_S)
    given_address, address = address, address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local" and "RAY_AUTH_MODE" not in os.environ:
        # whoever else reaches its ports cannot use it, and no token is left in the home of who asked
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    import ray

    if ray.is_initialized():
        if given_address is not None:
            raise ShardError(
                f"Ray ({given_address}) cannot be used: this program is connected to Ray already; name no address"
            )
        yield RayPool(_cores())
        return
    _initialise_ray(address)
    with _not_outliving_this_process() if address == "local" else nullcontext():
        try:
            yield RayPool(_cores())
        finally:
            ray.shutdown()


def _initialise_ray(address: str) -> None:
    import ray
    from ray.exceptions import RayError

    n_cores = own_cores() if address == "local" else None
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


@contextmanager
def _not_outliving_this_process() -> Iterator[None]:
    """Have all processes that this one has started killed when it is gone, by another one."""
    # Of a killed command Ray's own agents spend a minute on telling a server about it that is gone as well. No setting
    # shortens that, and they cannot be left out.
    processes = []
    for number in _descendants(os.getpid()):
        with suppress(OSError):  # has ended
            processes.append(os.pidfd_open(number))
    command = [sys.executable, "-I", "-S", "-c", _KILLER, *map(str, processes)]
    # in a session of its own, or what kills the command and its group would kill this one first
    killer = subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=processes,
        start_new_session=True,
    )
    for process in processes:
        os.close(process)
    with killer:
        yield


def _descendants(number: int) -> Iterator[int]:
    """Numbers of the processes that a process has started, and of those that they have."""
    for children in Path(f"/proc/{number}/task").glob("*/children"):
        with suppress(OSError):  # has ended
            for child in map(int, children.read_text().split()):
                yield child
                yield from _descendants(child)


def _cores() -> int:
    import ray

    return max(1, int(ray.cluster_resources().get("CPU", 1)))
