"""Database queries of releases."""

import hashlib
import uuid
from collections.abc import Collection
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.database.tables import Alias, AuditEvent, ReleaseRow
from app.http.errors import NoRelease, NotFound
from app.http.models import ClassOut
from app.releases.class_settings import apply_settings, class_settings
from ml.messages import Term
from ml.release.artifact import HEAD_FILE


def get_champion_alias(session: Session) -> Alias | None:
    """Alias row of the release that is served."""
    return session.get(Alias, "champion")


def served_release_id(session: Session) -> uuid.UUID:
    """Identifier of the champion."""
    alias = get_champion_alias(session)
    if alias is None:
        raise NoRelease("no model release is in use; add one with `secondread release add`")
    return alias.release_id


def champion_since(session: Session) -> datetime | None:
    """Time of the champion's last promotion; None without a champion."""
    alias = get_champion_alias(session)
    if alias is None:
        return None
    return next(
        (at for at, _ in _champion_moves(session, alias.release_id)),
        existing_release(session, alias.release_id).created_at,
    )


def previous_champion(session: Session, release_id: uuid.UUID) -> ReleaseRow | None:
    """The champion that a release replaced, or would replace if it never was one; None where it replaced none."""
    moves, champion_id = _champion_moves(session, release_id), str(served_release_id(session))
    before = next((before for _, before in moves), None if champion_id == str(release_id) else champion_id)
    return None if before is None else release_by_id(session, uuid.UUID(before))


def _champion_moves(session: Session, release_id: uuid.UUID) -> list[tuple[datetime, str | None]]:
    """When a release became champion, newest first, and the identifier of the one that it replaced."""
    events = (
        select(AuditEvent.created_at, AuditEvent.details)
        .where(AuditEvent.object == str(release_id), AuditEvent.action.in_(("release.add", "alias.move")))
        .order_by(AuditEvent.sequence.desc())
    )
    moves = session.execute(events)
    return [(at, details.get("before")) for at, details in moves if details.get("alias") == "champion"]


def release_by_id(session: Session, release_id: uuid.UUID) -> ReleaseRow | None:
    """Release row."""
    return session.get(ReleaseRow, release_id)


def existing_release(session: Session, release_id: uuid.UUID) -> ReleaseRow:
    """Release row that must be there."""
    row = release_by_id(session, release_id)
    if row is None:
        raise NotFound("there is no such release")
    return row


def served_sha256(release: ReleaseRow) -> str:
    """Digest of what a release predicts by, whatever its name: network, head and calibration."""
    files = release.card["files"]
    parts = [files.get(name, "") for name in ("network.onnx", HEAD_FILE, "calibration.json")]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def class_codes(release: ReleaseRow) -> list[str]:
    """Codes of a release's classes, in the order of its outputs."""
    return [info["code"] for info in release.card["classes"]]


def class_codes_of(session: Session, release_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, list[str]]:
    """Codes of the classes of each of the releases, in the order of its outputs."""
    if not release_ids:
        return {}
    rows = session.execute(select(ReleaseRow).where(ReleaseRow.id.in_(release_ids))).scalars()
    return {row.id: class_codes(row) for row in rows}


def all_releases(session: Session) -> list[ReleaseRow]:
    """Every release, newest first."""
    return list(session.execute(select(ReleaseRow).order_by(ReleaseRow.id.desc())).scalars())


def releases_named(session: Session, name: str) -> list[ReleaseRow]:
    """Every release of a name, newest first: names may come again."""
    query = select(ReleaseRow).where(ReleaseRow.name == name).order_by(ReleaseRow.id.desc())
    return list(session.execute(query).scalars())


def read_aliases(session: Session) -> list[Alias]:
    """Every alias."""
    return list(session.execute(select(Alias).order_by(Alias.name)).scalars())


def reading_classes(session: Session) -> list[ClassOut]:
    """Classes of the reading task as they are set, in the order in which people see them."""
    alias = get_champion_alias(session)
    classes = cached_release_classes(session, None if alias is None else alias.release_id)
    return apply_settings(class_settings(session)[1], classes)


def served_release_classes(release: ReleaseRow | None) -> list[ClassOut]:
    """Classes as the release that is served has them."""
    if release is None:
        raise NoRelease("no model release is in use; add one with `secondread release add`")
    return [ClassOut(**info) for info in release.card["classes"]]


def named_release_classes(session: Session, release_id: uuid.UUID) -> list[ClassOut]:
    """Classes of a release as they are set, in the order of its outputs."""
    return apply_settings(class_settings(session)[1], cached_release_classes(session, release_id), in_order=False)


def class_names(session: Session, release_id: uuid.UUID | None = None) -> dict[str, str]:
    """Names of a release's classes, by default the champion's, by their codes in the order of its outputs."""
    # numbers are computed in this order; pages translate the names
    classes = named_release_classes(session, release_id or served_release_id(session))
    return {info.code: Term(info.name) for info in classes}


def cached_release_classes(session: Session, release_id: uuid.UUID | None) -> list[ClassOut]:
    """Classes as a release has them, in the order of its outputs; those of each release are read once."""
    cached = None if release_id is None else _CLASSES_BY_RELEASE.get(release_id)
    if cached is not None:
        return cached
    release = None if release_id is None else release_by_id(session, release_id)
    classes = served_release_classes(release)
    if release is not None:
        if len(_CLASSES_BY_RELEASE) >= _MAX_CACHED_RELEASES:
            _CLASSES_BY_RELEASE.clear()
        _CLASSES_BY_RELEASE[release.id] = classes
    return classes


# rows of releases are never changed; their cards take longer to read than a request's other rows together
_CLASSES_BY_RELEASE: dict[uuid.UUID, list[ClassOut]] = {}
_MAX_CACHED_RELEASES = 64
