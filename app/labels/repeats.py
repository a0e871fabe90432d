"""Hidden repeats: schedule an annotator's second visit to a case."""

import random
import uuid
from datetime import datetime, timedelta

from sqlalchemy import exists, func, select
from sqlalchemy.orm import Session, aliased

from app.cases.service import draw_random_unit, is_provisional, wants_repeats, was_exposed
from app.database.tables import Case, CountedLabel, Exposure, HeldBack, PolicyRow, Repeat, time_of
from app.labels.annotator_day import LISTED, listed_since
from app.labels.queue import WaitingRequest, iter_waiting_requests

#: Time between the two visits, at least.
MIN_TIME_APART = timedelta(days=14)
#: Cases that an annotator answers between the two, at least: as many as their page lists with their pictures.
MIN_CASES_BETWEEN = LISTED
#: Places ahead in the annotator's queue among which a repeat takes a seat: none that they can have had a look at.
PLACES_AHEAD = range(4, 20)
# a case whose seat was taken comes back some hours after the repeat was leased, so that nobody can tell after which one
_BACK_AFTER = (timedelta(hours=1), timedelta(hours=4))
# cases tried before there is no repeat this time
_TRIED = 5
_random = random.SystemRandom()


def maybe_schedule_repeat(session: Session, annotator_id: uuid.UUID, policy: PolicyRow) -> None:
    """Schedule a repeat at random after a lease."""
    if not wants_repeats(policy) or draw_random_unit() >= policy.repeat_rate:
        return
    seat, label = _choose_replaced_request(session, annotator_id), _choose_repeated_label(session, annotator_id)
    if seat is None or label is None:
        return
    session.add(
        Repeat(
            annotator_id=annotator_id,
            case_id=label.case_id,
            label_id=label.id,
            policy_version=policy.version,
            in_place_of=seat.case_id,
            due_on=seat.due_on,
            shuffle=seat.shuffle,
        )
    )
    session.flush()


def _choose_replaced_request(session: Session, annotator_id: uuid.UUID) -> WaitingRequest | None:
    """Choose a request ahead in the queue for a repeat to displace; None where too few cases wait."""
    seats: dict[uuid.UUID, WaitingRequest] = {}
    for request in iter_waiting_requests(session, annotator_id, never_given=True):
        seats.setdefault(request.case_id, request)
        if len(seats) == PLACES_AHEAD.stop:
            break
    ahead = list(seats.values())[PLACES_AHEAD.start :]
    return _random.choice(ahead) if ahead else None


def _choose_repeated_label(session: Session, annotator_id: uuid.UUID) -> CountedLabel | None:
    """Choose the blind label to be repeated: of a held-back case, long enough ago; None without one."""
    listed = listed_since(session, annotator_id, MIN_CASES_BETWEEN) if MIN_CASES_BETWEEN else time_of(session)
    if listed is None:
        return None
    other = aliased(CountedLabel)
    mine = (other.annotator_id == annotator_id, other.case_id == HeldBack.case_id)
    newest = select(func.max(other.position)).where(*mine).correlate(HeldBack).scalar_subquery()
    recent = exists().where(*mine, other.created_at >= min(time_of(session) - MIN_TIME_APART, listed))
    repeated = exists().where(Repeat.annotator_id == annotator_id, Repeat.case_id == HeldBack.case_id)
    is_exposed = exists().where(Exposure.annotator_id == annotator_id, Exposure.case_id == HeldBack.case_id)
    statement = (
        select(CountedLabel)
        .join(
            HeldBack, (HeldBack.case_id == CountedLabel.case_id) & (HeldBack.annotator_id == CountedLabel.annotator_id)
        )
        .join(Case, Case.id == CountedLabel.case_id)
        .where(
            HeldBack.annotator_id == annotator_id,
            CountedLabel.position == newest,
            CountedLabel.blind.is_(True),
            CountedLabel.kind != "retraction",
            Case.erased_at.is_(None),
            ~recent,
            ~repeated,
            ~is_exposed,
            ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id),
        )
        .order_by(func.random())
        .limit(_TRIED)
    )
    labels = session.execute(statement).scalars().all()
    return next((label for label in labels if not was_exposed(session, annotator_id, label.case_id)), None)


def some_hours_after(at: datetime) -> datetime:
    """When the case comes back whose seat a repeat took at a time."""
    first, last = (after.total_seconds() for after in _BACK_AFTER)
    return at + timedelta(seconds=_random.uniform(first, last))
