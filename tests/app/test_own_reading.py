"""How annotators read: for themselves and admins, once a week, in steps of ten, and nothing of a case to be read."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from app.annotators import service as annotators
from app.annotators.history import FINAL_AFTER
from app.cases import queries as case_queries
from app.database.tables import utc_now
from tests.app.test_leases import answer_next, classes_of, commit, lease, read_next, set_policy
from tests.app.test_people import first_password
from tests.support.service import Service, cell_png, store

Clock = Callable[[], None]


@pytest.fixture
def next_week(service: Service) -> Clock:
    """Lets the page be of the Monday after next, when everything of today is final."""

    def passes() -> None:
        service.clock.ahead = timedelta(weeks=2)

    return passes


def read_by_two(service: Service, n: int, first: int = 0, **fields: Any) -> None:
    """Cases that somebody outside and anna have read, and nobody else is to read."""
    codes = classes_of(service)
    for number in range(first, first + n):
        store(service, f"case {number}", cell_png(number), {"outside reader": number % 2})
        answer_next(service, "anna", codes[number % 2], confidence=0.9, **fields)
    service.make_labels_final()


def twice(service: Service, **fields: Any) -> None:
    set_policy(service, **{"threshold": 0.0, "reveal": "after_case_closed"} | fields)


def reading(service: Service, who: str = "anna", name: str = "me") -> dict[str, Any]:
    answer = service.get(who, f"/v1/annotators/{name}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_the_page_is_of_last_monday_and_counts_in_tens(service: Service, next_week: Clock) -> None:
    twice(service)
    read_by_two(service, 13)
    before = reading(service)
    assert (before["n_reads"], before["n_compared"], before["confusions"]) == (0, 0, [])
    next_week()
    shown = reading(service)
    assert (shown["n_reads"], shown["n_compared"]) == (10, 10)
    assert (shown["seconds"]["n"], shown["cannot_tell"]["n"], shown["agreement"]["n"]) == (10, 10, 10)
    assert shown["self_agreement"] is None
    assert [row["confidence"] for row in shown["confidence"]] == [0.9]
    assert len(shown["steps"]) == 1
    for pulled in (shown["agreement"], shown["cannot_tell"], shown["agreement_surplus"]):
        assert pulled["low"] <= pulled["value"] <= pulled["high"]
    codes = classes_of(service)
    rows = [sum(cell["share"] for cell in shown["confusions"] if cell["others_say"] == code) for code in codes]
    assert rows == pytest.approx([1.0] * len(codes))
    (compared,) = (text for text in shown["sentences"] if text.startswith("Another annotator gives"))
    assert re.search(r"On the same cases that is \d+ points? (lower|higher) than for somebody", compared)
    assert not re.search(r"[+-]\d", compared)  # nobody has to look for a sign
    cookie = first_password(service, "anna")
    text = service.client.get("/me", headers=cookie | {"Accept": "text/html"}).text
    assert all(words in text for words in ("My reading", "What is said where others", "Over time"))


def test_who_may_see_it(service: Service) -> None:
    assert reading(service)["n_reads"] == 0
    for who in ("anna", "ben"):
        service.add_case(who, cell_png(len(who)))
        assert lease(service, who) is not None
    assert reading(service)["annotator"] == reading(service, name="anna")["annotator"] == "anna"
    assert service.get("anna", "/v1/annotators/ben").status_code == 404
    assert service.get("anna", "/v1/annotators/nobody").json() | {"instance": ""} == service.get(
        "anna", "/v1/annotators/ben"
    ).json() | {"instance": ""}
    assert reading(service, "admin", "ben")["annotator"] == "ben"
    assert service.get("admin", "/v1/annotators").json()["items"] == ["anna", "ben"]
    assert service.get("viewer", "/v1/annotators/anna").status_code == 403
    assert service.get("admin", "/annotators/ben").status_code == 200
    assert service.get("anna", "/annotators/anna").status_code == 403


def test_nothing_tells_what_was_done_with_a_case_still_to_be_read(service: Service, next_week: Clock) -> None:
    """Ben reads, declines and corrects cases that anna has not read, and her page stays as it was."""
    twice(service)
    read_by_two(service, 10)
    for number in range(3):
        service.add_case(f"open {number}", cell_png(20 + number))
    service.add_case("hers", cell_png(30))
    next_week()
    hers = reading(service)
    codes = classes_of(service)
    for number in range(3):
        read = read_next(service, "ben")
        if number == 2:
            service.post("ben", f"/v1/reads/{read['id']}/decline", json={"reason": "image_quality"})
        else:
            assert commit(service, "ben", read, codes[number]).status_code == 201
    service.make_labels_final()
    assert reading(service) == hers


def test_what_stays_closed_to_somebody_is_not_on_their_page(
    service: Service, next_week: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice(service, repeat_rate=0.05)
    monkeypatch.setattr(case_queries, "draw_random_unit", lambda: 0.0)
    read_by_two(service, 10)
    next_week()
    assert reading(service)["n_compared"] == 0
    assert reading(service, "admin", "anna")["n_compared"] == 10


def test_a_policy_that_never_shows_cases_compares_for_admins_only(service: Service, next_week: Clock) -> None:
    twice(service, reveal="never")
    read_by_two(service, 10)
    next_week()
    assert (reading(service)["n_compared"], reading(service)["n_reads"]) == (0, 10)
    assert reading(service, "admin", "anna")["n_compared"] == 10


def test_mondays_begin_weeks() -> None:
    monday = annotators.last_monday(utc_now())
    assert (monday.weekday(), monday.hour) == (0, 0)
    assert annotators.last_monday(monday) == monday
    assert timedelta(minutes=15) < FINAL_AFTER
