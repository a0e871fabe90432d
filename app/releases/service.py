"""Adding releases and moving the alias that is served."""

import uuid
from pathlib import Path

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app import audit
from app.errors import Conflict, NoRelease
from app.releases.queries import aliases, all_releases, champion, existing_release
from app.releases.schemas import ReleaseDetailOut, ReleaseOut
from app.schemas import ClassOut
from app.tables import Alias, ReleaseRow, new_id
from ml.artifact import copy_release, read_release
from ml.predictor import Predictor


def add_release(session: Session, secret: bytes, source: Path, releases_folder: Path) -> tuple[ReleaseRow, bool]:
    """Verify a release folder, try its network, keep a copy and make its row; adding it again changes nothing.

    The first release becomes champion at once.

    Returns:
        The release, and whether it is new.

    Raises:
        Conflict: its classes differ from those of the reading task.
        ValueError: the folder is not a usable release.
    """
    release = read_release(source)
    known = session.execute(
        select(ReleaseRow).where(ReleaseRow.card_sha256 == release.card_sha256)
    ).scalar_one_or_none()
    if known is not None:
        return known, False
    for other in all_releases(session)[:1]:
        if other.card["classes"] != release.card["classes"]:
            raise Conflict("the release has other classes than this reading task; use another SECONDREAD_HOME for it")
    Predictor(release, threads=1)
    row = ReleaseRow(id=new_id(), name=release.card["name"], card_sha256=release.card_sha256, card=release.card)
    releases_folder.mkdir(parents=True, exist_ok=True)
    copy_release(release, releases_folder / str(row.id))
    session.add(row)
    session.flush()
    details = {"name": row.name, "card_sha256": row.card_sha256}
    if champion(session) is None:
        session.add(Alias(name="champion", release_id=row.id, revision=1))
        details["alias"] = "champion"
    audit.record(session, secret, actor="command line", action="release.add", object_id=row.id, details=details)
    return row, True


def promote(session: Session, secret: bytes, release_id: uuid.UUID, reason: str) -> Alias:
    """Make a release champion; of two that race, one moves the alias and the other is told.

    Raises:
        NotFound: no such release.
        NoRelease: there is no champion to follow.
        Conflict: the alias moved meanwhile.
    """
    existing_release(session, release_id)
    alias = champion(session)
    if alias is None:
        raise NoRelease("there is no champion; add a release first")
    before = alias.release_id
    moved = session.execute(
        update(Alias)
        .where(Alias.name == "champion", Alias.revision == alias.revision)
        .values(release_id=release_id, revision=alias.revision + 1)
        .execution_options(synchronize_session="fetch")
    )
    if moved.rowcount != 1:  # type: ignore[attr-defined]
        raise Conflict("the champion was changed meanwhile; look again")
    details = {"alias": "champion", "before": str(before), "after": str(release_id)}
    audit.record(
        session, secret, actor="command line", action="alias.move", object_id=release_id, details=details, reason=reason
    )
    return session.get_one(Alias, "champion")


def describe(session: Session, row: ReleaseRow) -> ReleaseOut:
    """A release as the API shows it."""
    return ReleaseOut(
        id=str(row.id),
        name=row.name,
        aliases=[alias.name for alias in aliases(session) if alias.release_id == row.id],
        classes=[ClassOut(**info) for info in row.card["classes"]],
        disagreement_calibrated=row.card["disagreement_calibrated"],
        card_sha256=row.card_sha256,
        created_at=row.created_at,
    )


def detail(session: Session, release_id: uuid.UUID) -> ReleaseDetailOut:
    """A release with its card.

    Raises:
        NotFound: no such release.
    """
    row = existing_release(session, release_id)
    return ReleaseDetailOut(**describe(session, row).model_dump(), card=row.card)
