"""Assign the reads that cells still want to an annotator, and set when they are due, by hand."""

import uuid
from collections.abc import Collection
from datetime import date, datetime, time, tzinfo

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.tables import Annotator, Case, ReaderDraw, ReadRequest, time_of
from app.http.errors import InvalidValue
from app.http.principal import Principal
from app.triage.assignment import (
    list_assignable_annotators,
    list_eligible_annotators,
    next_position,
    twins_of_case,
)
from app.triage.urgency import lock_open_reads, record_due, set_due


def assign_open_reads(
    session: Session, keys: AuditKeys, principal: Principal, case_ids: Collection[uuid.UUID], annotator_id: uuid.UUID
) -> list[ReadRequest]:
    """Ask an annotator for the next open read of each cell; cells without one, or that they have met, stay as they are.

    Such a case leaves the intervals for new annotators, which need readers who were drawn at random.
    """
    annotator = session.get(Annotator, annotator_id)
    if annotator is None or annotator.id not in {one.id for one in list_eligible_annotators(session)}:
        raise InvalidValue("no such annotator can be asked for a read")
    asked = []
    for request in _next_open_requests(session, case_ids):
        left = list_assignable_annotators(session, request, twins_of_case(session, request.case_id))
        if annotator.id not in left:
            continue
        if request.annotator_id != annotator.id:
            request.annotator_id = annotator.id
            session.add(
                ReaderDraw(
                    request_id=request.id,
                    case_id=request.case_id,
                    position=next_position(session, request.id),
                    annotator_id=annotator.id,
                    probability=None,
                    among=[str(one) for one in left],
                )
            )
            session.flush()
        asked.append(request)
    if asked:
        events.record_event(
            session,
            keys,
            actor=principal.name,
            action="request.assign",
            object_id="requests",
            details={"requests": [str(request.id) for request in asked], "annotator": str(annotator.id)},
            cases=sorted({request.case_id for request in asked}),
        )
    return asked


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
