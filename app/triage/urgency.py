"""Urgency: a class that a cell may be brings all cells of its patient forward, so that its place reveals nothing."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import Case, PolicyRow, ReadRequest


def urgent_due(policy: PolicyRow, class_probs: Mapping[str, float], at: datetime) -> datetime | None:
    """When reads of a cell that came at a time are due because of a class that it may be; None if no rule applies."""
    rules = policy.urgent or []
    hours = [rule["hours"] for rule in rules if class_probs.get(rule["class"], 0.0) > rule["above"]]
    return at + timedelta(hours=min(hours)) if hours else None


def lock_open_reads(session: Session, cases: ColumnElement[bool]) -> list[ReadRequest]:
    """Open and leased reads of some cases, locked in one order for all who change several."""
    statement = select(ReadRequest).join(Case, Case.id == ReadRequest.case_id)
    statement = statement.where(cases, ReadRequest.state.in_(("open", "leased")))
    locked = statement.order_by(ReadRequest.id).with_for_update(of=ReadRequest)
    return list(session.execute(locked.execution_options(populate_existing=True)).scalars())


def bring_patient_forward(
    session: Session, keys: AuditKeys, actor: str, case: Case, policy: PolicyRow, class_probs: Mapping[str, float]
) -> list[ReadRequest]:
    """Make the open reads of a new cell's patient due together: by the earliest of them, or sooner if it is urgent."""
    # Of all cells, whatever they may be, and only under a policy with such rules. A cell without a patient keeps its
    # date: it would be the only one in front, and its place would tell the annotator why.
    if not policy.urgent or case.patient is None:
        return []
    reads = lock_open_reads(session, Case.patient == case.patient)
    urgent = urgent_due(policy, class_probs, case.created_at)
    # what is overdue already stays so alone: a new cell is not overdue when it comes
    ahead = [read.due_at for read in reads if read.due_at > case.created_at]
    due = min(ahead if urgent is None else [*ahead, urgent], default=case.created_at)
    moved = [read for read in reads if read.due_at > due]
    for read in moved:
        set_due(read, due)
    if moved:
        record_due(session, keys, actor, moved, due)
    return moved


def set_due(read: ReadRequest, due: datetime) -> None:
    """Set when a read is due."""
    read.due_at, read.due_on = due, due.date().isoformat()


def record_due(session: Session, keys: AuditKeys, actor: str, reads: list[ReadRequest], due: datetime) -> None:
    """Record that reads are due at another time."""
    events.record_event(
        session,
        keys,
        actor=actor,
        action="request.due",
        object_id="requests",
        details={"requests": [str(read.id) for read in reads], "due": due.isoformat()},
        cases=sorted({read.case_id for read in reads}),
    )
