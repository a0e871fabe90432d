"""Queue of an annotator: the open requests that they may be given, in order."""

import itertools
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ARRAY,
    BindParameter,
    Boolean,
    ColumnElement,
    CompoundSelect,
    Select,
    Text,
    Uuid,
    and_,
    bindparam,
    exists,
    func,
    or_,
    select,
    tuple_,
    union_all,
)
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain.keys import DerivedKey
from app.database.tables import (
    SHOWN_KINDS,
    Account,
    Annotator,
    Case,
    CaseTwin,
    CountedLabel,
    Exposure,
    PracticeItem,
    Read,
    ReadRequest,
    ReferenceCell,
    Repeat,
    time_of,
)
from app.http.principal import Principal
from app.labels.queries import AnyRequest
from app.triage.service import GRACE_PERIOD

# cases that come next, among which each annotator has an order of their own
_NEXT_FEW = 4
_PRIME = 2**31 - 1
#: Requests that are looked at together: few at first, since most often the first ones will do.
_FIRST, _GROWTH, _MOST = 16, 4, 2_000
#: Cases that are counted, at most.
_COUNTED = 1_000


class WaitingRequest(NamedTuple):
    """An open request: of which case, where in the order that all annotators share, and of whom it is asked."""

    id: uuid.UUID
    case_id: uuid.UUID
    due_on: str
    shuffle: int
    ordinal: int
    asked_of: uuid.UUID | None

    @property
    def place(self) -> tuple[str, int]:
        """Place in the order that all annotators share; requests of a case may have the same."""
        return self.due_on, self.shuffle

    @property
    def named(self) -> uuid.UUID:
        """Identifier from which the annotator's handle of the case is made."""
        return self.case_id


def iter_waiting_requests(
    session: Session,
    annotator_id: uuid.UUID,
    at: datetime | None = None,
    *,
    never_given: bool = False,
    together: int = _FIRST,
) -> Iterator[WaitingRequest]:
    """Open requests that an annotator may be given, in the order that all annotators share."""
    # Of a case the request that is asked of them comes first, else the lowest. Neither the case nor a twin of it was
    # ever with them, and nobody may have seen it as a reference cell. One that is asked of somebody else waits for them
    # alone until it is overdue.
    time, after = at or time_of(session), ("", -1)
    while True:
        of_whom = {"annotator_id": annotator_id, "asked_until": time - GRACE_PERIOD}
        rows = session.execute(_OPEN, {**of_whom, "due_on": after[0], "shuffle": after[1], "n": together})
        requests = [WaitingRequest._make(row) for row in rows]
        more = len(requests) == together
        if more and requests[0].place != (last := requests[-1].place):
            requests = [request for request in requests if request.place != last]  # others of that place may be missing
        elif more:
            together *= _GROWTH
            continue
        if not requests:
            return
        seen_ids = _find_seen_cases(session, annotator_id, time, requests, never_given=never_given)
        yield from (one for one in _asked_first(requests, annotator_id) if one.case_id not in seen_ids)
        if not more:
            return
        after, together = requests[-1].place, min(_MOST, _GROWTH * together)


def _asked_first(requests: Iterable[WaitingRequest], annotator_id: uuid.UUID) -> list[WaitingRequest]:
    return sorted(requests, key=lambda one: (*one.place, one.asked_of != annotator_id, one.ordinal))


def _is_offered() -> ColumnElement[bool]:
    """Condition on a request: the annotator may take it, as assigned, unassigned or long overdue; guests the first."""
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")
    guest = exists(Annotator.id).where(Annotator.id == me, Account.id == Annotator.account_id, Account.guest.is_(True))
    others = or_(ReadRequest.annotator_id.is_(None), ReadRequest.due_at < bindparam("asked_until"))
    return or_(ReadRequest.annotator_id == me, and_(others, ~guest))


