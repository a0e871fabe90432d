"""Columns kept on disk, memory-mapped, with a watermark in the audit chain: an evaluation reads only what came after.

The snapshot of a release lies in ``HOME/snapshots/RELEASE/SEQUENCE``, an array file a column, cases of one patient
together. It is right for the event of its watermark; cases that later events changed are read from the database and
take the place of their old rows. A snapshot that the chain does not know (an older backup was restored) is not used.
"""

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.columns import Columns
from app.evaluations.reading import read_block, read_columns
from app.platform import audit_chain
from app.platform.database import Database
from ml.files import read_json, write_json

_log = structlog.get_logger("secondread")
_VERSION = 2
_ABOUT, _BY_ID = "snapshot.json", "by_id.npy"
# a snapshot is rewritten when more cases than this have changed: reading them costs more than the rest
_FEW = 250


def _folder(home: Path, release_id: uuid.UUID) -> Path:
    return home / "snapshots" / str(release_id)


@dataclass(frozen=True)
class _Snapshot:
    """Columns on disk, cases of one patient together, as of one event of the audit chain.

    Attributes:
        columns: memory-mapped.
        by_id: (N,) positions of the cases in the order of their identifiers.
        sequence: of the event.
        digest: of the event.
    """

    columns: Columns
    by_id: npt.NDArray[np.intp]
    sequence: int
    digest: str

    @classmethod
    def read(cls, folder: Path) -> "_Snapshot | None":
        """Map a snapshot; None where another version wrote it."""
        about = read_json(folder / _ABOUT)
        if about["version"] != _VERSION:
            return None
        names = Columns.empty(about["classes"], 0).arrays()
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}
        sites = {int(key): name for key, name in about["sites"].items()}
        columns = Columns(about["classes"], sites, **arrays)
        return cls(columns, np.load(folder / _BY_ID, mmap_mode="r"), about["sequence"], about["digest"])

    def with_changes(self, changed: list[uuid.UUID], fresh: Columns) -> Columns:
        """Columns in which the changed cases have their fresh rows, in the order of the patients.

        Args:
            changed: cases.
            fresh: those of them that there still are, as they are now.
        """
        wanted = np.frombuffer(b"".join(one.bytes for one in changed), dtype="S16")
        ids = np.ascontiguousarray(self.columns.case_id).view("S16").ravel()
        place = np.searchsorted(ids, wanted, sorter=self.by_id)
        old = self.by_id[np.minimum(place, len(ids) - 1)] if len(ids) else np.empty(0, dtype=np.intp)
        kept = np.delete(np.arange(len(ids)), old[ids[old] == wanted[: len(old)]])
        fresh = fresh.take(np.argsort(fresh.cluster, kind="stable"))
        new = np.searchsorted(self.columns.cluster[kept], fresh.cluster) + np.arange(len(fresh))
        source = np.zeros(kept.size + len(fresh), dtype=np.intp)
        source[np.delete(np.arange(source.size), new)] = kept
        arrays = {}
        for name, column in self.columns.arrays().items():
            # the default mode makes a copy first
            merged = np.take(column, source, axis=0, mode="clip") if len(ids) else np.empty_like(getattr(fresh, name))
            merged[new] = getattr(fresh, name)
            arrays[name] = merged
        return Columns(self.columns.classes, self.columns.sites | fresh.sites, **arrays)


def _usable(session: Session, home: Path, release_id: uuid.UUID, classes: list[str]) -> _Snapshot | None:
    """The newest snapshot of a release, if it is of this database and these classes."""
    folder = _folder(home, release_id)
    numbers = sorted((int(one.name) for one in folder.glob("[0-9]*") if one.name.isdigit()), reverse=True)
    for number in numbers:
        try:
            found = _Snapshot.read(folder / str(number))
        except FileNotFoundError:  # a newer one has just taken its place
            continue
        if found is not None and found.columns.classes == classes:
            return found if audit_chain.holds(session, found.sequence, found.digest) else None
    return None


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
    changed = audit_chain.changed_cases(session, found.sequence)
    if not changed:
        return found.columns
    return found.with_changes(changed, read_columns(session, release_id, classes, changed))


def write_snapshot(database: Database, home: Path, release_id: uuid.UUID, classes: list[str]) -> int:
    """Write a snapshot of a release, and remove older ones.

    Args:
        database: to read from, in a short transaction for each block of cases.
        home: where the snapshots lie.
        release_id: whose predictions.
        classes: its K class codes.

    Returns:
        Number of cases in it.

    Raises:
        OSError: it cannot be written.
    """
    with database.read() as session:
        # the watermark first: what changes while the columns are read is read again next time
        sequence, digest = audit_chain.head_of(session)
        known = _usable(session, home, release_id, classes)
        columns = None if known is None else current_columns(session, home, release_id, classes)
    if columns is None:
        columns = _read_all(database, release_id, classes)
    columns = columns.take(np.argsort(columns.cluster, kind="stable"))
    ids = np.ascontiguousarray(columns.case_id).view("S16").ravel()
    about = {"version": _VERSION, "sequence": sequence, "digest": digest, "classes": classes, "sites": columns.sites}
    folder = _folder(home, release_id)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{uuid.uuid4().hex}.tmp"
    unfinished.mkdir()
    for name, column in columns.arrays().items():
        np.save(unfinished / f"{name}.npy", column)
    np.save(unfinished / _BY_ID, np.argsort(ids, kind="stable"))
    write_json(unfinished / _ABOUT, about)
    try:
        unfinished.rename(folder / str(sequence))
    except OSError:
        if not (folder / str(sequence)).is_dir():
            raise
        shutil.rmtree(unfinished)  # another writer was faster, and wrote the same
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
    """Rewrite the snapshot of a release if it has grown old.

    Returns:
        Whether it was written.
    """
    home = context.settings.home
    with context.database.read() as session:
        found = _usable(session, home, release_id, classes)
        if found is not None:
            changed = len(audit_chain.changed_cases(session, found.sequence))
            if changed <= _FEW:
                return False
    n_cases = write_snapshot(context.database, home, release_id, classes)
    _log.info("snapshot written", release=str(release_id), cases=n_cases)
    return True
