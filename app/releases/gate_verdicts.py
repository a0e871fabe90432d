"""Gate verdicts of releases, and the attempts on each champion."""

import uuid
from math import isfinite
from typing import Any, Literal, NotRequired, Self, TypedDict, cast

from pydantic import Field, StrictBool, ValidationError, model_validator
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.advisory_locks import AdvisoryLock, acquire_lock
from app.database.tables import AuditEvent, ReleaseRow
from app.http.models import MetricOut, ResponseModel, Sentence
from app.releases.queries import existing_release, release_by_id, served_sha256
from ml.release.card import CardContents

#: ``not_judged``: no gate of this service has compared the release with a champion.
Verdict = Literal["passed", "refused", "not_judged"]
VERDICTS: tuple[Verdict, ...] = ("passed", "refused", "not_judged")


class Worse(ResponseModel):
    """Difference of a change from the change by all labels, with its standard error."""

    value: float | None
    se: float | None

    @classmethod
    def of(cls, value: float, se: float) -> "Worse":
        """Numbers as JSON has them: what is not a number becomes null."""
        return cls(value=value if isfinite(value) else None, se=se if isfinite(se) else None)


class WithoutAnnotator(ResponseModel):
    """The promotion check without one annotator's labels, or why it failed."""

    annotator: str
    failed: Sentence | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None
    worse: dict[str, Worse] | None = None


class Attempt(ResponseModel):
    """Number, level and limits of an attempt on the champion."""

    number: int
    level: float
    level_of_each_loss: float
    p_L: float | None
    p_L_D: float | None
    stability_limit: float | None
    max_increase: float | None


class SinceFirst(ResponseModel):
    """Changes since the first champion, or the reason why they are unknown."""

    release: str | None
    is_champion: bool = False
    unknown: Sentence | None = None
    n_cases: int | None = None
    L: MetricOut | None = None
    L_D: MetricOut | None = None


class Gate(ResponseModel):
    """Result of the promotion check."""

    passed: StrictBool
    reasons: list[Sentence]
    L: MetricOut
    L_D: MetricOut
    without_annotator: list[WithoutAnnotator]
    findings: list[Sentence] = Field(default_factory=list)
    champion: str | None = None
    attempt: Attempt | None = None
    since_first: SinceFirst | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.passed == bool(self.reasons):
            raise ValueError("a gate that refuses has reasons, and one that passes has none")
        return self

    def headline(self) -> str:
        """The verdict in a few words, with the number of the attempt."""
        verdict = "passed the promotion check" if self.passed else "rejected by the promotion check"
        return verdict if self.attempt is None else f"{verdict}, attempt {self.attempt.number} on this champion"

    def to_dict(self) -> dict[str, Any]:
        """Return it as it stands on the card."""
        return self.model_dump(exclude_unset=True)


def read_card_gate(card: CardContents) -> Gate | None:
    """Read the gate result from a release's card; None for a release that was never judged."""
    if "recalibration" not in card:
        return None
    recalibration = card["recalibration"]
    if not isinstance(recalibration, dict) or "gate" not in recalibration:
        raise ValueError("the release's card is malformed: recalibration has no gate")
    try:
        return Gate.model_validate(recalibration["gate"])
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(["recalibration.gate", *(str(part) for part in first["loc"])])
        raise ValueError(f"the release's card is malformed: {where}: {first['msg']}") from exc


def find_gate_fault(card: CardContents) -> str | None:
    """Return the reason why a stored card's gate cannot be read, or None."""
    try:
        read_card_gate(card)
    except ValueError as exc:
        return str(exc)
    return None


def gate_verdict(gate: Gate | None) -> Verdict:
    """The verdict as the release's row keeps it."""
    if gate is None:
        return "not_judged"
    return "passed" if gate.passed else "refused"


_ATTEMPT, _JUDGED = "gate.attempt", "gate.judge"