def _open_requests() -> Select[Any]:
    # what they have labelled may still wait for others, and stands at the front of their queue until then. By its case
    # alone, since a case has few labels: what hides the annotator keeps a database from going through all of theirs
    mine = func.coalesce(CountedLabel.annotator_id, CountedLabel.annotator_id) == bindparam("annotator_id")
    of_twin = (CaseTwin.case_id == ReadRequest.case_id, CountedLabel.case_id == CaseTwin.twin_id)
    labelled = or_(exists().where(CountedLabel.case_id == ReadRequest.case_id, mine), exists().where(*of_twin, mine))
    place = (ReadRequest.due_on, ReadRequest.shuffle)
    request_columns = (ReadRequest.id, ReadRequest.case_id, *place, ReadRequest.ordinal, ReadRequest.annotator_id)
    statement: Select[Any] = (
        select()
        .add_columns(*request_columns)
        .where(ReadRequest.state == "open", _is_offered(), ~labelled)
        .where(tuple_(*place) > tuple_(bindparam("due_on"), bindparam("shuffle")))
        .order_by(*place)
        .limit(bindparam("n"))
    )
    return statement


_OPEN = _open_requests()


def _seen_cases_statement(dialect: str) -> CompoundSelect[Any]:
    """Select the cases, of some, that the annotator or a repeat rules out, twins included."""
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")

    def some(column: InstrumentedAttribute[uuid.UUID]) -> ColumnElement[bool]:
        """Whether it is one of the cases: one parameter, however many they are."""
        if dialect == "postgresql":
            return column == func.any(bindparam("cases", type_=ARRAY(Uuid)))
        listed = func.json_each(bindparam("cases", type_=Text)).table_valued("value")
        return column.in_(select(listed.c.value))

    still = or_(Repeat.back_at.is_(None), Repeat.back_at > bindparam("at"))
    given = or_(Read.state.in_(("leased", "committed", "declined")), bindparam("never_given", type_=Boolean))
    knowing = _seen_case_sources(me, given)
    twins = [
        select(CaseTwin.case_id).join(table, table.case_id == CaseTwin.twin_id).where(some(CaseTwin.case_id), mine)
        for table, mine in knowing
    ]
    return union_all(
        *(select(table.case_id).where(some(table.case_id), mine) for table, mine in knowing),
        *(statement.distinct() for statement in twins),
        select(Repeat.in_place_of).where(Repeat.annotator_id == me, some(Repeat.in_place_of), still),
    )


#: A table with the condition on its rows that an annotator knows the case of one.
_Source: TypeAlias = tuple[type[Any], ColumnElement[bool]]


def _seen_case_sources(me: BindParameter[uuid.UUID], given: ColumnElement[bool]) -> tuple[_Source, ...]:
    """List the tables, and the condition on their rows, that show which cases an annotator has seen."""
    # Who it was is hidden from the database where a case has few rows and an annotator thousands: else it may go
    # through all of theirs, for each case.

    def hidden(column: InstrumentedAttribute[uuid.UUID]) -> ColumnElement[bool]:
        return func.coalesce(column, column) == me

    return (
        (Read, and_(hidden(Read.annotator_id), given)),
        (CountedLabel, hidden(CountedLabel.annotator_id)),
        *_known_case_sources(me),
    )


def _known_case_sources(me: BindParameter[uuid.UUID]) -> tuple[_Source, ...]:
    """List these tables for cases of which an annotator has seen more than the pixels."""
    return (
        (Exposure, Exposure.annotator_id == me),
        (PracticeItem, PracticeItem.annotator_id == me),
        # what everybody may have seen as a reference cell is read by nobody
        (ReferenceCell, ReferenceCell.kind.in_(SHOWN_KINDS)),
    )


def _has_source(case_id: InstrumentedAttribute[uuid.UUID], sources: Iterable[_Source]) -> ColumnElement[bool]:
    of_twin = CaseTwin.case_id == case_id
    return or_(
        *(
            condition
            for table, mine in sources
            for condition in (
                exists().where(table.case_id == case_id, mine),
                exists().where(of_twin, table.case_id == CaseTwin.twin_id, mine),
            )
        )
    )


