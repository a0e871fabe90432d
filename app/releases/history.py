"""What the audit remembers of promotions and of the gate: the first champion, attempts on a champion, judgements.

Attempts are counted by what a champion predicts by, not by its name or its row: neither adding it once more nor a
roll-back and another promotion begins to count anew. An attempt is recorded before anybody knows how it ends.
"""

import uuid
from typing import NotRequired, TypedDict, cast

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.sql.advisory_locks import Turn, take_turn
from app.database.tables import AuditEvent, ReleaseRow
from app.releases.gate import Gate, gate_of
from app.releases.queries import existing_release, release_by_id, served_sha256

_ATTEMPT, _JUDGED = "gate.attempt", "gate.judge"


def first_champion_id(session: Session) -> uuid.UUID | None:
    """The release that was promoted first in this service; None where the audit does not tell."""
    moves = select(AuditEvent.object, AuditEvent.details).where(AuditEvent.action.in_(("release.add", "alias.move")))
    for released, details in session.execute(moves.order_by(AuditEvent.stamp)):
        if details.get("alias") == "champion":
            return uuid.UUID(released)
    return None


def begin_attempt(session: Session, keys: AuditKeys, champion_id: uuid.UUID, job_id: uuid.UUID) -> int:
    """Record an attempt on a champion.

    Args:
        session: writing session; until it ends nobody else begins one.
        keys: of the audit.
        champion_id: what is to be replaced.
        job_id: which job tries it.

    Returns:
        The number of the attempt, from 1.
    """
    # of two that come this far, the second waits here, and then counts the first
    take_turn(session, Turn.GATE)
    served = served_sha256(existing_release(session, champion_id))
    number = 1 + n_attempts(session, served)
    details = {"champion": str(champion_id), "number": number, "job": str(job_id)}
    events.record(session, keys, actor="gate", action=_ATTEMPT, object_id=served, details=details)
    return number


def n_attempts(session: Session, served: str) -> int:
    """How many attempts there were on champions that predict by this."""
    counted = select(func.count()).select_from(AuditEvent)
    return session.execute(counted.where(AuditEvent.action == _ATTEMPT, AuditEvent.object == served)).scalar_one()


def record_judgement(
    session: Session, keys: AuditKeys, actor: str, row: ReleaseRow, champion_id: uuid.UUID, gate: Gate, basis: str
) -> None:
    """Keep what the gate found of a release that was trained elsewhere: the verdict in its row, all in the audit.

    Args:
        session: writing session.
        keys: of the audit.
        actor: who judged.
        row: the release.
        champion_id: against which.
        gate: what was found.
        basis: digest of what it was judged by.
    """
    row.gate = "passed" if gate.passed else "refused"
    details = {
        "champion": str(champion_id),
        "served_sha256": served_sha256(existing_release(session, champion_id)),
        "basis_sha256": basis,
        "gate": gate.to_dict(),
    }
    events.record(session, keys, actor=actor, action=_JUDGED, object_id=row.id, details=details)


def standing_gate(session: Session, row: ReleaseRow, champion_id: uuid.UUID, basis: str) -> Gate | None:
    """What was found last of a release, if it was by the same labels and against what this champion predicts by.

    Judged by the same once more it could only lose, as each attempt asks for more than the one before.
    """
    details = _last_judgement(session, row)
    if details is None or details.get("basis_sha256") != basis:
        return None
    same = details["served_sha256"] == served_sha256(existing_release(session, champion_id))
    return Gate.model_validate(details["gate"]) if same else None


class _Judged(TypedDict):
    """Details of the event of a judgement."""

    champion: str
    served_sha256: str
    basis_sha256: NotRequired[str]
    gate: object  # a ``Gate`` as JSON


def _last_judgement(session: Session, row: ReleaseRow) -> _Judged | None:
    judged = select(AuditEvent.details).where(AuditEvent.action == _JUDGED, AuditEvent.object == str(row.id))
    details = session.execute(judged.order_by(AuditEvent.stamp.desc()).limit(1)).scalar_one_or_none()
    return cast(_Judged | None, details)


def last_gate(session: Session, row: ReleaseRow) -> Gate | None:
    """What the gate of this service found last of a release; None where it was never judged here.

    Raises:
        ValueError: the card of a release that was recalibrated here is malformed.
    """
    return _last(session, row)[0]


def gate_against(session: Session, row: ReleaseRow, champion_id: uuid.UUID) -> Gate | None:
    """What it found last, if it was against what this champion predicts by; None otherwise.

    Raises:
        ValueError: as ``last_gate``.
    """
    gate, served = _last(session, row)
    return gate if served == served_sha256(existing_release(session, champion_id)) else None


def _last(session: Session, row: ReleaseRow) -> tuple[Gate | None, str | None]:
    """The last judgement of a release, and what the champion predicted by."""
    details = _last_judgement(session, row)
    if details is not None:
        return Gate.model_validate(details["gate"]), details["served_sha256"]
    if row.gate == "not_judged":
        return None, None
    champion = _parent(session, row)
    return gate_of(row.card), None if champion is None else served_sha256(champion)


def _parent(session: Session, row: ReleaseRow) -> ReleaseRow | None:
    """The release that one was recalibrated from; None where its card names none of this service."""
    try:
        return release_by_id(session, uuid.UUID(str(row.card.get("parent"))))
    except ValueError:
        return None
