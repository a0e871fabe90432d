"""Adjudication of disagreeing labels, and reassignment after a decline."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import exists, func, or_, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.detached_rows import change_row, insert_new_row
from app.audit.chain.keys import DerivedKey
from app.cases.queries import NamedLabel, blind_opinions, label_history
from app.context import Context
from app.database.tables import Annotator, Read, ReaderDraw, ReadRequest, time_of
from app.labels.annotator_weights import worth_of_next
from app.labels.locked_context import CaseAtHand, case_at_hand
from app.labels.posterior import CasePosterior
from app.triage.assignment import candidates, draw_again, next_position, twins_of_case
from app.triage.eligibility import who_may_read
from app.triage.planning import new_request
from app.triage.queries import rule_of
from app.triage.rules import another_annotator

_BATCH = 100


def prefer(
    session: Session, at_hand: CaseAtHand, request: ReadRequest, labels: Sequence[NamedLabel]
) -> ReaderDraw | None:
    """Ask an adjudication of whoever has the largest expected gain per read that waits for them, and one more.

    Not drawn, since nothing is evaluated by it. Anybody may take it where the policy draws nobody, where no model of
    the annotators is in use, and where nobody is left.

    Args:
        session: writing session.
        at_hand: the case.
        request: of the adjudication, with its identifier, stored or not.
        labels: blind opinions of the case.

    Returns:
        The choice, to be stored behind the request; None where anybody may take it.
    """
    request.annotator_id = None
    if not at_hand.policy.draw_readers:
        return None
    left = candidates(session, request, twins_of_case(session, request.case_id))
    named = session.execute(select(Annotator.id, Annotator.name).where(Annotator.id.in_(left)).order_by(Annotator.id))
    names = {row.id: row.name for row in named}
    gains = worth_of_next(session, at_hand.prediction, at_hand.classes, labels, list(names.values()))
    if not gains:
        return None
    loads = _loads(session, list(names))
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


def _loads(session: Session, annotators: list[UUID]) -> dict[UUID | None, int]:
    """Reads that wait for each of some annotators, where there are any."""
    waiting = (ReadRequest.annotator_id.in_(annotators), ReadRequest.state.in_(("open", "leased")))
    counted = select(ReadRequest.annotator_id, func.count()).where(*waiting).group_by(ReadRequest.annotator_id)
    return {row[0]: row[1] for row in session.execute(counted)}


def _ask(session: Session, draws: DerivedKey, request: ReadRequest) -> None:
    if request.round == "planned":
        draw_again(session, draws, request)
    else:
        chosen = prefer(session, case_at_hand(session, request.case_id), request, opinions_of(session, request.case_id))
        if chosen is not None:
            session.add(chosen)
        session.flush()


def opinions_of(session: Session, case_id: UUID) -> list[NamedLabel]:
    """Blind opinions of a case, one per annotator."""
    return blind_opinions(label_history(session, case_id))


def ask_instead(context: Context) -> int:
    """Ask open requests of somebody else whose annotator has declined them or may not read any more.

    The worker does this, not the request that declines, which does the same for every read and takes as long.

    Returns:
        How many.
    """
    done = 0
    while count := _ask_some_instead(context):
        done += count
    return done


def _ask_some_instead(context: Context) -> int:
    with context.database.read() as session:
        if session.execute(select(ReaderDraw.id).limit(1)).first() is None:
            return 0
    with context.database.write() as session:
        reading = [annotator.id for annotator in who_may_read(session)]
        asked = (ReadRequest.state == "open", ReadRequest.annotator_id.is_not(None))
        same = (Read.case_id == ReadRequest.case_id, Read.annotator_id == ReadRequest.annotator_id)
        declined = exists().where(*same, Read.state == "declined")
        gone = select(ReadRequest).where(*asked, or_(declined, ReadRequest.annotator_id.not_in(reading)))
        locked = gone.order_by(ReadRequest.id).limit(_BATCH).with_for_update(skip_locked=True)
        requests = session.execute(locked.execution_options(populate_existing=True)).scalars().all()
        if not requests:
            return 0
        for request in requests:
            _ask(session, context.keys.draws, request)
        events.record(
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
class Labelled:
    """What a case was asked and answered.

    Attributes:
        opinions: its blind opinions, one per annotator.
        requests: in order.
    """

    opinions: list[NamedLabel]
    requests: list[ReadRequest]


def adjudicate_if_undecided(
    session: Session, at_hand: CaseAtHand, posterior: CasePosterior, labelled: Labelled, *, unsettled: bool
) -> None:
    """Ask for another annotator where all reads are in, finally, and leave the leading class open.

    Args:
        session: writing session.
        at_hand: the case.
        posterior: after all its labels.
        labelled: its labels, and its requests so far; a new one is appended, since its policy decides what is revealed
            from now on.
        unsettled: whether somebody may still correct their label.
    """
    case, policy, requests = at_hand.case, at_hand.policy, labelled.requests
    waiting = any(request.state in {"open", "leased"} for request in requests)
    rule = rule_of(policy, None)  # its threshold decides about planned reads only
    closed = requests and not waiting and not unsettled
    if closed and another_annotator(posterior.distribution, posterior.n_labels, rule):
        ordinal = requests[-1].ordinal + 1
        adjudication = new_request(case, policy, posterior.release_id, "adjudication", ordinal, time_of(session))
        # chosen before it is stored: to write it twice would lock a request after the case
        chosen = prefer(session, at_hand, adjudication, labelled.opinions)
        requests.append(insert_new_row(session, adjudication))
        if chosen is not None:
            session.add(chosen)
            session.flush()
        waiting = True
    if case.waiting != waiting:
        change_row(session, case, waiting=waiting)
