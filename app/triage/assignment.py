"""Decide who may read, and assign planned reads to annotators drawn at random, so that readers are a random sample."""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, Select, and_, exists, false, func, or_, select, true
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from app.accounts.service import annotator_of_account, had_annotators, reading_annotators
from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    SHOWN_KINDS,
    Annotator,
    Case,
    CaseTwin,
    CountedLabel,
    Exposure,
    PolicyRow,
    PracticeItem,
    Qualification,
    Read,
    ReaderDraw,
    ReadRequest,
    ReferenceCell,
    time_of,
)
from app.database.tables.values import EligibilityReason
from app.http.errors import Forbidden
from app.triage.queries import current_policy
from ml.messages import Message

NOT_YET = Message(
    "you receive cells once you are qualified: open Training (/practice, GET "
    "/v1/practice) and pass a qualification, or ask an admin"
)


class NotQualified(Forbidden):
    """An annotator asks for a read, and has to be qualified first."""

    code, title = "not-qualified", "Not qualified yet"


@dataclass(frozen=True)
class ReadEligibility:
    """Eligibility of an annotator to be given reads."""

    # the policy in force asks for a qualification
    required: bool
    # why they may or may not
    because: EligibilityReason

    @property
    def may_read(self) -> bool:
        """Whether reads go to them."""
        return self.because not in {"withdrawn", "not-yet"}


def eligibility_of(session: Session, annotator: Annotator | None, policy: PolicyRow | None = None) -> ReadEligibility:
    """Return an annotator's eligibility to be given reads."""
    # Labels from before the policy began to ask count as a qualification, until somebody withdraws it.
    policy = policy or current_policy(session)
    if not policy.require_qualification:
        return ReadEligibility(False, "not-required")
    if annotator is None:
        return ReadEligibility(True, "not-yet")
    decision = newest_decision(session, annotator.id)
    if decision is not None:
        kinds: dict[str, EligibilityReason] = {"passed": "passed", "qualified": "qualified"}
        return ReadEligibility(True, kinds.get(decision.kind, "withdrawn"))
    given = exists().where(
        CountedLabel.annotator_id == annotator.id, CountedLabel.created_at < _required_since(session, policy)
    )
    return ReadEligibility(True, "earlier-labels" if session.execute(select(given)).scalar_one() else "not-yet")


def newest_decision(session: Session, annotator_id: uuid.UUID) -> Qualification | None:
    """The decision that holds: the newest one that says whether an annotator may read."""
    about = (Qualification.annotator_id == annotator_id, Qualification.kind != "renewed")
    statement = select(Qualification).where(*about).order_by(Qualification.created_at.desc(), Qualification.id.desc())
    return session.execute(statement.limit(1)).scalar_one_or_none()


def _required_since(session: Session, policy: PolicyRow) -> datetime:
    """Return the time since which policies have required a qualification without a break."""
    before = select(func.max(PolicyRow.version)).where(PolicyRow.require_qualification.is_(False)).scalar_subquery()
    since = select(func.min(PolicyRow.created_at)).where(PolicyRow.version > func.coalesce(before, 0))
    return session.execute(since).scalar_one_or_none() or policy.created_at


def require_qualified(session: Session, annotator: Annotator, policy: PolicyRow) -> None:
    """Stop an annotator who has to be qualified before they read."""
    if not eligibility_of(session, annotator, policy).may_read:
        raise NotQualified(NOT_YET)


def eligibility_of_account(session: Session, account_id: uuid.UUID) -> ReadEligibility:
    """Return the eligibility of an account's annotator to be given reads."""
    policy = current_policy(session)
    if not policy.require_qualification:
        return ReadEligibility(False, "not-required")
    return eligibility_of(session, annotator_of_account(session, account_id), policy)


def list_eligible_annotators(session: Session, *, guests: bool = False) -> list[Annotator]:
    """List annotators who can be assigned a read, in order; qualified ones where the policy asks for it."""
    annotators, policy = reading_annotators(session, guests=guests), current_policy(session)
    if not policy.require_qualification:
        return annotators
    decisions = select(Qualification).where(Qualification.kind != "renewed")
    in_order = decisions.order_by(Qualification.created_at, Qualification.id)
    newest = {row.annotator_id: row.kind for row in session.execute(in_order).scalars()}
    given = exists().where(
        CountedLabel.annotator_id == Annotator.id, CountedLabel.created_at < _required_since(session, policy)
    )
    earlier = set(session.execute(select(Annotator.id).where(Annotator.account_id.is_not(None), given)).scalars())
    qualified = {one for one, kind in newest.items() if kind != "withdrawn"} | (earlier - newest.keys())
    return [annotator for annotator in annotators if annotator.id in qualified]


