"""Server of one port, in one process or several, and the worker that it keeps alive."""

import ctypes
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, TypeVar

import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess
from uvicorn.supervisors.multiprocess import Process

from app.cli.shared import keep_private, warn_of_open_home

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0
# a process that lived so long did not fail at its start
_LIVED = 60.0
_log = structlog.get_logger("secondread")


@contextmanager
def supervise_processes(name: str, command: list[str]) -> Iterator[None]:
    """Run processes during the block; restart exited ones after increasing delays."""
    stop = threading.Event()
    watcher = threading.Thread(target=_supervise_process, args=(name, command, stop), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


def _supervise_process(name: str, command: list[str], stop: threading.Event) -> None:
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


if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.settings import Settings

#: How long a server that was asked to stop works on the requests it has.
DRAIN_SECONDS = 20
#: A process that does not answer uvicorn for so long is replaced; meanwhile a stop waits.
_HANGS_SECONDS = 5
#: A process that has not begun gets so long before uvicorn asks it anything: it imports, on a machine that may be busy.
_BEGINS_SECONDS = 120
#: A process that has not ended so long after the end of its requests is killed.
_KILL_SECONDS = 10
_Made = TypeVar("_Made")


def build_application() -> "FastAPI":
    """Build the application from the environment."""
    from app.main import create_app

    settings = _read_server_settings()
    warn_of_open_home(settings.home)
    return create_app(settings)


def _read_server_settings() -> "Settings":
    from app.http import observability
    from app.settings import collector_variable, read_settings

    keep_private()
    observability.start_tracing("serve", collector_variable())
    settings = read_settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    observability.configure_logging()
    return settings


def run_server(application: "FastAPI", address: str, port: int, processes: int) -> None:
    """Serve until the process is asked to stop."""
    settings = application.state.context.settings
    if processes > 1:
        application.state.context.database.engine.dispose()
        if not _run_several(settings, address, port, processes):
            raise SystemExit(1)
        return
    _give_back_freed_memory()
    _with_limits(uvicorn.run, settings)(application, host=address, port=port)


def _with_limits(make: Callable[..., _Made], settings: "Settings") -> Callable[..., _Made]:
    """Bind the limits that every server process has to a uvicorn function or class."""
    from app.http.connection_limits import BoundedConnection
    from app.http.limiter import REFUSED_BEYOND

    BoundedConnection.trusted = tuple(settings.trusted_proxies)
    return partial(
        make,
        log_level="warning",
        access_log=False,
        limit_concurrency=REFUSED_BEYOND,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        http=BoundedConnection,
        ws="none",
    )


def _run_several(settings: "Settings", address: str, port: int, processes: int) -> bool:
    """Supervise several server processes on one port until asked to stop."""
    from app.http.observability import COUNTED_TOGETHER

    with tempfile.TemporaryDirectory(prefix="secondread-counted-") as folder:
        os.environ |= {
            "SECONDREAD_PROCESSES": str(processes),
            COUNTED_TOGETHER: folder,
            # else the process that wakes first accepts all connections that wait
            "UV_TCP_SINGLE_ACCEPT": "1",
        }
        config = _with_limits(uvicorn.Config, settings)(
            "app.cli.server:one_of_several",
            factory=True,
            host=address,
            port=port,
            workers=processes,
            timeout_worker_healthcheck=_HANGS_SECONDS,
        )
        supervisor = PatientSupervisor(config, [config.bind_socket()], Path(folder))
        for number in (signal.SIGHUP, signal.SIGQUIT):  # uvicorn would restart all, or do nothing
            signal.signal(number, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
        threading.Thread(target=_kill_what_hangs, args=(supervisor,), daemon=True).start()
        supervisor.run()
    return all(one.exitcode != STARTUP_FAILURE for one in supervisor.processes)


class PatientSupervisor(Multiprocess):
    """Supervisor that leaves a process alone until it has begun: uvicorn would kill it while it imports, each time."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket], folder: Path) -> None:
        super().__init__(config, sockets)
        self._folder, self._first_seen = folder, dict[int | None, float]()

    def keep_subprocess_alive(self) -> None:
        """Replace the processes that have ended or hang."""
        beginning = [process for process in self.processes if self._is_beginning(process)]
        self.processes = [process for process in self.processes if process not in beginning]
        super().keep_subprocess_alive()
        self.processes += beginning

    def _is_beginning(self, process: Process) -> bool:
        seconds = time.monotonic() - self._first_seen.setdefault(process.pid, time.monotonic())
        has_begun = _begun_file(self._folder, process.pid).exists()
        return process.process.is_alive() and not has_begun and seconds < _BEGINS_SECONDS


def _begun_file(folder: Path, pid: int | None) -> Path:
    return folder / f"begun_{pid}"


def _kill_what_hangs(supervisor: Multiprocess) -> None:
    """Kill processes that do not end after a stop: uvicorn would wait for them without a limit."""
    supervisor.should_exit.wait()
    time.sleep(DRAIN_SECONDS + _KILL_SECONDS)
    for one in supervisor.processes:
        one.process.kill()


def one_of_several() -> "FastAPI":
    """Build the application of one of several processes, which ends when the process that started it was killed."""
    from app.http.observability import COUNTED_TOGETHER

    folder = Path(os.environ[COUNTED_TOGETHER])
    threading.Thread(target=_end_with_parent, args=(folder,), daemon=True).start()
    try:
        return _build_one_of_several(folder)
    except Exception:
        _log.exception("a server process cannot start")
        raise SystemExit(STARTUP_FAILURE) from None  # any other status: uvicorn would try again without an end


def _build_one_of_several(folder: Path) -> "FastAPI":
    from app.http.connection_limits import BoundedConnection
    from app.http.observability import share_process_metrics
    from app.main import create_app

    settings = _read_server_settings()
    BoundedConnection.trusted = tuple(settings.trusted_proxies)
    application = create_app(settings, sharing=settings.processes)
    share_process_metrics(folder)
    _give_back_freed_memory()
    _begun_file(folder, os.getpid()).touch()
    return application


def _end_with_parent(folder: Path) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(folder, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)


# of malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_MIB = 1024**2


def _give_back_freed_memory() -> None:
    """Have large freed blocks returned to the system, rather than kept by each thread for its next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MIB)
        mallopt(_M_TRIM_THRESHOLD, 8 * _MIB)
