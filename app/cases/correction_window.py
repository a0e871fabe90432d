"""Correction window of labels: nothing follows from a label until it is final."""

import uuid
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Update, case, exists, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain.covered_rows import update_columns
from app.database.tables import Annotator, Exposure, Label, ProvisionalLabel, time_of

#: For how long a label may be corrected at most.
CORRECTION_TIME = timedelta(minutes=15)
#: Cases left behind after which it may not be any more.
CASES_BEHIND = 10


def open_correction_window(session: Session, label: Label, read_id: uuid.UUID) -> None:
    """Open the correction window of a stored label."""
    session.add(
        ProvisionalLabel(
            label_id=label.id,
            case_id=label.case_id,
            annotator_id=label.annotator_id,
            purpose=label.purpose,
            read_id=read_id,
            final_at=label.created_at + CORRECTION_TIME,
        )
    )
    session.flush()


def has_provisional_label(session: Session, case_id: uuid.UUID) -> bool:
    """Whether a case has a label that counts and is not final."""
    statement = select(ProvisionalLabel.label_id).where(
        ProvisionalLabel.case_id == case_id, ProvisionalLabel.purpose == "read"
    )
    return session.execute(statement.limit(1)).first() is not None


def provisional_annotator_ids(session: Session, case_id: uuid.UUID, purpose: str = "read") -> set[uuid.UUID]:
    """Annotators whose label of a case, for a purpose, is not final."""
    of_case = (ProvisionalLabel.case_id == case_id, ProvisionalLabel.purpose == purpose)
    return set(session.execute(select(ProvisionalLabel.annotator_id).where(*of_case)).scalars())


def is_provisional(
    case_id: InstrumentedAttribute[uuid.UUID], annotator_id: InstrumentedAttribute[uuid.UUID]
) -> ColumnElement[bool]:
    """Condition on a row of counted labels: its chain is not final."""
    of_chain = (ProvisionalLabel.case_id == case_id, ProvisionalLabel.annotator_id == annotator_id)
    return exists().where(*of_chain, ProvisionalLabel.purpose == "read")


def is_window_over(at: datetime) -> ColumnElement[bool]:
    """Condition on a row of provisional labels: at a time it is final, and not corrected any more."""
    is_exposed = exists().where(
        Exposure.case_id == ProvisionalLabel.case_id, Exposure.annotator_id == ProvisionalLabel.annotator_id
    )
    return or_(ProvisionalLabel.final_at <= at, is_exposed)


def advance_other_windows(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> None:
    """Count a case that an annotator has left; their earlier correction windows come closer to closing."""
    n_since = ProvisionalLabel.n_since + 1
    final_at = case((n_since >= CASES_BEHIND, time_of(session)), else_=ProvisionalLabel.final_at)
    others = (ProvisionalLabel.annotator_id == annotator_id, ProvisionalLabel.case_id != case_id)
    session.execute(_update_provisional_labels(*others, n_since=n_since, final_at=final_at))


def close_windows_of_account(session: Session, account_id: uuid.UUID) -> None:
    """Close all correction windows of an account's annotator."""
    annotator = select(Annotator.id).where(Annotator.account_id == account_id).scalar_subquery()
    time = time_of(session)
    given = (ProvisionalLabel.annotator_id == annotator, ProvisionalLabel.final_at > time)
    session.execute(_update_provisional_labels(*given, final_at=time))


def _update_provisional_labels(*which: ColumnElement[bool], **values: object) -> Update:
    """Build an update of provisional labels, locked in one order to avoid deadlocks."""
    locked = select(ProvisionalLabel.label_id).where(*which).order_by(ProvisionalLabel.label_id).with_for_update()
    return update_columns(ProvisionalLabel, **values).where(ProvisionalLabel.label_id.in_(locked))