#: Annotators among whom a read is drawn at most, so that each has a probability of a tenth or more.
PANEL_SIZE = 10
#: Time after a read was due from which on anybody may take it.
GRACE_PERIOD = timedelta(days=2)


def choose_weekly_panel(key: DerivedKey, at: datetime, annotators: Sequence[uuid.UUID]) -> list[uuid.UUID]:
    """Choose the annotators of a week's draws: all, or ten of more by a keyed order."""
    year, week, _ = at.isocalendar()
    begun = f"week {year}-{week:02d} ".encode()
    return sorted(sorted(annotators, key=lambda one: key.digest(begun + one.bytes))[:PANEL_SIZE])


def pick_annotator(key: DerivedKey, case_id: uuid.UUID, ordinal: int, position: int, among: Sequence[str]) -> str:
    """Pick one of ``among`` by a keyed draw, each with the same probability."""
    digest = key.digest(f"draw {case_id} {ordinal} {position}".encode())
    return among[int.from_bytes(digest[:7], "big") * len(among) >> 56]


def draw_annotator(
    key: DerivedKey, request: ReadRequest, position: int, left: Sequence[uuid.UUID], at: datetime
) -> ReaderDraw | None:
    """Draw the annotator of a request and assign it; None where nobody is left and anyone may take it."""
    among = [str(annotator) for annotator in choose_weekly_panel(key, at, left)]
    request.annotator_id = None
    if not among:
        return None
    request.annotator_id = uuid.UUID(pick_annotator(key, request.case_id, request.ordinal, position, among))
    return ReaderDraw(
        request_id=request.id,
        case_id=request.case_id,
        position=position,
        annotator_id=request.annotator_id,
        probability=1 / len(among),
        among=among,
    )


def draw_for_planned_reads(
    session: Session, key: DerivedKey, case: Case, requests: Sequence[ReadRequest], twins: Collection[uuid.UUID]
) -> list[ReaderDraw]:
    """Draw of whom each planned read of a case is asked, nobody twice; the reads of a specimen are spread."""
    left, time = list_assignable_annotators(session, requests[0], twins), time_of(session)
    draws = []
    for request in requests:
        among = _least_asked(session, case, choose_weekly_panel(key, time, left))
        reader_draw = draw_annotator(key, request, 0, among, time)
        if reader_draw is not None:
            draws.append(reader_draw)
            left.remove(reader_draw.annotator_id)
    return draws


def _least_asked(session: Session, case: Case, annotators: list[uuid.UUID]) -> list[uuid.UUID]:
    """Annotators with the fewest reads of the case's specimen; all of them if it has none."""
    if case.specimen_id is None or not annotators:
        return annotators
    drawn = select(ReaderDraw.annotator_id, func.count()).join(Case, Case.id == ReaderDraw.case_id)
    drawn = drawn.where(Case.specimen_id == case.specimen_id).group_by(ReaderDraw.annotator_id)
    counts = {row[0]: row[1] for row in session.execute(drawn)}
    fewest = min(counts.get(one, 0) for one in annotators)
    return [one for one in annotators if counts.get(one, 0) == fewest]


def redraw_annotator(session: Session, key: DerivedKey, request: ReadRequest) -> None:
    """Draw a stored request among the rest, after the one who was drawn has declined or may not read any more."""
    left = list_assignable_annotators(session, request, twins_of_case(session, request.case_id))
    again = draw_annotator(key, request, next_position(session, request.id), left, time_of(session))
    if again is not None:
        session.add(again)
    session.flush()


def next_position(session: Session, request_id: uuid.UUID) -> int:
    """Number of the next draw of a request."""
    drawn_before = select(func.count()).select_from(ReaderDraw).where(ReaderDraw.request_id == request_id)
    return session.execute(drawn_before).scalar_one()


def twins_of_case(session: Session, case_id: uuid.UUID) -> list[uuid.UUID]:
    """Stored cases with the image of a stored case."""
    return list(session.execute(select(CaseTwin.twin_id).where(CaseTwin.case_id == case_id)).scalars())