def first_champion_id(session: Session) -> uuid.UUID | None:
    """The release that was promoted first in this service; None where the audit does not tell."""
    moves = select(AuditEvent.object, AuditEvent.details).where(AuditEvent.action.in_(("release.add", "alias.move")))
    for released, details in session.execute(moves.order_by(AuditEvent.sequence)):
        if details.get("alias") == "champion":
            return uuid.UUID(released)
    return None


def begin_attempt(session: Session, keys: AuditKeys, champion_id: uuid.UUID, job_id: uuid.UUID) -> int:
    """Record an attempt on a champion."""
    # of two that come this far, the second waits here, and then counts the first
    acquire_lock(session, AdvisoryLock.GATE)
    served = served_sha256(existing_release(session, champion_id))
    number = 1 + count_attempts(session, served)
    details = {"champion": str(champion_id), "number": number, "job": str(job_id)}
    events.record_event(session, keys, actor="gate", action=_ATTEMPT, object_id=served, details=details)
    return number


def count_attempts(session: Session, served: str) -> int:
    """Count the attempts on champions with this served digest."""
    counted = select(func.count()).select_from(AuditEvent)
    return session.execute(counted.where(AuditEvent.action == _ATTEMPT, AuditEvent.object == served)).scalar_one()


def record_judgement(
    session: Session, keys: AuditKeys, actor: str, row: ReleaseRow, champion_id: uuid.UUID, gate: Gate, basis: str
) -> None:
    """Keep what the gate found of a release that was trained elsewhere: the verdict in its row, all in the audit."""
    row.gate = "passed" if gate.passed else "refused"
    details = {
        "champion": str(champion_id),
        "served_sha256": served_sha256(existing_release(session, champion_id)),
        "basis_sha256": basis,
        "gate": gate.to_dict(),
    }
    events.record_event(session, keys, actor=actor, action=_JUDGED, object_id=row.id, details=details)


def find_standing_gate(session: Session, row: ReleaseRow, champion_id: uuid.UUID, basis: str) -> Gate | None:
    """Find the last gate result, if basis and champion are unchanged since."""
    # Judged by the same once more it could only lose, as each attempt asks for more than the one before.
    details = _last_judgement(session, row)
    if details is None or details.get("basis_sha256") != basis:
        return None
    same = details["served_sha256"] == served_sha256(existing_release(session, champion_id))
    return Gate.model_validate(details["gate"]) if same else None


class _JudgementDetails(TypedDict):
    """Details of the event of a judgement."""

    champion: str
    served_sha256: str
    basis_sha256: NotRequired[str]
    gate: object  # a ``Gate`` as JSON


def _last_judgement(session: Session, row: ReleaseRow) -> _JudgementDetails | None:
    judged = select(AuditEvent.details).where(AuditEvent.action == _JUDGED, AuditEvent.object == str(row.id))
    details = session.execute(judged.order_by(AuditEvent.sequence.desc()).limit(1)).scalar_one_or_none()
    return cast(_JudgementDetails | None, details)


def find_last_gate(session: Session, row: ReleaseRow) -> Gate | None:
    """Find the last gate result of a release; None if it was never judged here."""
    return _last_gate_and_served(session, row)[0]


def find_gate_against_champion(session: Session, row: ReleaseRow, champion_id: uuid.UUID) -> Gate | None:
    """Find the last gate result, if it was against this champion; None otherwise."""
    gate, served = _last_gate_and_served(session, row)
    return gate if served == served_sha256(existing_release(session, champion_id)) else None


def _last_gate_and_served(session: Session, row: ReleaseRow) -> tuple[Gate | None, str | None]:
    details = _last_judgement(session, row)
    if details is not None:
        return Gate.model_validate(details["gate"]), details["served_sha256"]
    if row.gate == "not_judged":
        return None, None
    champion = _find_parent_release(session, row)
    return read_card_gate(row.card), None if champion is None else served_sha256(champion)


def _find_parent_release(session: Session, row: ReleaseRow) -> ReleaseRow | None:
    """The release that one was recalibrated from; None where its card names none of this service."""
    try:
        return release_by_id(session, uuid.UUID(str(row.card.get("parent"))))
    except ValueError:
        return None
