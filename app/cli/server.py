"""What ``serve`` runs: one process, or several on one port.

An interpreter runs one thread at a time: one process predicts with one core and a little, one per core with all of
them. uvicorn watches several, and starts another one in place of one that ended.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.shared import keep_private, warn_of_open_home
from app.platform.connections import REFUSED_BEYOND, BoundedConnection, bounded_connections

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.settings import Settings

#: How long a server that was asked to stop works on the requests it has.
DRAIN_SECONDS = 20
#: How long one of several processes that does not answer is left alone: a busy machine is no reason to end it.
HEALTH_SECONDS = 60


def application_here(processes: int | None) -> "FastAPI":
    """The application that the environment describes.

    Args:
        processes: that are to serve it; None: as many as the environment says.
    """
    from app.main import create_app

    if processes is not None:
        os.environ["SECONDREAD_PROCESSES"] = str(processes)  # of which each reads its own settings
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


def run(application: "FastAPI", address: str, port: int) -> None:
    """Serve until somebody asks to stop.

    Args:
        application: by ``application_here``.
        address: to listen on.
        port: to listen on.
    """
    import uvicorn

    from app.platform.memory_budget import give_back_freed_memory

    settings: Settings = application.state.context.settings
    serve = partial(
        uvicorn.run,
        host=address,
        port=port,
        log_level="warning",
        access_log=False,
        limit_concurrency=REFUSED_BEYOND,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
        ws="none",
    )
    if settings.processes > 1:
        application.state.context.database.engine.dispose()  # each process has connections of its own
        _run_several(settings.processes, serve)
        return
    give_back_freed_memory()
    serve(application, http=bounded_connections(settings.trusted_proxies))


def _run_several(processes: int, serve: Callable[..., None]) -> None:
    """Serve by several processes until somebody asks to stop.

    Args:
        processes: how many.
        serve: ``uvicorn.run`` with what does not depend on their number.
    """
    from app.platform.observability import COUNTED_TOGETHER

    # whoever wakes first would else accept all connections that wait, and work while the others look on
    os.environ.setdefault("UV_TCP_SINGLE_ACCEPT", "1")
    sys.stdin = None  # else each process wants to open it anew, which it may not be able to: nobody types into a server
    with tempfile.TemporaryDirectory(prefix="secondread-counted-") as folder:
        os.environ[COUNTED_TOGETHER] = folder
        serve(
            "app.cli.server:application_of_several",
            factory=True,
            workers=processes,
            http=ServerConnection,
            timeout_worker_healthcheck=HEALTH_SECONDS,
        )


class ServerConnection(BoundedConnection):
    """A connection of one of several processes, counted in it."""


def application_of_several() -> "FastAPI":
    """The application of one of several processes, made in it."""
    from app.main import create_app
    from app.platform.memory_budget import give_back_freed_memory
    from app.platform.observability import COUNTED_TOGETHER, count_with_others

    _end_with_parent()
    count_with_others(Path(os.environ[COUNTED_TOGETHER]))
    give_back_freed_memory()
    settings = _settings()
    ServerConnection.trusted = tuple(settings.trusted_proxies)
    return create_app(settings)


def _end_with_parent() -> None:
    """End this process, with the requests that it has, when whoever watches it was killed: else it kept the port."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
