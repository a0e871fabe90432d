"""The queue of an annotator: open requests that they may be given, and which of them is next.

Who goes through a queue goes through it from its beginning, some requests at a time, and asks of those alone what the
annotator knows. So a lease costs as much before a hundred thousand requests as before ten, unless the annotator knows
the cases of the first ones, and no guess of a database at what is in its tables makes it go through all of them.
"""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    Boolean,
    CompoundSelect,
    Select,
    bindparam,
    exists,
    false,
    func,
    null,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session

from app.platform.keys import DerivedKey
from app.platform.principal import Principal
from app.reads.queries import AnyRequest
from app.tables import (
    SHOWN_KINDS,
    Annotator,
    Case,
    CaseTwin,
    Exposure,
    Label,
    PracticeItem,
    Read,
    ReadRequest,
    ReferenceCell,
    Repeat,
    now,
)
from app.triage.drawing import GRACE

# cases that come next, among which each annotator has an order of their own
_NEXT_FEW = 4
_PRIME = 2**31 - 1
#: Requests that are looked at together: few at first, since most often the first ones will do.
_FIRST, _GROWTH, _MOST = 32, 4, 2_000
#: Cases that are counted, at most.
_COUNTED = 1_000


class Waiting(NamedTuple):
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
        """What the annotator's handle of the case is made from."""
        return self.case_id


def waiting_for(
    session: Session,
    annotator_id: uuid.UUID,
    at: datetime | None = None,
    *,
    never_given: bool = False,
    together: int = _FIRST,
) -> Iterator[Waiting]:
    """Open requests that an annotator may be given, in the order that all annotators share.

    Of a case the request that is asked of them comes first, else the lowest. Neither the case nor a twin of it was ever
    with them, and nobody may have seen it as a reference cell. One that is asked of somebody else waits for them alone
    until it is overdue.

    Args:
        session: of the request.
        annotator_id: who.
        at: the time; now where left out.
        never_given: leave out as well what was given to them and given back.
        together: how many requests are looked at in the first place.
    """
    time, after = at or now(), ("", -1)
    while True:
        of_whom = {"annotator_id": annotator_id, "asked_until": time - GRACE}
        found = session.execute(_OPEN, {**of_whom, "due_on": after[0], "shuffle": after[1], "n": together}).all()
        twins: dict[Waiting, list[uuid.UUID]] = {}
        for *columns, twin_id in found:
            twins.setdefault(Waiting(*columns), []).append(twin_id)
        requests, more = sorted(twins, key=attrgetter("place")), len(twins) == together
        if more and requests[0].place != (last := requests[-1].place):
            requests = [request for request in requests if request.place != last]  # others of that place may be missing
        elif more:
            together *= _GROWTH
            continue
        if not requests:
            return
        known, kept = _known(session, annotator_id, time, requests, twins, never_given=never_given)
        for request in _asked_first(requests, annotator_id):
            if request.case_id not in kept and known.isdisjoint((request.case_id, *twins[request])):
                yield request
        if not more:
            return
        after, together = requests[-1].place, min(_MOST, _GROWTH * together)


def _asked_first(requests: Iterable[Waiting], annotator_id: uuid.UUID) -> list[Waiting]:
    return sorted(requests, key=lambda one: (*one.place, one.asked_of != annotator_id, one.ordinal))


def _open_requests() -> Select[Any]:
    """So many open requests after a place, with a row for each twin of their case, or one without."""
    asked = or_(
        ReadRequest.annotator_id.is_(None),
        ReadRequest.annotator_id == bindparam("annotator_id"),
        ReadRequest.due_at < bindparam("asked_until"),
    )
    # what they have labelled may still wait for others, and stands at the front of their queue until then. By its case
    # alone, since a case has few labels: what hides the annotator keeps a database from going through all of theirs
    labelled = exists().where(
        Label.case_id == ReadRequest.case_id,
        func.coalesce(Label.annotator_id, Label.annotator_id) == bindparam("annotator_id"),
    )
    place = (ReadRequest.due_on, ReadRequest.shuffle)
    columns = (ReadRequest.id, ReadRequest.case_id, *place, ReadRequest.ordinal, ReadRequest.annotator_id)
    some = (
        select(*columns)
        .where(ReadRequest.state == "open", asked, ~labelled)
        .where(tuple_(*place) > tuple_(bindparam("due_on"), bindparam("shuffle")))
        .order_by(*place)
        .limit(bindparam("n"))
        .subquery()
    )
    return select(*some.c, CaseTwin.twin_id).outerjoin(CaseTwin, CaseTwin.case_id == some.c.case_id)


