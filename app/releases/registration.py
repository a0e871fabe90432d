"""Registers a release folder with the service."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.engine import Database
from app.database.tables import Alias, ReleaseRow, new_id
from app.http.errors import Conflict, StorageFull
from app.releases.gate_verdicts import gate_verdict, read_card_gate
from app.releases.queries import all_releases, class_codes, get_champion_alias
from app.releases.sandbox_run import try_release
from app.storage.bundles import SharedFolders
from ml.release.artifact import Release, ReleaseError, copy_release, read_release

#: Folders of releases that have no row yet.
UNFINISHED = ".candidate-*"


def add_release(
    database: Database, keys: AuditKeys, source: Path, folders: SharedFolders, ood_images: Path | None = None
) -> tuple[ReleaseRow, bool]:
    """Copy a release folder, verify the copy, run its network in a limited process, and only then make its row.

    With ``ood_images`` a check for unlike images is fitted to them and becomes part of the release.
    """
    # Nobody waits meanwhile: nothing of it happens in a transaction but the row. The first release becomes champion at
    # once; adding it again changes nothing.
    release = read_release(source)
    with database.read() as session:
        registered = _find_registered_release(session, release)
        _require_classes(session, release)
    if registered is not None and ood_images is None:
        return registered, False
    gate_verdict(read_card_gate(release.card))
    release_id = new_id()
    with _verified_copy(release, folders.home / "releases") as copy:
        try_release(copy.path)
        if ood_images is not None:
            from ml.release.adapting import add_ood_check  # needs pyarrow, which no request needs

            with TemporaryDirectory(dir=copy.path.parent, prefix=UNFINISHED.rstrip("*")) as scratch:
                checked = add_ood_check(copy, ood_images, Path(scratch) / "release")
                return add_release(database, keys, checked.path, folders)
        folders.publish(f"releases/{release_id}", copy.path)
        with database.write() as session:
            return register_release(session, keys, copy, folders, release_id, actor="command line")


@contextmanager
def _verified_copy(release: Release, releases_folder: Path) -> Iterator[Release]:
    """Yield a verified copy next to the releases, removed at the end unless it was moved there."""
    folder = releases_folder / UNFINISHED.replace("*", uuid.uuid4().hex)
    try:
        try:
            releases_folder.mkdir(parents=True, exist_ok=True)
            copy = copy_release(release, folder)
        except (OSError, shutil.Error) as exc:
            raise StorageFull("the release could not be copied; is the disk full?") from exc
        yield copy
    except ReleaseError as exc:  # whoever reads it knows the folder that they named
        raise ReleaseError(str(exc).replace(str(folder), str(release.path))) from exc
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def register_release(
    session: Session,
    keys: AuditKeys,
    release: Release,
    folders: SharedFolders,
    release_id: uuid.UUID,
    *,
    actor: str,
    judged: bool = False,
) -> tuple[ReleaseRow, bool]:
    """Make the row of a release whose network has been run, and move its folder to where the service reads it."""
    registered = _find_registered_release(session, release)
    if registered is not None:
        return registered, False
    _require_classes(session, release)
    card_verdict = gate_verdict(read_card_gate(release.card))
    verdict = card_verdict if judged else "not_judged"
    row = ReleaseRow(
        id=release_id, name=release.card["name"], card_sha256=release.card_sha256, card=release.card, gate=verdict
    )
    session.add(row)
    session.flush()
    details = {"name": row.name, "card_sha256": row.card_sha256}
    if get_champion_alias(session) is None:
        session.add(Alias(name="champion", release_id=row.id, revision=1))
        details["alias"] = "champion"
    events.record_event(session, keys, actor=actor, action="release.add", object_id=row.id, details=details)
    release.path.replace(folders.home / "releases" / str(row.id))
    return row, True


def _find_registered_release(session: Session, release: Release) -> ReleaseRow | None:
    statement = select(ReleaseRow).where(ReleaseRow.card_sha256 == release.card_sha256)
    return session.execute(statement).scalar_one_or_none()


def _require_classes(session: Session, release: Release) -> None:
    for other in all_releases(session)[:1]:
        if class_codes(other) != list(release.classes):
            raise Conflict(
                "the model release has different classes from this reading task; use another SECONDREAD_HOME"
            )
