"""What ``serve`` runs: one process, or several on one port.

An interpreter runs one thread at a time: one process predicts with one core and a little, one per core with all of
them. The one that was started then serves nothing itself: it has the port, and keeps the others alive.
"""

import errno
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from app.cli.keeping import Kept, kept_alive
from app.cli.shared import keep_private, warn_of_open_home

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.settings import Settings

#: How long a server that was asked to stop works on the requests it has.
DRAIN_SECONDS = 20
#: How much longer one of several processes may take to end before it is killed.
_LONGER_SECONDS = 10
#: Connections that may wait to be accepted.
_BACKLOG = 2048
_LOOK_SECONDS = 0.5
_Made = TypeVar("_Made")


def application_here() -> "FastAPI":
    """The application that the environment describes."""
    from app.main import create_app

    settings = _settings()
    warn_of_open_home(settings.home)
    return create_app(settings)


def _settings() -> "Settings":
    """Settings of a process that serves, with its log and its traces begun."""
    from app.platform import observability, tracing
    from app.settings import collector_variable, read_settings

    keep_private()
    tracing.begin("serve", collector_variable())
    settings = read_settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    observability.configure_logging()
    return settings


def run(application: "FastAPI", address: str, port: int, processes: int) -> None:
    """Serve until somebody asks to stop.

    Args:
        application: by ``application_here``.
        address: to listen on.
        port: to listen on.
        processes: that serve; with more than one each makes an application of its own.

    Raises:
        OSError: the port is not free; with one process uvicorn says so.
    """
    import uvicorn

    from app.platform.memory_budget import give_back_freed_memory

    if processes > 1:
        application.state.context.database.engine.dispose()
        _run_several(address, port, processes)
        return
    give_back_freed_memory()
    _with_limits(uvicorn.run, application.state.context.settings)(application, host=address, port=port)


def _with_limits(make: Callable[..., _Made], settings: "Settings") -> Callable[..., _Made]:
    """What runs or describes a server of uvicorn's, with the limits that every process has."""
    from app.platform.connections import REFUSED_BEYOND, bounded_connections

    return partial(
        make,
        log_level="warning",
        access_log=False,
        limit_concurrency=REFUSED_BEYOND,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        http=bounded_connections(settings.trusted_proxies),
        ws="none",
    )


def _run_several(address: str, port: int, processes: int) -> None:
    """Keep some processes alive that serve a port, until somebody asks to stop.

    Raises:
        OSError: the port is not free.
    """
    from app.platform.observability import COUNTED_TOGETHER

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with (
        listening(address, port) as sockets,
        tempfile.TemporaryDirectory(prefix="secondread-counted-") as folder,
    ):
        descriptors = [one.fileno() for one in sockets]
        command = f"from app.cli.server import serve_one; serve_one({descriptors}, {os.getpid()})"
        environment = os.environ | {
            "SECONDREAD_PROCESSES": str(processes),
            COUNTED_TOGETHER: folder,
            # whoever wakes first would else accept all connections that wait, and work while the others look on
            "UV_TCP_SINGLE_ACCEPT": "1",
        }
        kept = Kept(
            "a server process",
            [sys.executable, "-c", command],
            environment,
            descriptors,
            DRAIN_SECONDS + _LONGER_SECONDS,
        )
        with kept_alive(kept, processes):
            stop.wait()
            for one in sockets:  # else who comes now would wait for an answer that nobody gives
                one.close()


@contextmanager
def listening(address: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets that listen at every address of a name, as uvicorn's does: ``localhost`` is often 127.0.0.1 and ::1.

    Args:
        address: to listen on, or its name.
        port: to listen on.

    Raises:
        OSError: the port is not free at one of them, or this machine has none of them.
    """
    found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as opened:
        sockets, absent = list[socket.socket](), None
        for family, _, _, _, place in dict.fromkeys(found):
            chosen = (place[0], sockets[0].getsockname()[1] if sockets else port, *place[2:])  # one, where any will do
            try:
                sockets.append(opened.enter_context(socket.create_server(chosen, family=family, backlog=_BACKLOG)))
            except OSError as exc:
                if exc.errno not in {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}:
                    raise
                absent = exc  # a name may have an address of a family that is switched off
        if not sockets and absent is not None:
            raise absent
        yield sockets


def serve_one(descriptors: Sequence[int], parent: int) -> None:
    """Serve as one of several processes.

    Args:
        descriptors: of the sockets that listen.
        parent: process that keeps this one alive; it may be gone already.

    Raises:
        SystemExit: always; with status 1 where it could not begin.
    """
    import uvicorn

    from app.main import create_app
    from app.platform.memory_budget import give_back_freed_memory
    from app.platform.observability import COUNTED_TOGETHER, count_with_others

    folder = Path(os.environ[COUNTED_TOGETHER])
    threading.Thread(target=_end_with, args=(parent, folder), daemon=True).start()
    settings = _settings()
    application = create_app(settings, sharing=settings.processes)
    count_with_others(folder)
    give_back_freed_memory()
    server = uvicorn.Server(_with_limits(uvicorn.Config, settings)(application))
    server.run(sockets=[socket.socket(fileno=descriptor) for descriptor in descriptors])
    raise SystemExit(0 if server.started else 1)


def _end_with(parent: int, folder: Path) -> None:
    """End this process, with the requests that it has, once the one that keeps it alive was killed.

    Else it kept the port, and what was counted together lay there for good.
    """
    looking = threading.Event()
    while os.getppid() == parent:
        looking.wait(_LOOK_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
