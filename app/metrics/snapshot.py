"""Columns kept on disk, memory-mapped, with a watermark in the audit chain: an evaluation reads only what came after.

The snapshot of a release lies in ``HOME/snapshots/RELEASE/SEQUENCE``, one array file per column, cases of one patient
together. It is right for the event of its watermark; cases that later events changed are read from the database and
take the place of their old rows. It may show more than the watermark, what changed while it was read, so whoever does
not see everything that it may show (an older backup was restored) does not use it; nor a damaged
one, in whose place the worker writes another. With a bucket a snapshot is there, packed, before it is
in the HOME of the worker that wrote it; every other process brings the newest one into its own HOME, and removes what
is not in the bucket any more.
"""

import functools
import shutil
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import structlog
from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.context import Context
from app.database.engine import Database
from app.database.tables import Erasure
from app.metrics.dataset import Columns, identifiers, merged, replaced
from app.metrics.load import read_block, read_columns
from app.storage.blobs import Damaged
from app.storage.bundles import SharedFolders
from ml.util.files import file_sha256, sync_file, sync_folder, write_json

_log = structlog.get_logger("secondread")
_VERSION = 11
_SNAPSHOTS, _ABOUT, _BY_ID = "snapshots", "snapshot.json", "by_id.npy"
# a snapshot is rewritten when more cases than this have changed: reading them costs more than the rest
_FEW = 250
# a snapshot is not written while more events than this wait to be linked: it would have to name them all
_MOST_WAITING = 1_000


def _folder(home: Path, release_id: uuid.UUID) -> Path:
    return home / _SNAPSHOTS / str(release_id)


class _Seen(BaseModel):
    """What somebody sees of the audit: the head of the chain, and events that wait to be linked.

    Attributes:
        sequence: of the head.
        digest: of the head.
        waiting: digests of the events that wait, by their stamps.
    """

    sequence: int
    digest: str
    waiting: dict[int, str]

    @classmethod
    def by(cls, session: Session) -> "_Seen":
        """What a session sees; of what waits no more than can be named, and one."""
        sequence, digest = events.head_of(session)
        return cls(sequence=sequence, digest=digest, waiting=events.waiting_digests(session, _MOST_WAITING + 1))

    def is_seen_by(self, session: Session) -> bool:
        """Whether a session sees all of it."""
        if not events.holds(session, self.sequence, self.digest):
            return False
        return events.digests_at(session, list(self.waiting)) == self.waiting


class _About(BaseModel):
    """What ``snapshot.json`` says; another version may say less."""

    version: int
    sequence: int
    most: _Seen = _Seen(sequence=0, digest="", waiting={})
    classes: list[str]
    sites: dict[int, str]
    erasures: int = 0
    sha256: dict[str, str] = {}


@dataclass(frozen=True)
class _Snapshot:
    """Columns on disk, cases of one patient together, as of one event of the audit chain.

    Attributes:
        columns: memory-mapped; what is written to them is seen here only.
        by_id: (N,) positions of the cases in the order of their identifiers.
        sequence: of the event.
        most: what it may show at most.
        erasures: how many patients had been erased when it was begun; numbers of later ones are still in it.
    """

    columns: Columns
    by_id: npt.NDArray[np.intp]
    sequence: int
    most: _Seen
    erasures: int

    @classmethod
    def read(cls, folder: Path) -> "_Snapshot | None":
        """Map a snapshot; None where another version wrote it.

        Raises:
            ValueError: it is damaged, or gone.
        """
        try:
            about = _About.model_validate_json((folder / _ABOUT).read_bytes())
            if about.version != _VERSION:
                return None
            names = Columns.empty(about.classes, 0).arrays()
            files = [f"{name}.npy" for name in names] + [_BY_ID]
            stamps = tuple((folder / name).stat().st_mtime_ns for name in files)
            _require_digests(folder, tuple((name, about.sha256[name]) for name in files), stamps)
            # what is written to is copied, page by page, and the file stays as it is; as plain arrays, because each row
            # that is taken of NumPy's mapped ones costs twice as much
            arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
            columns = Columns(about.classes, about.sites, **arrays)
            return cls(columns, np.load(folder / _BY_ID, mmap_mode="r"), about.sequence, about.most, about.erasures)
        except (OSError, EOFError, KeyError) as exc:
            raise ValueError(f"{folder}: damaged, or gone") from exc


