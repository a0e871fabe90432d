"""Assign the reads that cells still want to an annotator, and set when they are due, by hand."""

import uuid
from collections.abc import Collection, Sequence
from datetime import date, datetime, time, tzinfo

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import Annotator, Case, CasePrediction, ReaderDraw, ReadRequest, time_of
from app.http.errors import Conflict, InvalidValue, NotFound
from app.http.principal import Principal
from app.predictions.service import champion_first_order
from app.triage.assignment import (
    list_assignable_annotators,
    list_eligible_annotators,
    next_position,
    twins_of_case,
)
from app.triage.planning import new_request, refresh_waiting
from app.triage.queries import current_policy
from app.triage.urgency import lock_open_reads, record_due, set_due


def assign_open_reads(
    session: Session, keys: AuditKeys, principal: Principal, case_ids: Collection[uuid.UUID], annotator_id: uuid.UUID
) -> list[ReadRequest]:
    """Ask an annotator for the next open read of each cell; cells without one, or that they have met, stay as they are.

    Such a case leaves the intervals for new annotators, which need readers who were drawn at random.
    """
    annotator = session.get(Annotator, annotator_id)
    if annotator is None or annotator.id not in {one.id for one in list_eligible_annotators(session)}:
        raise InvalidValue("no such annotator can be assigned for a read")
    assigned = []
    for request in _next_open_requests(session, case_ids):
        left = list_assignable_annotators(session, request, twins_of_case(session, request.case_id))
        if annotator.id not in left:
            continue
        if request.annotator_id != annotator.id:
            _assign(session, request, annotator.id, left)
        assigned.append(request)
    if assigned:
        _record_assignment(session, keys, principal, assigned, annotator.id)
    return assigned


def _record_assignment(
    session: Session, keys: AuditKeys, principal: Principal, asked: Sequence[ReadRequest], annotator_id: uuid.UUID
) -> None:
    events.record_event(
        session,
        keys,
        actor=principal.name,
        action="request.assign",
        object_id="requests",
        details={"requests": [str(request.id) for request in asked], "annotator": str(annotator_id)},
        cases=sorted({request.case_id for request in asked}),
    )


def _assign(session: Session, request: ReadRequest, annotator_id: uuid.UUID, left: Sequence[uuid.UUID]) -> None:
    """Ask an annotator for a read, preferred among those who are left and not drawn."""
    request.annotator_id = annotator_id
    session.add(
        ReaderDraw(
            request_id=request.id,
            case_id=request.case_id,
            position=next_position(session, request.id),
            annotator_id=annotator_id,
            probability=None,
            among=[str(one) for one in left],
        )
    )
    session.flush()


def ask_annotator(
    session: Session, keys: AuditKeys, principal: Principal, case_id: uuid.UUID, annotator_id: uuid.UUID
) -> ReadRequest:
    """Ask an annotator for the open read of a cell, or for an adjudication if none is open."""
    assigned, refused = ask_for_reads(session, keys, principal, [case_id], annotator_id)
    if refused:
        raise refused[0]
    return assigned[0]


def ask_for_reads(
    session: Session, keys: AuditKeys, principal: Principal, case_ids: Collection[uuid.UUID], annotator_id: uuid.UUID
) -> tuple[list[ReadRequest], list[Conflict]]:
    """Ask an annotator for a read of each cell; cells for which that is refused stay as they are."""
    annotator = next((one for one in list_eligible_annotators(session, guests=True) if one.id == annotator_id), None)
    if annotator is None:
        raise Conflict(
            "this annotator may not read: disabled, not blind or not qualified; "
            "qualify them under Team, or choose another one"
        )
    waiting = lock_open_reads(session, Case.id.in_(case_ids))  # requests are locked before their cases
    locked = select(Case).where(Case.id.in_(case_ids), Case.erased_at.is_(None)).order_by(Case.id).with_for_update()
    cells = list(session.execute(locked.execution_options(populate_existing=True)).scalars())
    if len(cells) < len(set(case_ids)):
        raise NotFound("there is no such cell")
    assigned, refused = [], []
    for case in cells:
        try:
            assigned.append(_ask_for_read(session, case, [one for one in waiting if one.case_id == case.id], annotator))
        except Conflict as conflict:
            refused.append(conflict)
    if assigned:
        _record_assignment(session, keys, principal, assigned, annotator_id)
    return assigned, refused


