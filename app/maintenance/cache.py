"""Removes files that no row names, and keeps each process's local cache in step with the bucket."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from app.cases.service import images_in_use
from app.context import ServiceContext
from app.database.tables import Erasure, Evaluation, ReleaseRow
from app.http.errors import Problem
from app.metrics.service import fetch_snapshots
from app.releases.service import UNFINISHED

# no request and no batch of a job takes so long
_OLD_SECONDS = 86_400.0
_log = structlog.get_logger("secondread")


def sweep_files(context: ServiceContext, older_than: float = _OLD_SECONDS) -> int:
    """Remove images that no case names, and what interrupted writes left, once they are old."""

    def used(digests: list[str]) -> set[str]:
        with context.database.read() as session:
            return images_in_use(session, digests)

    removed = context.images.sweep(used, older_than) + _remove_unknown_folders(context, older_than)
    removed += remove_unfinished(context, older_than)
    if removed:
        _log.info("files that nobody uses are removed", files=removed)
    return removed


def remove_unfinished(context: ServiceContext, older_than: float) -> int:
    """Remove what interrupted writes left in HOME once it is old; gives how many files and folders."""
    removed = 0
    for path in _find_unfinished_files(context):
        try:
            old = time.time() - path.stat().st_mtime > older_than
        except FileNotFoundError:
            continue
        if old:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed += 1
    return removed


def _remove_unknown_folders(context: ServiceContext, older_than: float) -> int:
    """Remove releases and frozen evaluations that were brought into the bucket and never got a row."""
    # charts and templates come with the reports: a worker loads them with its first sweep
    from app.reports.service import EVALUATIONS, shared_folder_name

    shared = context.folders.shared("releases") | context.folders.shared(EVALUATIONS)
    old = {name for name, age in shared.items() if age > older_than}
    if old:
        with context.database.read() as session:
            old -= {f"releases/{release_id}" for release_id in session.execute(select(ReleaseRow.id)).scalars()}
            frozen = session.execute(select(Evaluation.id, Evaluation.snapshot_sha256)).all()
        old -= {shared_folder_name(context.folders, *evaluation) for evaluation in frozen}
    for name in old:
        context.folders.remove(name)
    return len(old)


def _find_unfinished_files(context: ServiceContext) -> Iterator[Path]:
    home = context.settings.home
    yield from (home / "imports").glob(".*.part")
    yield from context.settings.releases_folder.glob(UNFINISHED)
    yield from (home / "snapshots").glob("*/.*.tmp")
    yield from home.glob(".secret.*.tmp")
    yield from home.glob(".*.part")


_EVERY_SECONDS = 30.0
# clocks differ, and an image may be read between the end of its rows and that of its object
_ERASED_SECONDS = 60.0
# no request takes so long to receive an archive, and no worker to pack a folder
_UNFINISHED_SECONDS = 3600.0


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
