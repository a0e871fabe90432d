"""Select first reads that stay hidden, so that some cases can be repeated blind.

A repeat must never be opened, since the page would tell that it was one; so some first reads stay closed too, by a coin
that says nothing of the case. Which of the two a case that stays closed is, nobody can tell.
"""

import random
import uuid

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from app.database.tables import Annotator, HeldBack, Label, PolicyRow
from app.http.principal import Principal

#: Cases held back for each repeat: of those that stay closed to an annotator about one in six is a repeat.
HELD_PER_REPEAT = 5
_random = random.SystemRandom()


def draw_random_unit() -> float:
    """A number from 0 to 1 that nobody can foresee."""
    return _random.random()


def wants_repeats(policy: PolicyRow) -> bool:
    """Whether a policy has hidden repeats; where it shows each case at once, nobody could read one blind again."""
    return policy.repeat_rate > 0 and policy.reveal != "after_commit"


def maybe_hold_back(session: Session, label: Label, policy: PolicyRow) -> None:
    """Toss the coin for a case that was just read, for its annotator."""
    if wants_repeats(policy) and draw_random_unit() < HELD_PER_REPEAT * policy.repeat_rate:
        session.add(HeldBack(annotator_id=label.annotator_id, case_id=label.case_id))


def is_held_back(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> bool:
    """Whether a case stays hidden from an annotator for good."""
    kept = exists().where(HeldBack.annotator_id == annotator_id, HeldBack.case_id == case_id)
    return bool(session.execute(select(kept)).scalar_one())


def is_held_back_from(session: Session, principal: Principal, case_id: uuid.UUID) -> bool:
    """Return whether a case stays hidden for good from the annotator of an account."""
    mine = (Annotator.account_id == principal.account_id, HeldBack.case_id == case_id)
    return (
        session.execute(select(HeldBack.id).join(Annotator, Annotator.id == HeldBack.annotator_id).where(*mine)).first()
        is not None
    )