def _ask_for_read(session: Session, case: Case, waiting: Sequence[ReadRequest], annotator: Annotator) -> ReadRequest:
    """Ask for one read; a refusal comes before anything is written."""
    request = _own_or_free(session, waiting, annotator.id)
    if request is None:
        if any(one.round == "planned" and one.state == "leased" for one in waiting):
            raise Conflict("an annotator is reading this cell now; try again later")
        request = new_adjudication(session, case)
    left = list_assignable_annotators(session, request, twins_of_case(session, case.id), guests=True)
    if annotator.id not in left:
        raise Conflict(
            "{annotator} has met the cell {cell} or a near-duplicate of it, or may know it as a reference cell",
            annotator=annotator.name,
            cell=case.external_id,
        )
    session.add(request)
    session.flush()  # a draw refers to its request
    if request.annotator_id != annotator.id:
        _assign(session, request, annotator.id, left)
    refresh_waiting(session, case)
    return request


def _own_or_free(session: Session, waiting: Sequence[ReadRequest], annotator_id: uuid.UUID) -> ReadRequest | None:
    """The open request that an annotator is asked for already, else one that no guest is: none asked for at first."""
    everyone = {one.id for one in list_eligible_annotators(session, guests=True)}
    guests = everyone - {one.id for one in list_eligible_annotators(session)} - {annotator_id}
    free = [one for one in waiting if one.state == "open" and one.annotator_id not in guests]
    return min(
        free,
        key=lambda one: (one.annotator_id != annotator_id, one.annotator_id is not None, one.ordinal),
        default=None,
    )


def new_adjudication(session: Session, case: Case) -> ReadRequest:
    """A further request of a cell, whose case is locked, not stored yet: nothing is evaluated by its read."""
    newest = select(CasePrediction.release_id).where(CasePrediction.case_id == case.id)
    release_id = session.execute(newest.order_by(*champion_first_order()).limit(1)).scalar_one_or_none()
    if release_id is None:
        raise Conflict("the cell has no prediction")
    last = session.execute(select(func.max(ReadRequest.ordinal)).where(ReadRequest.case_id == case.id)).scalar_one()
    policy, time = current_policy(session), time_of(session)
    return new_request(case, policy, release_id, "adjudication", (last or 0) + 1, time)


def set_due_day(
    session: Session, keys: AuditKeys, principal: Principal, case_ids: Collection[uuid.UUID], day: date, zone: tzinfo
) -> list[ReadRequest]:
    """Make the open reads of cells, and of all cells of their patients, due at the end of a day."""
    # Of all cells of a patient: a cell that is due before the others of its patient would tell that it is special.
    due = datetime.combine(day, time(23, 59, 59), zone).astimezone(time_of(session).tzinfo)
    if due < time_of(session):
        raise InvalidValue("choose today or a later day")
    patients = select(Case.patient).where(Case.id.in_(case_ids), Case.patient.is_not(None))
    whole = select(Case.id).where(or_(Case.id.in_(case_ids), Case.patient.in_(patients)))
    reads = lock_open_reads(session, Case.id.in_(whole))
    for read in reads:
        set_due(read, due)
    if reads:
        record_due(session, keys, principal.name, reads, due)
    return reads


def _next_open_requests(session: Session, case_ids: Collection[uuid.UUID]) -> list[ReadRequest]:
    """The open request of each cell that is leased first."""
    requests = [one for one in lock_open_reads(session, Case.id.in_(case_ids)) if one.state == "open"]
    first: dict[uuid.UUID, ReadRequest] = {}
    for request in requests:
        if request.case_id not in first or request.ordinal < first[request.case_id].ordinal:
            first[request.case_id] = request
    return list(first.values())