#: Tables by whose rows an annotator has met a case, each with a condition on them.
_MEETINGS: tuple[tuple[type[CountedLabel | Exposure | PracticeItem | Read], ColumnElement[bool]], ...] = (
    (CountedLabel, true()),
    (Exposure, true()),
    (PracticeItem, true()),
    (Read, Read.state.in_(("leased", "committed", "declined"))),
)


def list_assignable_annotators(
    session: Session, request: ReadRequest, twins: Collection[uuid.UUID], *, guests: bool = False
) -> list[uuid.UUID]:
    """List the annotators to whom a request can be assigned: none who has met the case or a twin."""
    # Nor any who is asked for another read of these. What is a reference cell is asked of nobody.
    cases = [request.case_id, *twins]
    reference = (ReferenceCell.case_id.in_(cases), ReferenceCell.kind.in_(SHOWN_KINDS))
    if session.execute(select(ReferenceCell.id).where(*reference).limit(1)).first() is not None:
        return []
    asked_annotators = select(ReadRequest.annotator_id).where(
        ReadRequest.case_id.in_(cases), ReadRequest.id != request.id, ReadRequest.state.in_(("open", "leased"))
    )
    met: list[Select[uuid.UUID | None]] = [asked_annotators]
    met += [select(table.annotator_id).where(table.case_id.in_(cases), condition) for table, condition in _MEETINGS]
    excluded_ids = {annotator_id for statement in met for annotator_id in session.execute(statement).scalars()}
    eligible = list_eligible_annotators(session, guests=guests)
    return [annotator.id for annotator in eligible if annotator.id not in excluded_ids]


def list_annotators_for_case(session: Session, case_id: uuid.UUID) -> list[Annotator]:
    """List the annotators who may still read a stored case: by its next open request, or by a new one."""
    statement = select(ReadRequest).where(ReadRequest.case_id == case_id, ReadRequest.state == "open")
    request = session.execute(statement.order_by(ReadRequest.ordinal).limit(1)).scalar_one_or_none()
    left = set(
        list_assignable_annotators(session, request or ReadRequest(case_id=case_id), twins_of_case(session, case_id))
    )
    return [annotator for annotator in list_eligible_annotators(session) if annotator.id in left]


def no_annotator_left(session: Session, case_id: InstrumentedAttribute[uuid.UUID]) -> ColumnElement[bool]:
    """Condition on a case: no annotator reads it or may; false if outside systems alone have annotators."""
    if not had_annotators(session):
        return false()
    read = aliased(ReadRequest)

    def has(column: InstrumentedAttribute[uuid.UUID], *conditions: ColumnElement[bool]) -> ColumnElement[bool]:
        own = exists().where(column == case_id, *conditions)
        of_twin = exists().where(CaseTwin.case_id == case_id, column == CaseTwin.twin_id, *conditions)
        return or_(*(one.correlate(case_id.class_, Annotator) for one in (own, of_twin)))

    # who it was is hidden from the database, which would else go through all that an annotator has met, for each case
    hidden = {table: func.coalesce(table.annotator_id, table.annotator_id) == Annotator.id for table, _ in _MEETINGS}
    met = [has(table.case_id, hidden[table], condition) for table, condition in _MEETINGS]
    eligible = [annotator.id for annotator in list_eligible_annotators(session)]
    guests = [one.id for one in list_eligible_annotators(session, guests=True) if one.id not in eligible]
    is_asked = exists().where(read.case_id == case_id, read.state == "open", read.annotator_id == Annotator.id)
    may = or_(Annotator.id.in_(eligible), and_(Annotator.id.in_(guests), is_asked.correlate(case_id.class_, Annotator)))
    left = exists().where(may, ~or_(*met)).correlate(case_id.class_)
    being_read = exists().where(read.case_id == case_id, read.state == "leased").correlate(case_id.class_)
    return and_(~being_read, or_(~left, has(ReferenceCell.case_id, ReferenceCell.kind.in_(SHOWN_KINDS))))


def cells_without_annotator(session: Session) -> Select[uuid.UUID]:
    """Select the cells with an open request that no annotator may take."""
    return select(ReadRequest.case_id).where(
        ReadRequest.state == "open", no_annotator_left(session, ReadRequest.case_id)
    )
