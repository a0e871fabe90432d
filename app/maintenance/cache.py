"""Keeps each process's local cache in step with the bucket.

The newest snapshots come before a request needs them, so that no request waits for the bucket while its transaction is
open. What an erasure removed from the bucket goes from every HOME within a minute, and from that of a process which was
not running then when it begins.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.context import ServiceContext
from app.database.tables import Erasure
from app.http.errors import Problem
from app.maintenance.sweep import remove_unfinished
from app.metrics.service import fetch_snapshots

_EVERY_SECONDS = 30.0
# clocks differ, and an image may be read between the end of its rows and that of its object
_ERASED_SECONDS = 60.0
# no request takes so long to receive an archive, and no worker to pack a folder
_UNFINISHED_SECONDS = 3600.0
_log = structlog.get_logger("secondread")


def refresh_cache(context: ServiceContext) -> None:
    """Bring the newest snapshots, and remove copies of what is erased, old, or half-written."""
    if context.bucket is None:
        return
    with context.database.read() as session:
        erased = session.execute(select(func.max(Erasure.created_at))).scalar_one()
    context.bucket.trim(0.0 if erased is None else erased.timestamp() + _ERASED_SECONDS)
    remove_unfinished(context, _UNFINISHED_SECONDS)
    fetch_snapshots(context.folders)


@contextmanager
def keep_cache_fresh(context: ServiceContext) -> Iterator[None]:
    """Renew copies now and from time to time until the end of the block, in a thread; without a bucket do nothing."""
    over = threading.Event()

    def renew() -> None:
        while not over.is_set():
            try:
                refresh_cache(context)
            except (OSError, Problem, SQLAlchemyError) as exc:
                _log.warning("copies of what is in the bucket were not renewed", reason=type(exc).__name__)
            except Exception:
                _log.exception("copies of what is in the bucket were not renewed")  # the next time comes
            over.wait(_EVERY_SECONDS)

    if context.bucket is None:
        yield
        return
    thread = threading.Thread(target=renew, name="copies", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(2.0)
