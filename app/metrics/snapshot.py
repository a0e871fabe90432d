"""On-disk, memory-mapped datasets with a watermark in the audit chain, so that evaluations read only changes."""

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
from app.context import ServiceContext
from app.database.engine import Database
from app.database.tables import Erasure
from app.metrics.dataset import EvaluationDataset, merge_changed_cases, overwrite_changed_cases, pack_dataset_ids
from app.metrics.load import load_dataset, load_dataset_block
from app.storage.blobs import DamagedObjectError
from app.storage.bundles import SharedFolders
from ml.util.files import file_sha256, sync_file, sync_folder, write_json

_log = structlog.get_logger("secondread")
_VERSION = 13
_SNAPSHOTS, _MANIFEST_NAME, _BY_ID = "snapshots", "snapshot.json", "by_id.npy"
# a snapshot is rewritten when more cases than this have changed: reading them costs more than the rest
_MAX_CHANGED_CASES = 250


def _release_folder(home: Path, release_id: uuid.UUID) -> Path:
    return home / _SNAPSHOTS / str(release_id)


class _SnapshotManifest(BaseModel):
    """Contents of ``snapshot.json``; other versions may have fewer fields."""

    version: int
    sequence: int
    most: tuple[int, str] = (0, "")
    classes: list[str]
    sites: dict[int, str]
    erasures: int = 0
    sha256: dict[str, str] = {}


@dataclass(frozen=True)
class _ReleaseSnapshot:
    """Columns on disk, cases of one patient together, as of one event of the audit chain."""

    # memory-mapped; what is written to them is seen here only
    columns: EvaluationDataset
    # (N,) positions of the cases in the order of their identifiers
    by_id: npt.NDArray[np.intp]
    sequence: int
    # the last event of which it may show something, and its digest
    most: tuple[int, str]
    # how many patients had been erased when it was begun; numbers of later ones are still in it
    erasures: int

    @classmethod
    def read(cls, folder: Path) -> "_ReleaseSnapshot | None":
        """Map a snapshot; None where another version wrote it."""
        try:
            about = _SnapshotManifest.model_validate_json((folder / _MANIFEST_NAME).read_bytes())
            if about.version != _VERSION:
                return None
            names = EvaluationDataset.empty(about.classes, 0).arrays()
            files = [f"{name}.npy" for name in names] + [_BY_ID]
            stamps = tuple((folder / name).stat().st_mtime_ns for name in files)
            _require_digests(folder, tuple((name, about.sha256[name]) for name in files), stamps)
            # what is written to is copied, page by page, and the file stays as it is; as plain arrays, because each row
            # that is taken of NumPy's mapped ones costs twice as much
            arrays = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in names}
            columns = EvaluationDataset(about.classes, about.sites, **arrays)
            return cls(columns, np.load(folder / _BY_ID, mmap_mode="r"), about.sequence, about.most, about.erasures)
        except (OSError, EOFError, KeyError) as exc:
            raise ValueError(f"{folder}: damaged, or gone") from exc


@functools.lru_cache(maxsize=64)
def _require_digests(folder: Path, digests: tuple[tuple[str, str], ...], _stamps: tuple[int, ...]) -> None:
    """Read every column once in a process, and again only when a file has changed since."""
    for name, digest in digests:
        if file_sha256(folder / name) != digest:
            raise ValueError(f"{folder / name}: damaged")


def _numbered_snapshots(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("[0-9]*") if path.name.isdigit()), key=lambda p: -int(p.name))


def _find_usable_snapshot(
    session: Session, home: Path, release_id: uuid.UUID, classes: list[str]
) -> _ReleaseSnapshot | None:
    """The newest snapshot of a release that has these classes and shows nothing that the session does not see."""
    for path in _numbered_snapshots(_release_folder(home, release_id)):
        try:
            snapshot = _ReleaseSnapshot.read(path)
        except ValueError:  # a newer one has just taken its place, or the worker will write it anew
            continue
        if (
            snapshot is not None
            and snapshot.columns.classes == classes
            and events.contains_head(session, *snapshot.most)
        ):
            return snapshot
    return None


def damaged_snapshots(folders: SharedFolders) -> list[str]:
    """Snapshots that are not what was written, in HOME and in the bucket."""
    _require_digests.cache_clear()  # a bit may turn without a sign
    here = [path for folder in sorted((folders.home / _SNAPSHOTS).glob("*")) for path in _numbered_snapshots(folder)]
    damaged = [str(path) for path in here if not _is_intact(path) and path.is_dir()]
    there = [name for name in sorted(folders.shared(_SNAPSHOTS)) if not folders.is_stored(name)]
    # one that went meanwhile was replaced
    return damaged + [f"{name} in the bucket" for name in there if name in folders.shared(name)]


def _is_intact(folder: Path) -> bool:
    try:
        _ReleaseSnapshot.read(folder)
    except ValueError:
        return False
    return True


def _discard_damaged(folder: Path) -> None:
    for path in _numbered_snapshots(folder):
        try:
            _ReleaseSnapshot.read(path)
        except ValueError as exc:
            _log.warning("damaged snapshot discarded", reason=str(exc))
            shutil.rmtree(path, ignore_errors=True)


