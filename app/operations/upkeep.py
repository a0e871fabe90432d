"""What the worker does from time to time so that the service stays as it is meant to be."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
from sqlalchemy import select

from app.context import Context
from app.imports.work import delete_archives
from app.platform.idempotency import SWEEP_ROWS, sweep
from app.reads.corrections import settle
from app.releases.adding import UNFINISHED
from app.tables import Case
from app.triage.planning import policy_for_planning

# no request and no batch of a job takes so long
_OLD_SECONDS = 86_400.0
_log = structlog.get_logger("secondread")


def tidy(context: Context) -> None:
    """Draw the conclusions from final labels, set the day's threshold, forget old answers and archives."""
    settle(context)
    delete_archives(context)
    with context.database.write() as session:
        policy_for_planning(session)
    deleted = SWEEP_ROWS
    while deleted == SWEEP_ROWS:
        with context.database.write() as session:
            deleted = sweep(session)


def sweep_files(context: Context) -> int:
    """Remove images that no case names, and what interrupted writes left, once they are a day old.

    Returns:
        Number of files, an unfinished folder counted as one.
    """

    def used(digests: list[str]) -> set[str]:
        with context.database.read() as session:
            return set(session.execute(select(Case.stored_sha256).where(Case.stored_sha256.in_(digests))).scalars())

    removed = context.images.sweep(used, _OLD_SECONDS)
    for path in _unfinished(context):
        try:
            old = time.time() - path.stat().st_mtime > _OLD_SECONDS
        except FileNotFoundError:
            continue
        if old:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed += 1
    if removed:
        _log.info("files that nobody uses are removed", files=removed)
    return removed


def _unfinished(context: Context) -> Iterator[Path]:
    home = context.settings.home
    yield from (home / "imports").glob(".*.part")
    yield from context.settings.releases_folder.glob(UNFINISHED)
    yield from (home / "snapshots").glob("*/.*.tmp")
    yield from home.glob(".secret.*.tmp")
