"""Keeping a process alive: watched, and started again when it ends."""

import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# a process that lived so long did not fail at its start
_LIVED = 60.0
_log = structlog.get_logger("secondread")


@dataclass(frozen=True)
class Kept:
    """A process to keep alive.

    Attributes:
        name: what it is called in the log.
        command: that starts it.
        environment: of it; None: that of this process.
        descriptors: of files and sockets that it inherits.
        patience: seconds that it may take to end once it is asked to, before it is killed; None for any time.
    """

    name: str
    command: list[str]
    environment: Mapping[str, str] | None = None
    descriptors: Sequence[int] = ()
    patience: float | None = None


@contextmanager
def kept_alive(kept: Kept, number: int = 1) -> Iterator[None]:
    """Run processes while the block runs; one that ends is started again, after a longer wait each time.

    Args:
        kept: what is run.
        number: how many of them; they end together.
    """
    stop = threading.Event()
    watchers = [threading.Thread(target=_keep, args=(kept, stop), daemon=True) for _ in range(number)]
    for watcher in watchers:
        watcher.start()
    try:
        yield
    finally:
        stop.set()
        for watcher in watchers:
            watcher.join()


def _keep(kept: Kept, stop: threading.Event) -> None:
    wait = _FIRST_WAIT
    while not stop.is_set():
        started = time.monotonic()
        process = subprocess.Popen(kept.command, env=kept.environment, pass_fds=kept.descriptors)  # noqa: S603
        while process.poll() is None:
            if stop.wait(0.1):
                _end(process, kept.patience)
                return
        wait = _FIRST_WAIT if time.monotonic() - started > _LIVED else min(2 * wait, _LONGEST_WAIT)
        _log.warning(f"{kept.name} ended and is started again", status=process.returncode, seconds=wait)
        stop.wait(wait)


def _end(process: subprocess.Popen[bytes], patience: float | None) -> None:
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