_SEEN_CASES = {dialect: _seen_cases_statement(dialect) for dialect in ("sqlite", "postgresql")}


def _find_seen_cases(
    session: Session, annotator_id: uuid.UUID, at: datetime, requests: Sequence[WaitingRequest], *, never_given: bool
) -> set[uuid.UUID]:
    cases = {request.case_id for request in requests}
    dialect = session.get_bind().dialect.name
    as_list: Any = list(cases) if dialect == "postgresql" else json.dumps([case_id.hex for case_id in cases])
    asking = {"annotator_id": annotator_id, "at": at, "cases": as_list, "never_given": never_given}
    return set(session.execute(_SEEN_CASES[dialect], asking).scalars())


def _count_statement() -> Select[Any]:
    """Count the cases of the first thousand requests that an annotator could be given, in one statement."""
    # What it asks of each case is what ``_seen_cases_statement`` asks of some.
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")

    taken = Read.state.in_(("leased", "committed", "declined"))
    still = or_(Repeat.back_at.is_(None), Repeat.back_at > bindparam("at"))
    seen = _has_source(ReadRequest.case_id, _seen_case_sources(me, taken))
    replaced = exists().where(Repeat.annotator_id == me, Repeat.in_place_of == ReadRequest.case_id, still)
    some = (
        select(ReadRequest.case_id)
        .where(ReadRequest.state == "open", _is_offered(), ~or_(seen, replaced))
        .limit(_COUNTED)
    )
    return select(func.count(some.subquery().c.case_id.distinct()))


_N_CASES = _count_statement()


def count_waiting(session: Session, principal: Principal) -> int:
    """Cases that an annotator could be given: repeats, and those of the first thousand requests."""
    annotator = session.execute(select(Annotator.id).where(Annotator.account_id == principal.account_id))
    annotator_id, time = annotator.scalar_one_or_none() or uuid.UUID(int=0), time_of(session)
    open_repeats = select(func.count()).where(Repeat.annotator_id == annotator_id, Repeat.state == "open")
    asking = {"annotator_id": annotator_id, "at": time, "asked_until": time - GRACE_PERIOD}
    n_cases: int = session.execute(_N_CASES, asking).scalar_one()
    return min(_COUNTED, session.execute(open_repeats).scalar_one() + n_cases)


class LockedRequest(NamedTuple):
    """Locked request for the annotator who reads its case."""

    # locked, still open
    request: AnyRequest
    # whether the picture around the cell is stored as well
    has_field: bool


def next_request(
    session: Session, key: DerivedKey, annotator_id: uuid.UUID, at: datetime | None = None
) -> LockedRequest | None:
    """The open request that this annotator reads next, locked; requests that others are taking are passed over."""
    repeats = _load_waiting_repeats(session, annotator_id)
    for repeat in repeats.known:  # withdrawn, and the case whose seat it took is back
        repeat.state, repeat.closed_at = "closed", time_of(session)
        repeat.back_at = repeat.closed_at
    queue = iter_waiting_requests(session, annotator_id, at)
    first = list(itertools.islice(queue, 2 * _NEXT_FEW))
    few = _next_few(key, annotator_id, first, repeats.blind)
    for candidate in few:
        kind = Repeat if isinstance(candidate, Repeat) else ReadRequest
        if (taken := _lock_first_open(session, kind, [candidate.id], annotator_id)) is not None:
            return taken
    others = itertools.chain(first, queue)
    while few and (ids := [request.id for request in itertools.islice(others, _FIRST)]):
        if (taken := _lock_first_open(session, ReadRequest, ids, annotator_id)) is not None:
            return taken
    return None


def peek_next_case(session: Session, key: DerivedKey, annotator_id: uuid.UUID) -> uuid.UUID | None:
    """Return the identifier behind the next case's handle, without leasing it."""
    first = list(itertools.islice(iter_waiting_requests(session, annotator_id), 2 * _NEXT_FEW))
    few = _next_few(key, annotator_id, first, _load_waiting_repeats(session, annotator_id).blind)
    return few[0].named if few else None


