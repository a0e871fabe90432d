"""Taking planned repeats back: where the policy wants none any more, and where a patient is erased."""

import uuid
from collections.abc import Collection

from sqlalchemy import update
from sqlalchemy.orm import Session

from app.audit.chain.change_tracking import note_rows
from app.database.tables import Repeat, time_of


def withdraw_repeats(session: Session, case_ids: Collection[uuid.UUID] | None = None) -> None:
    """Withdraw repeats that nobody has been given, of some cases those that somebody has too.

    Args:
        session: writing session.
        case_ids: whose repeats end, leased or not; None: of all cases, those that wait.
    """
    which = [Repeat.state == "open"] if case_ids is None else [Repeat.state.in_(("open", "leased"))]
    if case_ids is not None:
        which.append(Repeat.case_id.in_(case_ids))
    time = time_of(session)
    ended = update(Repeat).where(*which).values(state="closed", closed_at=time, back_at=time, lease_expires_at=None)
    rows = session.execute(ended.returning(*Repeat.__table__.columns)).mappings().all()
    note_rows(session, Repeat, rows)
