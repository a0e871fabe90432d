"""Files that nobody uses: images that no case names, and what interrupted writes left."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import structlog
from sqlalchemy import select

from app.cases.queries import images_in_use
from app.context import Context
from app.database.tables import Evaluation, ReleaseRow
from app.releases.registration import UNFINISHED
from app.reports.frozen_evaluations import EVALUATIONS, frozen_name

# no request and no batch of a job takes so long
_OLD_SECONDS = 86_400.0
_log = structlog.get_logger("secondread")


def sweep_files(context: Context, older_than: float = _OLD_SECONDS) -> int:
    """Remove images that no case names, and what interrupted writes left, once they are old.

    Args:
        context: parts of the service.
        older_than: age in seconds, a day where left out.

    Returns:
        Number of files, an unfinished folder counted as one.
    """

    def used(digests: list[str]) -> set[str]:
        with context.database.read() as session:
            return images_in_use(session, digests)

    removed = context.images.sweep(used, older_than) + _remove_unknown_folders(context, older_than)
    removed += remove_unfinished(context, older_than)
    if removed:
        _log.info("files that nobody uses are removed", files=removed)
    return removed


def remove_unfinished(context: Context, older_than: float) -> int:
    """Remove what interrupted writes left in HOME once it is old; gives how many files and folders."""
    removed = 0
    for path in _unfinished(context):
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


def _remove_unknown_folders(context: Context, older_than: float) -> int:
    """Remove releases and frozen evaluations that were brought into the bucket and never got a row."""
    shared = context.folders.shared("releases") | context.folders.shared(EVALUATIONS)
    old = {name for name, age in shared.items() if age > older_than}
    if old:
        with context.database.read() as session:
            old -= {f"releases/{release_id}" for release_id in session.execute(select(ReleaseRow.id)).scalars()}
            frozen = session.execute(select(Evaluation.id, Evaluation.snapshot_sha256)).all()
        old -= {frozen_name(context.folders, *evaluation) for evaluation in frozen}
    for name in old:
        context.folders.remove(name)
    return len(old)


def _unfinished(context: Context) -> Iterator[Path]:
    home = context.settings.home
    yield from (home / "imports").glob(".*.part")
    yield from context.settings.releases_folder.glob(UNFINISHED)
    yield from (home / "snapshots").glob("*/.*.tmp")
    yield from home.glob(".secret.*.tmp")
    yield from home.glob(".*.part")
