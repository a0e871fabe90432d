"""Labels that their annotator may still correct blind: until they are final, nothing follows from them.

A label is provisional until its annotator has seen anything of the case beyond the image, has left ten cases behind,
has signed out, or 15 minutes have passed. What its annotator does brings the time of its end forward; the worker takes
the row away once that time has come, and draws the conclusions.
"""

import uuid
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Update, Uuid, bindparam, case, exists, or_, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain.detached_rows import insert_row
from app.database.sql.compiled_statements import Prepared
from app.database.tables import Annotator, Exposure, Label, ProvisionalLabel, Repeat, time_of
from app.database.tables.base import UtcDateTime

#: For how long a label may be corrected at most.
CORRECTABLE = timedelta(minutes=15)
#: Cases left behind after which it may not be any more.
CASES_BEHIND = 10


def begin(session: Session, label: Label, read_id: uuid.UUID) -> None:
    """Let a stored label be corrected from now on.

    Args:
        session: writing session.
        label: the first of its chain.
        read_id: the read that it ended.
    """
    insert_row(
        session,
        ProvisionalLabel,
        label_id=label.id,
        case_id=label.case_id,
        annotator_id=label.annotator_id,
        read_id=read_id,
        final_at=label.created_at + CORRECTABLE,
    )


def any_of_case(session: Session, case_id: uuid.UUID) -> bool:
    """Whether a case has a label that is not final."""
    wanted = select(ProvisionalLabel.label_id).where(ProvisionalLabel.case_id == case_id)
    return session.execute(wanted.limit(1)).first() is not None


def annotators_of_case(session: Session, case_id: uuid.UUID) -> set[uuid.UUID]:
    """Annotators whose label of a case is not final."""
    wanted = select(ProvisionalLabel.annotator_id).where(ProvisionalLabel.case_id == case_id)
    return set(session.execute(wanted).scalars())


def is_provisional(
    case_id: InstrumentedAttribute[uuid.UUID], annotator_id: InstrumentedAttribute[uuid.UUID]
) -> ColumnElement[bool]:
    """Condition on a row of labels: its chain is not final."""
    return exists().where(ProvisionalLabel.case_id == case_id, ProvisionalLabel.annotator_id == annotator_id)


def is_over(at: datetime) -> ColumnElement[bool]:
    """Condition on a row of provisional labels: at a time it is final, and not corrected any more."""
    shown = exists().where(
        Exposure.case_id == ProvisionalLabel.case_id, Exposure.annotator_id == ProvisionalLabel.annotator_id
    )
    return or_(ProvisionalLabel.final_at <= at, shown)


def leave_case(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> None:
    """Count that an annotator has answered or declined a case: their earlier labels come closer to their end."""
    for statement in _LEAVE:
        statement.change(session, {"annotator": annotator_id, "left": case_id, "time": time_of(session)})


def signed_out(session: Session, account_id: uuid.UUID) -> None:
    """End corrections of everything that somebody has answered."""
    annotator = select(Annotator.id).where(Annotator.account_id == account_id).scalar_subquery()
    time = time_of(session)
    given = (ProvisionalLabel.annotator_id == annotator, ProvisionalLabel.final_at > time)
    session.execute(_change(*given, final_at=time))
    session.execute(_change_repeats(Repeat.annotator_id == annotator, Repeat.final_at > time, final_at=time))


def _change(*which: ColumnElement[bool], **values: object) -> Update:
    """Change rows, locked in one order, so that two requests of one person do not wait for each other."""
    locked = select(ProvisionalLabel.label_id).where(*which).order_by(ProvisionalLabel.label_id).with_for_update()
    statement = update(ProvisionalLabel).where(ProvisionalLabel.label_id.in_(locked)).values(**values)
    return statement.execution_options(synchronize_session=False)


def _change_repeats(*which: ColumnElement[bool], **values: object) -> Update:
    """The same of answers to repeats, which are nobody's labels."""
    locked = select(Repeat.id).where(*which).order_by(Repeat.id).with_for_update()
    statement = update(Repeat).where(Repeat.id.in_(locked)).values(**values)
    return statement.execution_options(synchronize_session=False)


_ANNOTATOR = bindparam("annotator", type_=Uuid())
_LEFT = bindparam("left", type_=Uuid())
_TIME = bindparam("time", type_=UtcDateTime())
# made once: to make them costs more than to execute them
_LEAVE = (
    Prepared(
        _change(
            ProvisionalLabel.annotator_id == _ANNOTATOR,
            ProvisionalLabel.case_id != _LEFT,
            n_since=ProvisionalLabel.n_since + 1,
            final_at=case((ProvisionalLabel.n_since + 1 >= CASES_BEHIND, _TIME), else_=ProvisionalLabel.final_at),
        )
    ),
    Prepared(
        _change_repeats(
            Repeat.annotator_id == _ANNOTATOR,
            Repeat.case_id != _LEFT,
            Repeat.final_at > _TIME,
            n_since=Repeat.n_since + 1,
            final_at=case((Repeat.n_since + 1 >= CASES_BEHIND, _TIME), else_=Repeat.final_at),
        )
    ),
)
