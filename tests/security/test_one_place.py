"""A case has one place in everybody's order, however often it will be read: being asked early or late tells nothing."""

from typing import Any
from uuid import UUID

from sqlalchemy import select

from app.database.tables import Read, ReadRequest
from app.triage.planning import random_queue_place
from tests.app.test_leases import all_twice, classes_of, commit, lease, set_policy
from tests.support.service import Service, cell_png


def test_all_requests_of_a_case_have_its_place(service: Service) -> None:
    set_policy(service, threshold=0.0, adjudicate_below=0.999999)
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
    codes = classes_of(service)
    for place, who in enumerate(("anna", "ben")):
        while (read := lease(service, who)) is not None:
            assert commit(service, who, read, codes[place]).status_code == 201
    with service.context.database.read() as session:
        rows = session.execute(select(ReadRequest.case_id, ReadRequest.shuffle)).all()
    places: dict[Any, set[int]] = {}
    for case_id, place in rows:
        places.setdefault(case_id, set()).add(place)
    assert len(rows) >= 6
    assert [len(of_case) for of_case in places.values()] == [1, 1, 1]
    assert len(set.union(*places.values())) == 3


def test_annotators_go_through_the_cases_together(service: Service) -> None:
    """Each next case is one of the four that come first, and which of them is everybody's own."""
    all_twice(service)
    cases = [UUID(service.add_case(f"case {number}", cell_png(number))["id"]) for number in range(12)]
    left = {who: {random_queue_place(case) for case in cases} for who in ("anna", "ben")}
    code = classes_of(service)[0]
    ranks: dict[str, list[int]] = {who: [] for who in left}
    for _ in range(12):
        for who, places in left.items():
            read = lease(service, who)
            assert read is not None
            with service.context.database.read() as session:
                request_id = session.get_one(Read, UUID(read["id"])).request_id
                place = session.get_one(ReadRequest, request_id).shuffle
            ranks[who].append(sorted(places).index(place))
            places.remove(place)
            assert commit(service, who, read, code).status_code == 201
    assert left == {"anna": set(), "ben": set()}
    assert all(max(of_one) < 4 for of_one in ranks.values())
    assert ranks["anna"] != ranks["ben"]
