"""Changing the policy: a new version, audited; cases already planned keep their coin."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import Label, PolicyRow, ReaderDraw, ReadRequest, time_of
from app.http.errors import Conflict
from app.http.principal import Principal
from app.triage.assignment import GRACE
from app.triage.planning import withdraw_repeats
from app.triage.queries import all_policies, current_policy
from app.triage.schemas import DrawsOut, PoliciesOut, PolicyIn, PolicyOut


def policy_out(row: PolicyRow, current: int) -> PolicyOut:
    """A version as the API shows it."""
    fields = {name: getattr(row, name) for name in PolicyOut.model_fields if name != "current"}
    return PolicyOut(**fields, current=row.version == current)


def list_policies(session: Session) -> PoliciesOut:
    """Every version, newest first."""
    rows = all_policies(session)
    items = [policy_out(row, rows[0].version) for row in rows]
    return PoliciesOut(items=items, draws=draws_so_far(session))


def draws_so_far(session: Session) -> DrawsOut | None:
    """What became of the planned reads for which annotators were drawn; None where none ever was."""
    counted = (
        select(
            func.count(ReadRequest.label_id),
            func.count().filter(Label.annotator_id == ReadRequest.annotator_id),
            func.count().filter(ReadRequest.state == "open", ReadRequest.due_at < time_of(session) - GRACE),
            func.count(),
        )
        .select_from(ReaderDraw)
        .join(ReadRequest, ReadRequest.id == ReaderDraw.request_id)
        .outerjoin(Label, Label.id == ReadRequest.label_id)
        .where(ReaderDraw.probability.is_not(None), ReaderDraw.position == 0)
    )
    answered, as_drawn, overdue, n = session.execute(counted).one()
    again = (ReaderDraw.probability.is_not(None), ReaderDraw.position > 0)
    n_again = session.execute(select(func.count()).select_from(ReaderDraw).where(*again)).scalar_one()
    if n == 0:
        return None
    return DrawsOut(n_answered=answered, n_as_drawn=as_drawn, n_drawn_again=n_again, n_overdue=overdue)


def add_policy(session: Session, keys: AuditKeys, principal: Principal, body: PolicyIn) -> tuple[int, PolicyOut]:
    """Make a new version, which is in force from now on.

    Returns:
        201 and the version.

    Raises:
        Conflict: it says what the current one says.
    """
    before = current_policy(session)
    wanted = body.model_dump()
    if all(getattr(before, name) == value for name, value in wanted.items() if name != "reason"):
        raise Conflict("this is the policy in force already")
    row = PolicyRow(version=before.version + 1, created_by=principal.account_id, **wanted)
    session.add(row)
    session.flush()
    if body.repeat_rate == 0 or body.reveal == "after_commit":
        withdraw_repeats(session)
    changed = {
        name: [getattr(before, name), value]
        for name, value in wanted.items()
        if name != "reason" and getattr(before, name) != value
    }
    events.record(
        session,
        keys,
        actor=principal.name,
        action="policy.change",
        object_id=row.version,
        details=changed,
        reason=body.reason,
    )
    return 201, policy_out(row, row.version)