@functools.lru_cache(maxsize=64)
def _require_digests(folder: Path, digests: tuple[tuple[str, str], ...], _stamps: tuple[int, ...]) -> None:
    """Read every column once in a process, and again only when a file has changed since.

    Raises:
        ValueError: one is not what was written.
    """
    for name, digest in digests:
        if file_sha256(folder / name) != digest:
            raise ValueError(f"{folder / name}: damaged")


def _numbered(folder: Path) -> list[Path]:
    """Snapshots of a release, the newest first."""
    return sorted((path for path in folder.glob("[0-9]*") if path.name.isdigit()), key=lambda p: -int(p.name))


def _usable(session: Session, home: Path, release_id: uuid.UUID, classes: list[str]) -> _Snapshot | None:
    """The newest snapshot of a release that has these classes and shows nothing that the session does not see."""
    for path in _numbered(_folder(home, release_id)):
        try:
            snapshot = _Snapshot.read(path)
        except ValueError:  # a newer one has just taken its place, or the worker will write it anew
            continue
        if snapshot is not None and snapshot.columns.classes == classes and snapshot.most.is_seen_by(session):
            return snapshot
    return None


def damaged_snapshots(folders: SharedFolders) -> list[str]:
    """Snapshots that are not what was written, in HOME and in the bucket."""
    _require_digests.cache_clear()  # a bit may turn without a sign
    here = [path for folder in sorted((folders.home / _SNAPSHOTS).glob("*")) for path in _numbered(folder)]
    damaged = [str(path) for path in here if not _is_whole(path) and path.is_dir()]
    there = [name for name in sorted(folders.shared(_SNAPSHOTS)) if not folders.is_stored(name)]
    # one that went meanwhile was replaced
    return damaged + [f"{name} in the bucket" for name in there if name in folders.shared(name)]


def _is_whole(folder: Path) -> bool:
    try:
        _Snapshot.read(folder)
    except ValueError:
        return False
    return True


def _discard_damaged(folder: Path) -> None:
    for path in _numbered(folder):
        try:
            _Snapshot.read(path)
        except ValueError as exc:
            _log.warning("damaged snapshot discarded", reason=str(exc))
            shutil.rmtree(path, ignore_errors=True)


def _discard_foreign(session: Session, folders: SharedFolders, paths: list[Path]) -> None:
    """Remove snapshots with something that is not in the database any more: an older backup has been restored."""
    for path in paths:
        with suppress(ValueError):  # damaged, or gone
            snapshot = _Snapshot.read(path)
            if snapshot is not None and not snapshot.most.is_seen_by(session):
                _log.warning("snapshot of another state of the database discarded", folder=str(path))
                folders.remove(path.relative_to(folders.home).as_posix())


def current_columns(session: Session, home: Path, release_id: uuid.UUID, classes: list[str]) -> Columns:
    """What ``read_columns`` gives of all cases, in another order: the snapshot with what changed since.

    Args:
        session: for reading.
        home: where the snapshots lie.
        release_id: whose predictions.
        classes: its K class codes.
    """
    snapshot = _usable(session, home, release_id, classes)
    if snapshot is None:
        return read_columns(session, release_id, classes)
    changed = events.changed_cases(session, snapshot.sequence)
    if not changed:
        return snapshot.columns
    fresh = read_columns(session, release_id, classes, changed)
    given = (snapshot.columns, snapshot.by_id, changed, fresh)
    found = replaced(*given)
    return merged(*given) if found is None else found


def write_snapshot(database: Database, folders: SharedFolders, release_id: uuid.UUID, classes: list[str]) -> int | None:
    """Write a snapshot of a release, and remove older ones.

    Args:
        database: to read from, in a short transaction for each block of cases.
        folders: where the snapshots lie.
        release_id: whose predictions.
        classes: its K class codes.

    Returns:
        Number of cases in it; None where it was not written because too many events wait to be linked.

    Raises:
        OSError: it cannot be written.
    """
    home, folder = folders.home, _folder(folders.home, release_id)
    _discard_damaged(folder)
    found = _numbered(folder)
    with database.read() as session:
        _discard_foreign(session, folders, found)
        # the watermark first: what changes while the columns are read is read again next time
        sequence, _ = events.head_of(session)
        erasures = _n_erasures(session)
        known = _usable(session, home, release_id, classes)
        columns = None if known is None else current_columns(session, home, release_id, classes)
    if columns is None:
        columns = _read_all(database, release_id, classes)
    with database.read_moment() as session:
        most = _Seen.by(session)
    if len(most.waiting) > _MOST_WAITING:
        return None
    columns = columns.take(np.argsort(columns.cluster, kind="stable"))
    unfinished = folder / f".{uuid.uuid4().hex}.tmp"
    digests = _write_columns(columns, unfinished)
    about = _About(
        version=_VERSION,
        sequence=sequence,
        most=most,
        classes=classes,
        sites=columns.sites,
        erasures=erasures,
        sha256=digests,
    )
    write_json(unfinished / _ABOUT, about.model_dump())
    sync_folder(unfinished)
    folders.publish(f"{_SNAPSHOTS}/{release_id}/{sequence}", unfinished)
    _put_in_place(unfinished, folder, sequence)
    for name in folders.shared(f"{_SNAPSHOTS}/{release_id}"):
        if _sequence_of(name) < sequence:
            folders.remove(name)
    return len(columns)