def load_current_dataset(session: Session, home: Path, release_id: uuid.UUID, classes: list[str]) -> EvaluationDataset:
    """Load the dataset of all cases, in any order: the snapshot updated with later changes."""
    snapshot = _find_usable_snapshot(session, home, release_id, classes)
    if snapshot is None:
        return load_dataset(session, release_id, classes)
    changed = events.changed_cases(session, snapshot.sequence)
    if not changed:
        return snapshot.columns
    fresh = load_dataset(session, release_id, classes, changed)
    given = (snapshot.columns, snapshot.by_id, changed, fresh)
    overwritten = overwrite_changed_cases(*given)
    return merge_changed_cases(*given) if overwritten is None else overwritten


def write_snapshot(database: Database, folders: SharedFolders, release_id: uuid.UUID, classes: list[str]) -> int:
    """Write a snapshot of a release, and remove older ones."""
    home, folder = folders.home, _release_folder(folders.home, release_id)
    _discard_damaged(folder)
    snapshot_paths = _numbered_snapshots(folder)
    with database.read() as session:
        for path in snapshot_paths:
            with suppress(ValueError):  # damaged, or gone
                snapshot = _ReleaseSnapshot.read(path)
                if snapshot is not None and not events.contains_head(session, *snapshot.most):
                    _log.warning("snapshot of another state of the database discarded", folder=str(path))
                    folders.remove(path.relative_to(folders.home).as_posix())
        # the watermark first: what changes while the columns are read is read again next time
        sequence, _ = events.read_head(session)
        erasures = _count_erasures(session)
        usable_snapshot = _find_usable_snapshot(session, home, release_id, classes)
        columns = None if usable_snapshot is None else load_current_dataset(session, home, release_id, classes)
    if columns is None:
        columns = _load_all_blocks(database, release_id, classes)
    with database.read() as session:
        most = events.read_head(session)
    columns = columns.take(np.argsort(columns.cluster, kind="stable"))
    unfinished = folder / f".{uuid.uuid4().hex}.tmp"
    digests = _write_columns(columns, unfinished)
    about = _SnapshotManifest(
        version=_VERSION,
        sequence=sequence,
        most=most,
        classes=classes,
        sites=columns.sites,
        erasures=erasures,
        sha256=digests,
    )
    write_json(unfinished / _MANIFEST_NAME, about.model_dump())
    sync_folder(unfinished)
    folders.publish(f"{_SNAPSHOTS}/{release_id}/{sequence}", unfinished)
    _rename_into_place(unfinished, folder, sequence)
    for name in folders.shared(f"{_SNAPSHOTS}/{release_id}"):
        if _sequence_of(name) < sequence:
            folders.remove(name)
    return len(columns)


def _write_columns(columns: EvaluationDataset, folder: Path) -> dict[str, str]:
    folder.mkdir(parents=True)
    for name, column in columns.arrays().items():
        np.save(folder / f"{name}.npy", column)
    np.save(folder / _BY_ID, np.argsort(pack_dataset_ids(columns), kind="stable"))
    for path in folder.iterdir():
        sync_file(path)
    return {path.name: file_sha256(path) for path in folder.iterdir()}


def _rename_into_place(unfinished: Path, folder: Path, sequence: int) -> None:
    """Rename a snapshot to its event number, and remove older ones."""
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


def _count_erasures(session: Session) -> int:
    return session.execute(select(func.count()).select_from(Erasure)).scalar_one()


def discard_all_snapshots(folders: SharedFolders) -> int:
    """Remove every snapshot, since it has numbers of patients; the worker writes others. Gives how many there were."""
    here = {path.relative_to(folders.home).as_posix() for path in _folders_in(folders.home)}
    names = here | folders.shared(_SNAPSHOTS).keys()
    for name in names:
        folders.remove(name)
    return len(names)


def _folders_in(home: Path) -> list[Path]:
    return [path for path in (home / _SNAPSHOTS).glob("*/*") if path.is_dir()]


def _sequence_of(name: str) -> int:
    return int(name.rpartition("/")[2])


def fetch_snapshots(folders: SharedFolders) -> None:
    """Make HOME's snapshots those of the bucket: the newest of each release comes, what was discarded there goes."""
    # A damaged one is removed from the bucket, so that the worker writes another.
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
        if _is_intact(folders.home / name):
            continue
        folders.discard_copy(name)
        try:
            folders.bring(name)
        except DamagedObjectError:
            _log.warning("damaged snapshot discarded", reason=f"{name}: damaged in the bucket")
            folders.remove(name)


def _load_all_blocks(database: Database, release_id: uuid.UUID, classes: list[str]) -> EvaluationDataset:
    blocks, after = [EvaluationDataset.empty(classes, 0)], uuid.UUID(int=0)
    while True:
        with database.read() as session:
            block = load_dataset_block(session, release_id, classes, after)
        if len(block) == 0:
            return EvaluationDataset.joined(blocks)
        blocks.append(block)
        after = block.ids()[-1]


def refresh_snapshot(context: ServiceContext, release_id: uuid.UUID, classes: list[str]) -> bool:
    """Rewrite the snapshot of a release if it has grown old."""
    home = context.settings.home
    fetch_snapshots(context.folders)
    _discard_damaged(_release_folder(home, release_id))
    with context.database.read() as session:
        snapshot = _find_usable_snapshot(session, home, release_id, classes)
        if (
            snapshot is not None
            and snapshot.erasures == _count_erasures(session)
            and len(events.changed_cases(session, snapshot.sequence)) <= _MAX_CHANGED_CASES
        ):
            return False
    n_cases = write_snapshot(context.database, context.folders, release_id, classes)
    _log.info("snapshot written", release=str(release_id), cases=n_cases)
    return True
