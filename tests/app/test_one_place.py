"""A case has one place in everybody's order, however often it will be read: being asked early or late tells nothing."""

from typing import Any

import pytest
from sqlalchemy import select

from app.tables import ReadRequest
from tests.app.test_leases import all_twice, classes_of, commit, lease, set_policy
from tests.support.service import Service, cell_png

pytestmark = pytest.mark.both_databases


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
    """Nobody is far ahead of another who reads as fast, so that late cases are no others than early ones."""
    all_twice(service)
    for number in range(24):
        service.add_case(f"case {number}", cell_png(number))
    code = classes_of(service)[0]
    orders: dict[str, list[str]] = {"anna": [], "ben": []}
    for _ in range(24):
        for who, order in orders.items():
            read = lease(service, who)
            assert read is not None
            order.append(read["case_id"])
            assert commit(service, who, read, code).status_code == 201
    assert sorted(orders["anna"]) == sorted(orders["ben"])
    assert orders["anna"] != orders["ben"]
    apart = sum(abs(orders["anna"].index(case) - orders["ben"].index(case)) for case in orders["anna"]) / 24
    assert apart < 5  # 8 in two independent orders
