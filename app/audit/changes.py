"""What has changed, in the order of the audit chain, for programs that follow it; identifiers only."""

import base64
import struct
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.audit.chain.verify_proof import GENESIS
from app.database.tables import AuditEvent, Case, CaseChange
from app.http.errors import Conflict, InvalidValue
from app.http.models import ResponseModel

ChangedKind: TypeAlias = Literal["case", "label", "posterior", "outcome", "specimen", "release"]
ChangeAction: TypeAlias = Literal["stored", "changed", "withdrawn", "erased"]
_Meaning: TypeAlias = Mapping[str, tuple[ChangedKind, ChangeAction]]

#: What an event has changed by its action: of each case that it names, of its object, or of everything of a kind.
_OF_CASES: _Meaning = {
    "case.add": ("case", "stored"),
    "patient.erase": ("case", "erased"),
    "predictions.add": ("posterior", "changed"),
    "label.final": ("posterior", "changed"),
    "outcome.settle": ("outcome", "stored"),
    "outcome.conclude": ("outcome", "stored"),
    "outcome.reopen": ("outcome", "withdrawn"),
}
_OF_OBJECT: _Meaning = {
    "label.add": ("label", "stored"),
    "label.correct": ("label", "changed"),
    "label.revise": ("label", "changed"),
    "label.retract": ("label", "withdrawn"),
    "specimen.add": ("specimen", "stored"),
    "specimen.sign": ("specimen", "changed"),
    "specimen.erase": ("specimen", "erased"),
    "release.add": ("release", "stored"),
    "alias.move": ("release", "changed"),
}
_OF_ALL: _Meaning = {
    "label.batch": ("label", "stored"),
    "readers.switch": ("posterior", "changed"),
    "policy.change": ("posterior", "changed"),
    "specimens.fit": ("specimen", "changed"),
}

# number and first bytes of the digest of an event, and the last case of it that was read; no padding in base64
_PLACE = struct.Struct("<i10s16s")
_WHOLE_EVENT = uuid.UUID(int=2**128 - 1)


class CursorLost(Conflict):
    """The database has no longer what a cursor points to: an older backup was restored."""

    code, title = "cursor-lost", "Cursor of a lost change"


class ChangeOut(ResponseModel):
    """A change, without what it says."""

    at: datetime
    kind: ChangedKind
    action: ChangeAction
    id: str | None
    case: str | None
    specimen: str | None


class ChangesOut(ResponseModel):
    """Changes in their order."""

    items: list[ChangeOut]
    next_cursor: str


def list_changes(session: Session, after: str | None, limit: int, *, with_releases: bool) -> ChangesOut:
    """Changes after a cursor, oldest first; the cursor after them is there even if nothing has changed."""
    # events commit in the order of their numbers: none comes later before one that was listed
    sequence, case_id = (0, _WHOLE_EVENT) if after is None else _decode_cursor(session, after)
    meaning = {**_OF_CASES, **_OF_OBJECT, **_OF_ALL}
    columns = (AuditEvent.sequence, AuditEvent.digest, AuditEvent.created_at, AuditEvent.action, AuditEvent.object)
    to_champion = AuditEvent.details["alias"].as_string() == "champion"
    statement = (
        select(*columns, CaseChange.case_id, Case.specimen_id)
        .outerjoin(CaseChange, CaseChange.sequence == AuditEvent.sequence)
        .outerjoin(Case, Case.id == CaseChange.case_id)
        .where(AuditEvent.sequence >= sequence)
        .where(or_(AuditEvent.sequence > sequence, CaseChange.case_id > case_id))
        .where(AuditEvent.action.in_(meaning if with_releases else meaning.keys() - {"release.add"}))
        .where(or_(AuditEvent.action.not_in(_OF_CASES), CaseChange.case_id.is_not(None)))
        .where(or_(AuditEvent.action != "alias.move", to_champion))
        .order_by(AuditEvent.sequence, CaseChange.case_id)
    )
    items = []
    for row in (rows := session.execute(statement.limit(limit)).all()):
        case, specimen = (None if one is None else str(one) for one in (row.case_id, row.specimen_id))
        changed = case if row.action in _OF_CASES else None if row.action in _OF_ALL else row.object
        kind, action = meaning[row.action]
        items.append(ChangeOut(at=row.created_at, kind=kind, action=action, id=changed, case=case, specimen=specimen))
    if after is not None and not rows:  # what is not listed moves no cursor: that would show that it happened
        return ChangesOut(items=[], next_cursor=after)
    end = (rows[-1].sequence, rows[-1].digest, rows[-1].case_id or _WHOLE_EVENT) if rows else (0, GENESIS, _WHOLE_EVENT)
    place = _PLACE.pack(end[0], bytes.fromhex(end[1]), end[2].bytes)
    return ChangesOut(items=items, next_cursor=base64.urlsafe_b64encode(place).decode())


def _decode_cursor(session: Session, cursor: str) -> tuple[int, uuid.UUID]:
    """Number of the event and case that a cursor points to, both of them still there."""
    try:
        sequence, digest, case_id = _PLACE.unpack(base64.b64decode(cursor.encode(), b"-_", validate=True))
    except (ValueError, struct.error) as exc:
        raise InvalidValue("the cursor is not one that this service gave out") from exc
    stored = select(AuditEvent.digest).where(AuditEvent.sequence == sequence)
    present = GENESIS if sequence == 0 else session.execute(stored).scalar_one_or_none()
    if present is None or bytes.fromhex(present)[: len(digest)] != digest:
        raise CursorLost("the database is older than this cursor, as after a restore; start again without `after`")
    return sequence, uuid.UUID(bytes=case_id)