_OPEN = _open_requests()


def _what_is_known() -> CompoundSelect[Any]:
    """By whom some cases are known, None for everybody; last, whether only because a repeat has taken their seat."""
    me: BindParameter[uuid.UUID] = bindparam("annotator_id")
    cases: BindParameter[Any] = bindparam("cases", expanding=True)
    given = or_(Read.state.in_(("leased", "committed", "declined")), bindparam("never_given", type_=Boolean))
    still = or_(Repeat.back_at.is_(None), Repeat.back_at > bindparam("at"))
    return union_all(
        # whoever it was: a case has few reads and labels and an annotator has thousands, through which a database goes
        # that is asked for theirs and takes the wrong index
        select(Read.case_id, Read.annotator_id, false()).where(Read.case_id.in_(cases), given),
        select(Label.case_id, Label.annotator_id, false()).where(Label.case_id.in_(cases)),
        *(
            select(table.case_id, me, false()).where(table.case_id.in_(cases), table.annotator_id == me)
            for table in (Exposure, PracticeItem)
        ),
        # what everybody may have seen as a reference cell is read by nobody
        select(ReferenceCell.case_id, null(), false()).where(
            ReferenceCell.case_id.in_(cases), ReferenceCell.kind.in_(SHOWN_KINDS)
        ),
        select(Repeat.in_place_of, me, true()).where(Repeat.annotator_id == me, Repeat.in_place_of.in_(cases), still),
    )


_KNOWN = _what_is_known()


def _known(
    session: Session,
    annotator_id: uuid.UUID,
    at: datetime,
    requests: Sequence[Waiting],
    twins: dict[Waiting, list[uuid.UUID]],
    *,
    never_given: bool,
) -> tuple[set[uuid.UUID], set[uuid.UUID]]:
    """Of the cases of requests and their twins those that an annotator knows, and those whose seat is taken."""
    cases = {request.case_id for request in requests}
    cases |= {twin for request in requests for twin in twins[request] if twin is not None}
    # some more of the same, so that statements have few lengths, and are known
    padding = itertools.repeat(next(iter(cases)), (1 << (len(cases) - 1).bit_length()) - len(cases))
    asking = {"annotator_id": annotator_id, "at": at, "cases": [*cases, *padding], "never_given": never_given}
    mine = [(case_id, kept) for case_id, who, kept in session.execute(_KNOWN, asking) if who in (None, annotator_id)]
    return {case_id for case_id, kept in mine if not kept}, {case_id for case_id, kept in mine if kept}


def count_waiting(session: Session, principal: Principal) -> int:
    """Cases that an annotator could be given: repeats, and those of the first thousand requests."""
    annotator = session.execute(select(Annotator.id).where(Annotator.account_id == principal.account_id))
    annotator_id = annotator.scalar_one_or_none() or uuid.UUID(int=0)
    open_repeats = select(func.count()).where(Repeat.annotator_id == annotator_id, Repeat.state == "open")
    first = itertools.islice(waiting_for(session, annotator_id, together=_COUNTED), _COUNTED)
    n_cases = len({request.case_id for request in first})
    return min(_COUNTED, session.execute(open_repeats).scalar_one() + n_cases)


class Taken(NamedTuple):
    """A request that is locked for whoever reads its case.

    Attributes:
        request: locked, still open.
        has_field: whether the picture around the cell is stored as well.
    """

    request: AnyRequest
    has_field: bool


