"""Making a release folder known to the service."""

from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.platform import audit_chain
from app.platform.errors import Conflict
from app.platform.keys import AuditKeys
from app.releases.gate import gate_of, verdict_of
from app.releases.queries import all_releases, champion, class_codes
from app.tables import Alias, ReleaseRow, new_id
from ml.release.artifact import copy_release, read_release
from ml.release.predictor import Predictor


def add_release(
    session: Session, keys: AuditKeys, source: Path, releases_folder: Path, *, actor: str = "command line"
) -> tuple[ReleaseRow, bool]:
    """Verify a release folder, try its network, keep a copy and make its row; adding it again changes nothing.

    The first release becomes champion at once.

    Returns:
        The release, and whether it is new.

    Raises:
        Conflict: its classes differ from those of the reading task.
        ValueError: the folder is not a usable release, or its card's gate is malformed.
    """
    release = read_release(source)
    verdict = verdict_of(gate_of(release.card))
    known = session.execute(
        select(ReleaseRow).where(ReleaseRow.card_sha256 == release.card_sha256)
    ).scalar_one_or_none()
    if known is not None:
        return known, False
    for other in all_releases(session)[:1]:
        if class_codes(other) != list(release.classes):
            raise Conflict("the release has other classes than this reading task; use another SECONDREAD_HOME for it")
    Predictor(release, threads=1)
    row = ReleaseRow(
        id=new_id(), name=release.card["name"], card_sha256=release.card_sha256, card=release.card, gate=verdict
    )
    releases_folder.mkdir(parents=True, exist_ok=True)
    copy_release(release, releases_folder / str(row.id))
    session.add(row)
    session.flush()
    details = {"name": row.name, "card_sha256": row.card_sha256}
    if champion(session) is None:
        session.add(Alias(name="champion", release_id=row.id, revision=1))
        details["alias"] = "champion"
    audit_chain.record(session, keys, actor=actor, action="release.add", object_id=row.id, details=details)
    return row, True
