"""Eligibility to read alone, by a qualification where the policy requires it."""

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session

from app.accounts.service import annotator_of_account, reading_annotators
from app.database.tables import Annotator, CountedLabel, PolicyRow, Qualification
from app.http.errors import Forbidden
from app.triage.queries import current_policy
from ml.messages import Message

#: Why somebody may read, or may not yet.
EligibilityReason = Literal["not-required", "passed", "qualified", "earlier-labels", "withdrawn", "not-yet"]

NOT_YET = Message(
    "you are given cases once you are qualified: open Practice (/practice, GET /v1/practice), take a qualification "
    "there, or ask an admin"
)


class NotQualified(Forbidden):
    """An annotator asks for a read, and has to be qualified first."""

    code, title = "not-qualified", "Not qualified yet"


@dataclass(frozen=True)
class ReadEligibility:
    """Eligibility of an annotator to be given reads."""

    # the policy in force asks for a qualification
    required: bool
    # why they may or may not
    because: EligibilityReason

    @property
    def may_read(self) -> bool:
        """Whether reads go to them."""
        return self.because not in {"withdrawn", "not-yet"}


def eligibility_of(session: Session, annotator: Annotator | None, policy: PolicyRow | None = None) -> ReadEligibility:
    """Return an annotator's eligibility to be given reads."""
    # Labels from before the policy began to ask count as a qualification, until somebody withdraws it.
    policy = policy or current_policy(session)
    if not policy.require_qualification:
        return ReadEligibility(False, "not-required")
    if annotator is None:
        return ReadEligibility(True, "not-yet")
    decision = newest_decision(session, annotator.id)
    if decision is not None:
        kinds: dict[str, EligibilityReason] = {"passed": "passed", "qualified": "qualified"}
        return ReadEligibility(True, kinds.get(decision.kind, "withdrawn"))
    given = exists().where(
        CountedLabel.annotator_id == annotator.id, CountedLabel.created_at < _required_since(session, policy)
    )
    return ReadEligibility(True, "earlier-labels" if session.execute(select(given)).scalar_one() else "not-yet")


def newest_decision(session: Session, annotator_id: uuid.UUID) -> Qualification | None:
    """The decision that holds: the newest one that says whether an annotator may read."""
    about = (Qualification.annotator_id == annotator_id, Qualification.kind != "renewed")
    statement = select(Qualification).where(*about).order_by(Qualification.created_at.desc(), Qualification.id.desc())
    return session.execute(statement.limit(1)).scalar_one_or_none()


def _required_since(session: Session, policy: PolicyRow) -> datetime:
    """Return the time since which policies have required a qualification without a break."""
    before = select(func.max(PolicyRow.version)).where(PolicyRow.require_qualification.is_(False)).scalar_subquery()
    since = select(func.min(PolicyRow.created_at)).where(PolicyRow.version > func.coalesce(before, 0))
    return session.execute(since).scalar_one_or_none() or policy.created_at


def require_qualified(session: Session, annotator: Annotator, policy: PolicyRow) -> None:
    """Stop an annotator who has to be qualified before they read."""
    if not eligibility_of(session, annotator, policy).may_read:
        raise NotQualified(NOT_YET)


def eligibility_of_account(session: Session, account_id: uuid.UUID) -> ReadEligibility:
    """Return the eligibility of an account's annotator to be given reads."""
    policy = current_policy(session)
    if not policy.require_qualification:
        return ReadEligibility(False, "not-required")
    return eligibility_of(session, annotator_of_account(session, account_id), policy)


def list_eligible_annotators(session: Session) -> list[Annotator]:
    """List annotators who can be assigned a read, in order; qualified ones where the policy asks for it."""
    annotators, policy = reading_annotators(session), current_policy(session)
    if not policy.require_qualification:
        return annotators
    decisions = select(Qualification).where(Qualification.kind != "renewed")
    in_order = decisions.order_by(Qualification.created_at, Qualification.id)
    newest = {row.annotator_id: row.kind for row in session.execute(in_order).scalars()}
    given = exists().where(
        CountedLabel.annotator_id == Annotator.id, CountedLabel.created_at < _required_since(session, policy)
    )
    earlier = set(session.execute(select(Annotator.id).where(Annotator.account_id.is_not(None), given)).scalars())
    qualified = {one for one, kind in newest.items() if kind != "withdrawn"} | (earlier - newest.keys())
    return [annotator for annotator in annotators if annotator.id in qualified]
