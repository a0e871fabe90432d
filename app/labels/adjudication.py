"""Adjudication of disagreeing labels, and reassignment after a decline."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import DerivedKey
from app.cases.service import NamedLabel, blind_opinions, label_history
from app.context import ServiceContext
from app.database.tables import Annotator, Read, ReaderDraw, ReadRequest, time_of
from app.labels.annotator_weights import expected_gains_of_next
from app.labels.locked_context import LockedCaseContext, lock_case_context
from app.labels.posterior import CasePosterior
from app.triage.service import (
    list_assignable_annotators,
    list_eligible_annotators,
    needs_adjudication,
    new_request,
    next_position,
    redraw_annotator,
    rule_of,
    twins_of_case,
)

_BATCH = 100


def choose_adjudicator(
    session: Session, at_hand: LockedCaseContext, request: ReadRequest, labels: Sequence[NamedLabel]
) -> ReaderDraw | None:
    """Choose the adjudicator with the largest expected gain per waiting read, counting the new one."""
    # Not drawn, since nothing is evaluated by it. Anybody may take it where the policy draws nobody, where no model of
    # the annotators is in use, and where nobody is left.
    request.annotator_id = None
    if not at_hand.policy.draw_readers:
        return None
    left = list_assignable_annotators(session, request, twins_of_case(session, request.case_id))
    named = session.execute(select(Annotator.id, Annotator.name).where(Annotator.id.in_(left)).order_by(Annotator.id))
    names = {row.id: row.name for row in named}
    gains = expected_gains_of_next(session, at_hand.prediction, at_hand.classes, labels, list(names.values()))
    if not gains:
        return None
    loads = _count_waiting_requests(session, list(names))
    gain_of = dict(zip(names, gains, strict=True))
    chosen = max(names, key=lambda one: gain_of[one] / (1 + loads.get(one, 0)))
    request.annotator_id = chosen
    return ReaderDraw(
        request_id=request.id,
        case_id=request.case_id,
        position=next_position(session, request.id),
        annotator_id=chosen,
        probability=None,
        among=[str(one) for one in names],
        gain=gain_of[chosen],
        load=loads.get(chosen, 0),
    )


def _count_waiting_requests(session: Session, annotators: list[UUID]) -> dict[UUID | None, int]:
    """Reads that wait for each of some annotators, where there are any."""
    waiting = (ReadRequest.annotator_id.in_(annotators), ReadRequest.state.in_(("open", "leased")))
    counted = select(ReadRequest.annotator_id, func.count()).where(*waiting).group_by(ReadRequest.annotator_id)
    return {row[0]: row[1] for row in session.execute(counted)}


def _reassign_request(session: Session, draws: DerivedKey, request: ReadRequest) -> None:
    if request.round == "planned":
        redraw_annotator(session, draws, request)
    else:
        chosen = choose_adjudicator(
            session, lock_case_context(session, request.case_id), request, opinions_of(session, request.case_id)
        )
        if chosen is not None:
            session.add(chosen)
        session.flush()


def opinions_of(session: Session, case_id: UUID) -> list[NamedLabel]:
    """Blind opinions of a case, one per annotator."""
    return blind_opinions(label_history(session, case_id))


def reassign_open_requests(context: ServiceContext) -> int:
    """Reassign open requests whose annotator has declined or may no longer read."""
    # The worker does this, not the request that declines, which does the same for every read and takes as long.
    done = 0
    while count := _reassign_batch(context):
        done += count
    return done


def _reassign_batch(context: ServiceContext) -> int:
    with context.database.read() as session:
        if session.execute(select(ReaderDraw.id).limit(1)).first() is None:
            return 0
    with context.database.write() as session:
        reading = [annotator.id for annotator in list_eligible_annotators(session)]
        conditions = (ReadRequest.state == "open", ReadRequest.annotator_id.is_not(None))
        same = (Read.case_id == ReadRequest.case_id, Read.annotator_id == ReadRequest.annotator_id)
        declined = exists().where(*same, Read.state == "declined")
        gone = select(ReadRequest).where(*conditions, or_(declined, ReadRequest.annotator_id.not_in(reading)))
        locked = gone.order_by(ReadRequest.id).limit(_BATCH).with_for_update(skip_locked=True)
        requests = session.execute(locked.execution_options(populate_existing=True)).scalars().all()
        if not requests:
            return 0
        for request in requests:
            _reassign_request(session, context.keys.draws, request)
        events.record_event(
            session,
            context.keys.audit,
            actor="worker",
            action="request.ask",
            object_id="requests",
            details={"requests": [str(request.id) for request in requests]},
            cases=sorted({request.case_id for request in requests}),
        )
        return len(requests)


@dataclass(frozen=True)
class AdjudicationInput:
    """Opinions and requests of a case, as input to the decision on an adjudication."""

    # its blind opinions, one per annotator
    opinions: list[NamedLabel]
    requests: list[ReadRequest]


def adjudicate_if_undecided(
    session: Session,
    at_hand: LockedCaseContext,
    posterior: CasePosterior,
    labelled: AdjudicationInput,
    *,
    unsettled: bool,
) -> None:
    """Ask for another annotator where all reads are in, finally, and leave the leading class open."""
    case, policy, requests = at_hand.case, at_hand.policy, labelled.requests
    waiting = any(request.state in {"open", "leased"} for request in requests)
    rule = rule_of(policy, None)  # its threshold decides about planned reads only
    closed = requests and not waiting and not unsettled
    if closed and needs_adjudication(posterior.distribution, posterior.n_labels, rule):
        ordinal = requests[-1].ordinal + 1
        adjudication = new_request(case, policy, posterior.release_id, "adjudication", ordinal, time_of(session))
        # chosen before it is stored: to write it twice would lock a request after the case
        chosen = choose_adjudicator(session, at_hand, adjudication, labelled.opinions)
        session.add(adjudication)
        session.flush()  # a draw refers to its request
        requests.append(adjudication)
        if chosen is not None:
            session.add(chosen)
        waiting = True
    case.waiting = waiting