def _next_few(
    key: DerivedKey, annotator_id: uuid.UUID, first: Iterable[WaitingRequest], repeats: Iterable[Repeat]
) -> list[WaitingRequest | Repeat]:
    """Return the next requests and repeats in this annotator's own order, one per case."""
    # Everybody goes through the cases of a day in the same random order, and has an order of their own only among the
    # next few. In an order of one's own for the whole day, the later a case's turn comes the more often others have
    # taken its only request, so that late cases would tell that they are read twice, and have been read.
    lowest: dict[uuid.UUID, WaitingRequest | Repeat] = {}
    for candidate in first:
        lowest.setdefault(candidate.case_id, candidate)
    lowest |= {repeat.id: repeat for repeat in repeats}
    few = sorted(lowest.values(), key=lambda request: (request.due_on, request.shuffle))[:_NEXT_FEW]
    return sorted(few, key=lambda request: (request.due_on, _own_order(key, annotator_id, request.shuffle)))


class WaitingRepeats(NamedTuple):
    """Repeats that wait for an annotator: those to be read blind, and those of cases that they know by now."""

    blind: list[Repeat]
    known: list[Repeat]


def _waiting_repeats_statement() -> Select[Any]:
    # in one statement, however many wait: else the time of a lease would tell a repeat
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")
    not_blind = (CountedLabel, and_(CountedLabel.annotator_id == me, CountedLabel.blind.is_(False)))
    is_known = _has_source(Repeat.case_id, [not_blind, *_known_case_sources(me)])
    statement: Select[Any] = select().add_columns(Repeat, is_known)
    return statement.where(Repeat.annotator_id == me, Repeat.state == "open")


_WAITING_REPEATS = _waiting_repeats_statement()


def _load_waiting_repeats(session: Session, annotator_id: uuid.UUID) -> WaitingRepeats:
    repeats = WaitingRepeats([], [])
    for repeat, is_known in session.execute(_WAITING_REPEATS, {"annotator_id": annotator_id}):
        (repeats.known if is_known else repeats.blind).append(repeat)
    return repeats


def _own_order(key: DerivedKey, annotator_id: uuid.UUID, place: int) -> int:
    digest = key.digest(annotator_id.bytes)
    factor = int.from_bytes(digest[:4], "big") % (_PRIME - 1) + 1
    offset = int.from_bytes(digest[4:8], "big") % _PRIME
    return (place * factor + offset) % _PRIME


def _first_open_statement(requests: type[AnyRequest]) -> Select[Any]:
    order: tuple[Any, ...] = (requests.due_on, requests.shuffle)
    if issubclass(requests, ReadRequest):
        order += (requests.annotator_id.is_distinct_from(bindparam("annotator_id")), requests.ordinal)
    statement: Select[Any] = (
        select()
        .add_columns(requests, Case.stored_field_sha256.is_not(None))
        .select_from(requests)
        .join(Case, Case.id == requests.case_id)
        .where(requests.id.in_(bindparam("ids", expanding=True)), requests.state == "open")
        .order_by(*order)
        .limit(1)
        .with_for_update(skip_locked=True, of=requests)
        .execution_options(populate_existing=True)
    )
    return statement


_FIRST_OPEN: dict[type[AnyRequest], Select[Any]] = {kind: _first_open_statement(kind) for kind in (ReadRequest, Repeat)}


def _lock_first_open(
    session: Session, requests: type[AnyRequest], ids: Sequence[uuid.UUID], annotator_id: uuid.UUID
) -> LockedRequest | None:
    """The first of some requests that is still open, locked; None where others have taken all or are about to."""
    row = session.execute(_FIRST_OPEN[requests], {"ids": ids, "annotator_id": annotator_id}).first()
    return None if row is None else LockedRequest(*row)