def next_request(
    session: Session, key: DerivedKey, annotator_id: uuid.UUID, at: datetime | None = None
) -> Taken | None:
    """The open request that this annotator reads next, locked; requests that others are taking are passed over.

    Args:
        session: of the request, writing.
        key: from which each annotator's own order follows.
        annotator_id: who.
        at: the time; now where left out.
    """
    queue = waiting_for(session, annotator_id, at)
    first = list(itertools.islice(queue, 2 * _NEXT_FEW))
    few = _next_few(session, key, annotator_id, first)
    for wanted in few:
        kind = Repeat if isinstance(wanted, Repeat) else ReadRequest
        if (taken := _locked(session, kind, [wanted.id])) is not None:
            return taken
    others = itertools.chain(first, queue)
    while few and (ids := [request.id for request in itertools.islice(others, _FIRST)]):
        if (taken := _locked(session, ReadRequest, ids)) is not None:
            return taken
    return None


def look_ahead(session: Session, key: DerivedKey, annotator_id: uuid.UUID) -> uuid.UUID | None:
    """What the handle of the case is made from that this annotator would read next; takes nothing."""
    first = list(itertools.islice(waiting_for(session, annotator_id), 2 * _NEXT_FEW))
    few = _next_few(session, key, annotator_id, first)
    return few[0].named if few else None


def _next_few(
    session: Session, key: DerivedKey, annotator_id: uuid.UUID, first: Iterable[Waiting]
) -> list[Waiting | Repeat]:
    """What comes next, in this annotator's own order: of the first requests one per case, and repeats.

    Everybody goes through the cases of a day in the same random order, and has an order of their own only among the
    next few. In an order of one's own for the whole day, the later a case's turn comes the more often others have taken
    its only request, so that late cases would tell that they are read twice, and have been read.
    """
    lowest: dict[uuid.UUID, Waiting | Repeat] = {}
    for wanted in first:
        lowest.setdefault(wanted.case_id, wanted)
    repeats = session.execute(_WAITING_REPEATS, {"annotator_id": annotator_id}).scalars()
    lowest |= {repeat.id: repeat for repeat in repeats}
    few = sorted(lowest.values(), key=lambda request: (request.due_on, request.shuffle))[:_NEXT_FEW]
    return sorted(few, key=lambda request: (request.due_on, _own_order(key, annotator_id, request.shuffle)))


_WAITING_REPEATS = select(Repeat).where(Repeat.annotator_id == bindparam("annotator_id"), Repeat.state == "open")


def _own_order(key: DerivedKey, annotator_id: uuid.UUID, place: int) -> int:
    """Place of a case by this annotator's own permutation of the places."""
    digest = key.digest(annotator_id.bytes)
    factor = int.from_bytes(digest[:4], "big") % (_PRIME - 1) + 1
    offset = int.from_bytes(digest[4:8], "big") % _PRIME
    return (place * factor + offset) % _PRIME


def _untaken(requests: type[AnyRequest]) -> Select[Any]:
    """The first of some requests that is still open, as it is now, locked, leaving out what others have locked."""
    order: tuple[Any, ...] = (requests.due_on, requests.shuffle)
    if issubclass(requests, ReadRequest):
        order += (requests.ordinal,)
    statement: Select[Any] = (
        select()
        .add_columns(requests, Case.stored_field_sha256.is_not(None))
        .join(Case, Case.id == requests.case_id)
        .where(requests.id.in_(bindparam("ids", expanding=True)), requests.state == "open")
        .order_by(*order)
        .limit(1)
        .with_for_update(skip_locked=True, of=requests)
        .execution_options(populate_existing=True)
    )
    return statement


_UNTAKEN: dict[type[AnyRequest], Select[Any]] = {kind: _untaken(kind) for kind in (ReadRequest, Repeat)}


def _locked(session: Session, requests: type[AnyRequest], ids: Sequence[uuid.UUID]) -> Taken | None:
    """The first of some requests that is still open, locked; None where others have taken all or are about to."""
    row = session.execute(_UNTAKEN[requests], {"ids": ids}).first()
    return None if row is None else Taken(*row)
