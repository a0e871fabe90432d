"""Keeping a process alive: watched, and started again when it ends."""

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# a process that lived so long did not fail at its start
_LIVED = 60.0
_log = structlog.get_logger("secondread")


@contextmanager
def kept_alive(name: str, command: list[str]) -> Iterator[None]:
    """Run a process while the block runs; when it ends it is started again, after a longer wait each time.

    Args:
        name: what it is called in the log.
        command: that starts it.
    """
    stop = threading.Event()
    watcher = threading.Thread(target=_keep, args=(name, command, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _keep(name: str, command: list[str], stop: threading.Event) -> None:
    wait = _FIRST_WAIT
    while not stop.is_set():
        started = time.monotonic()
        process = subprocess.Popen(command)  # noqa: S603
        while process.poll() is None:
            if stop.wait(0.1):
                process.terminate()
                process.wait()
                return
        wait = _FIRST_WAIT if time.monotonic() - started > _LIVED else min(2 * wait, _LONGEST_WAIT)
        _log.warning(f"{name} ended and is started again", status=process.returncode, seconds=wait)
        stop.wait(wait)