def _write_columns(columns: Columns, folder: Path) -> dict[str, str]:
    """Write columns into a new folder; gives the digests of its files."""
    folder.mkdir(parents=True)
    for name, column in columns.arrays().items():
        np.save(folder / f"{name}.npy", column)
    np.save(folder / _BY_ID, np.argsort(identifiers(columns), kind="stable"))
    for path in folder.iterdir():
        sync_file(path)
    return {path.name: file_sha256(path) for path in folder.iterdir()}


def _put_in_place(unfinished: Path, folder: Path, sequence: int) -> None:
    """Name a snapshot by its event, and remove older ones.

    Raises:
        OSError: it cannot be renamed.
    """
    try:
        unfinished.rename(folder / str(sequence))
    except OSError:
        if not (folder / str(sequence)).is_dir():
            raise
        shutil.rmtree(unfinished)  # another writer was faster, and wrote the same
    sync_folder(folder)
    for older in folder.iterdir():
        if older.name.isdigit() and int(older.name) < sequence:
            shutil.rmtree(older, ignore_errors=True)


def _n_erasures(session: Session) -> int:
    return session.execute(select(func.count()).select_from(Erasure)).scalar_one()


def discard_all(folders: SharedFolders) -> int:
    """Remove every snapshot, since it has numbers of patients; the worker writes others. Gives how many there were."""
    here = {path.relative_to(folders.home).as_posix() for path in _folders_in(folders.home)}
    names = here | folders.shared(_SNAPSHOTS).keys()
    for name in names:
        folders.remove(name)
    return len(names)


def _folders_in(home: Path) -> list[Path]:
    """Snapshots of all releases, unfinished ones too."""
    return [path for path in (home / _SNAPSHOTS).glob("*/*") if path.is_dir()]


def _sequence_of(name: str) -> int:
    return int(name.rpartition("/")[2])


def bring_snapshots(folders: SharedFolders) -> None:
    """Make HOME's snapshots those of the bucket: the newest of each release comes, what was discarded there goes.

    A damaged one is removed from the bucket, so that the worker writes another.
    """
    if folders.bucket is None:
        return
    # these first: whoever writes one has put it into the bucket before
    here = [path for path in _folders_in(folders.home) if path.name.isdigit()]
    shared = folders.shared(_SNAPSHOTS)
    for path in here:
        if (name := path.relative_to(folders.home).as_posix()) not in shared:
            folders.discard_copy(name)
    newest = {name.rpartition("/")[0]: name for name in sorted(shared, key=_sequence_of)}
    for name in newest.values():
        if _is_whole(folders.home / name):
            continue
        folders.discard_copy(name)
        try:
            folders.bring(name)
        except Damaged:
            _log.warning("damaged snapshot discarded", reason=f"{name}: damaged in the bucket")
            folders.remove(name)


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
    bring_snapshots(context.folders)
    _discard_damaged(_folder(home, release_id))
    with context.database.read() as session:
        snapshot = _usable(session, home, release_id, classes)
        if (
            snapshot is not None
            and snapshot.erasures == _n_erasures(session)
            and len(events.changed_cases(session, snapshot.sequence)) <= _FEW
        ):
            return False
    n_cases = write_snapshot(context.database, context.folders, release_id, classes)
    if n_cases is None:
        _log.warning("no snapshot was written: too many audit events wait to be linked", release=str(release_id))
        return False
    _log.info("snapshot written", release=str(release_id), cases=n_cases)
    return True
