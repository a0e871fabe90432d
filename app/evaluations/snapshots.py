"""Columns kept on disk, memory-mapped, with a watermark in the audit chain: an evaluation reads only what came after.

The snapshot of a release lies in ``HOME/snapshots/RELEASE/SEQUENCE``, an array file a column, cases of one patient
together. It is right for the event of its watermark; cases that later events changed are read from the database and
take the place of their old rows. A snapshot that the chain does not know (an older backup was restored) is not used.
"""

import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
from sqlalchemy.orm import Session

from app import audit
from app.context import Context
from app.database import Database
from app.evaluations.columns import Columns
from app.evaluations.reading import read_block, read_columns
from ml.run_folder import read_json, write_json

_log = structlog.get_logger("secondread")
_VERSION = 1
_ABOUT = "snapshot.json"
# a snapshot is written anew when so many cases changed, or this share of it
_FEW, _SHARE = 500, 0.01


def _folder(home: Path, release_id: uuid.UUID) -> Path:
    return home / "snapshots" / str(release_id)


def _newest(home: Path, release_id: uuid.UUID) -> tuple[Columns, dict[str, Any]] | None:
    """The newest snapshot of a release, memory-mapped, and what was written about it; None where there is none."""
    folder = _folder(home, release_id)
    numbers = sorted((int(one.name) for one in folder.glob("[0-9]*") if one.name.isdigit()), reverse=True)
    for number in numbers:
        try:
            about = read_json(folder / str(number) / _ABOUT)
            if about["version"] != _VERSION:
                continue
            names = Columns.empty(about["classes"], 0).arrays()
            arrays = {name: np.load(folder / str(number) / f"{name}.npy", mmap_mode="r") for name in names}
        except FileNotFoundError:  # a newer one has just taken its place
            continue
        sites = {int(key): name for key, name in about["sites"].items()}
        return Columns(about["classes"], sites, **arrays), about
    return None


def _usable(
    session: Session, home: Path, release_id: uuid.UUID, classes: list[str]
) -> tuple[Columns, dict[str, Any]] | None:
    """The newest snapshot, if it is of this database and these classes."""
    found = _newest(home, release_id)
    if found is None or found[0].classes != classes:
        return None
    about = found[1]
    return found if audit.holds(session, about["sequence"], about["digest"]) else None


def current_columns(session: Session, home: Path, release_id: uuid.UUID, classes: list[str]) -> Columns:
    """What ``read_columns`` gives of all cases, in another order: the snapshot with what changed since.

    Args:
        session: for reading.
        home: where the snapshots lie.
        release_id: whose predictions.
        classes: its K class codes.
    """
    found = _usable(session, home, release_id, classes)
    if found is None:
        return read_columns(session, release_id, classes)
    columns, about = found
    changed = audit.changed_cases(session, about["sequence"])
    if not changed:
        return columns
    return _with(columns, changed, read_columns(session, release_id, classes, changed))


def _with(columns: Columns, changed: list[uuid.UUID], fresh: Columns) -> Columns:
    """Columns in which the changed cases have their fresh rows."""
    gone = np.frombuffer(b"".join(one.bytes for one in changed), dtype="S16")
    ours = np.ascontiguousarray(columns.case_id).view("S16").ravel()
    kept = np.flatnonzero(~np.isin(ours, gone))
    parts = {name: _joined(column, kept, getattr(fresh, name)) for name, column in columns.arrays().items()}
    return Columns(columns.classes, columns.sites | fresh.sites, **parts)


def _joined(old: npt.NDArray[Any], kept: npt.NDArray[np.intp], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Kept rows of one array, then all of another, copied once."""
    result = np.empty((kept.size + len(new), *old.shape[1:]), dtype=old.dtype)
    np.take(old, kept, axis=0, out=result[: kept.size], mode="clip")  # the default makes a copy first
    result[kept.size :] = new
    return result


def write_snapshot(database: Database, home: Path, release_id: uuid.UUID, classes: list[str]) -> int:
    """Write a snapshot of a release as of now, and remove older ones.

    Args:
        database: to read from, in a short transaction for each block of cases.
        home: where the snapshots lie.
        release_id: whose predictions.
        classes: its K class codes.

    Returns:
        Number of cases in it.
    """
    with database.read() as session:
        # the watermark first: what changes while the columns are read is read again next time
        sequence, digest = audit.head_of(session)
        known = _usable(session, home, release_id, classes)
        columns = None if known is None else current_columns(session, home, release_id, classes)
    if columns is None:
        columns = _read_all(database, release_id, classes)
    columns = columns.take(np.argsort(columns.cluster, kind="stable"))
    about = {"version": _VERSION, "sequence": sequence, "digest": digest, "classes": classes, "sites": columns.sites}
    folder = _folder(home, release_id)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{uuid.uuid4().hex}.tmp"
    unfinished.mkdir()
    for name, column in columns.arrays().items():
        np.save(unfinished / f"{name}.npy", column)
    write_json(unfinished / _ABOUT, about)
    if (folder / str(sequence)).exists():  # another worker was faster
        shutil.rmtree(unfinished)
    else:
        unfinished.rename(folder / str(sequence))
    for older in folder.iterdir():
        if older.name.isdigit() and int(older.name) < sequence:
            shutil.rmtree(older, ignore_errors=True)
    return len(columns)


def _read_all(database: Database, release_id: uuid.UUID, classes: list[str]) -> Columns:
    blocks, after = [Columns.empty(classes, 0)], uuid.UUID(int=0)
    while True:
        with database.read() as session:
            block = read_block(session, release_id, classes, after)
        if len(block) == 0:
            return Columns.joined(blocks)
        blocks.append(block)
        after = block.ids()[-1]


def refresh(context: Context, release_id: uuid.UUID, classes: list[str]) -> bool:
    """Write the snapshot of a release anew if it has grown old.

    Returns:
        Whether it was written.
    """
    home = context.settings.home
    with context.database.read() as session:
        found = _usable(session, home, release_id, classes)
        if found is not None:
            columns, about = found
            changed = len(audit.changed_cases(session, about["sequence"]))
            if changed <= max(_FEW, _SHARE * len(columns)):
                return False
    n_cases = write_snapshot(context.database, home, release_id, classes)
    _log.info("snapshot written", release=str(release_id), cases=n_cases)
    return True
