"""The queue of an annotator: what stands in it, in which order, and what it costs to go through it."""

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, inspect, select, update
from sqlalchemy.orm import Session

from app.database.tables import (
    SHOWN_KINDS,
    Account,
    Annotator,
    BaseTable,
    Case,
    CaseTwin,
    Exposure,
    Label,
    Read,
    ReadRequest,
    ReferenceCell,
    ReleaseRow,
    Repeat,
    new_id,
    utc_now,
)
from app.labels.queue import iter_waiting_requests, next_request
from app.triage.assignment import GRACE_PERIOD
from tests.app.test_leases import all_twice
from tests.support.service import Service, cell_png

N_CASES = 24


def rows_of(session: Session, table: type[Any]) -> list[Any]:
    return list(session.execute(select(table)).scalars())


def by_definition(session: Session, me: uuid.UUID) -> list[uuid.UUID]:
    """Open requests that an annotator may be given, as the docstrings say it, one row at a time."""
    known = {read.case_id for read in rows_of(session, Read) if read.annotator_id == me and read.state in TAKEN}
    known |= {row.case_id for table in (Label, Exposure) for row in rows_of(session, table) if row.annotator_id == me}
    known |= {cell.case_id for cell in rows_of(session, ReferenceCell) if cell.kind in SHOWN_KINDS}
    twins = [(twin.case_id, twin.twin_id) for twin in rows_of(session, CaseTwin)]
    known |= {case_id for case_id, twin_id in twins if twin_id in known}
    seats = [repeat for repeat in rows_of(session, Repeat) if repeat.annotator_id == me]
    known |= {repeat.in_place_of for repeat in seats if repeat.back_at is None or repeat.back_at > utc_now()}
    found = [
        request
        for request in rows_of(session, ReadRequest)
        if request.state == "open"
        and (request.annotator_id in (None, me) or request.due_at < utc_now() - GRACE_PERIOD)
        and request.case_id not in known
    ]
    found.sort(key=lambda one: (one.due_on, one.shuffle, one.annotator_id != me, one.ordinal))
    return [request.id for request in found]


TAKEN = {"leased", "committed", "declined"}


def shaken(session: Session, chance: random.Random, me: uuid.UUID, other: uuid.UUID) -> None:
    """Requests asked of anybody, cases that annotators know in every way, and places that several cases share."""
    account, cases = rows_of(session, Account)[0].id, rows_of(session, Case)
    release = rows_of(session, ReleaseRow)[0].id
    for request in rows_of(session, ReadRequest):
        due = utc_now() + timedelta(days=chance.choice((-9, 3)))
        fields = {"due_at": due, "due_on": due.date().isoformat(), "annotator_id": chance.choice((None, me, other))}
        fields |= {"state": chance.choice(("open", "open", "open", "closed"))}
        session.execute(update(ReadRequest).where(ReadRequest.id == request.id).values(**fields))
    for case in cases:
        place = chance.randrange(6)
        session.execute(update(ReadRequest).where(ReadRequest.case_id == case.id).values(shuffle=place))
        who = chance.choice((me, other))
        way = chance.randrange(8)
        if way == 2 and (case.id, who) in {(read.case_id, read.annotator_id) for read in rows_of(session, Read)}:
            way = 3
        if way == 0:
            session.add(Exposure(case_id=case.id, annotator_id=who, release_id=release))
        elif way == 1:
            kind = {"kind": "label", "class_code": "blast", "blind": True, "round": "planned", "created_by": account}
            session.add(Label(case_id=case.id, annotator_id=who, **kind))
        elif way == 2:
            first = next(one for one in rows_of(session, ReadRequest) if one.case_id == case.id)
            state = chance.choice(("committed", "declined", "released", "expired"))
            session.add(Read(request_id=first.id, case_id=case.id, annotator_id=who, state=state, expires_at=utc_now()))
        elif way == 3:
            twin = chance.choice([one for one in cases if one.id != case.id])
            for pair in ((case.id, twin.id), (twin.id, case.id)):
                if session.get(CaseTwin, pair) is None:
                    session.add(CaseTwin(case_id=pair[0], twin_id=pair[1]))
        session.flush()


@pytest.mark.both_databases
@pytest.mark.parametrize("seed", range(3))
def test_the_queue_is_what_its_definition_says_however_many_are_looked_at_together(service: Service, seed: int) -> None:
    service.written_past = True
    all_twice(service)
    for number in range(N_CASES):
        service.add_case(f"case {number}", cell_png(number), patient=f"p{number}")
    for who in ("anna", "ben"):
        service.post(who, "/v1/reads")
    with service.context.database.write() as session:
        me, other = (row.id for row in rows_of(session, Annotator)[:2])
        shaken(session, random.Random(seed), me, other)
        for annotator in (me, other):
            wanted = by_definition(session, annotator)
            assert wanted
            for together in (1, 2, 5, 200):
                found = [request.id for request in iter_waiting_requests(session, annotator, together=together)]
                assert found == wanted


def fill_queue(session: Session, n: int, me: uuid.UUID) -> None:
    """Copies of the one case that there is, each with an open request, and as many that the annotator has labelled."""
    case, request = rows_of(session, Case)[0], rows_of(session, ReadRequest)[0]
    account = rows_of(session, Account)[0].id

    def copied(row: BaseTable, **changed: Any) -> dict[str, Any]:
        names = [attribute.key for attribute in inspect(type(row)).column_attrs]
        return {name: getattr(row, name) for name in names if getattr(row, name) is not None} | changed

    ids = [new_id() for _ in range(n)]
    known = [new_id() for _ in range(n)]
    session.execute(insert(Case), [copied(case, id=one, external_id=str(one)) for one in ids + known])
    session.execute(
        insert(ReadRequest),
        [copied(request, id=new_id(), case_id=one, shuffle=i, state="open") for i, one in enumerate(ids)],
    )
    said = {"annotator_id": me, "kind": "label", "class_code": "blast", "blind": True, "round": "planned"}
    session.execute(insert(Label), [{"case_id": one, "created_by": account, **said} for one in known])


@contextmanager
def steps_of_sqlite(session: Session) -> Iterator[list[int]]:
    """How many hundred instructions of its machine SQLite runs through in the block."""
    driver: Any = session.connection().connection.driver_connection
    seen = [0]

    def step() -> int:
        seen[0] += 1
        return 0

    driver.set_progress_handler(step, 100)
    yield seen
    driver.set_progress_handler(None, 100)


@pytest.mark.slow
def test_a_lease_costs_no_more_before_many_open_requests_and_after_many_labels(service: Service) -> None:
    service.written_past = True
    service.add_case("case", cell_png(), patient="p")
    service.post("anna", "/v1/reads")
    costs = []
    for n in (60, 2_000):
        with service.context.database.write() as session:
            me = rows_of(session, Annotator)[0].id
            fill_queue(session, n, me)
            with steps_of_sqlite(session) as seen:
                assert next_request(session, service.context.keys.readers.order, me) is not None
            costs.append(seen[0])
    assert costs[1] <= 1.5 * costs[0] + 5, costs
