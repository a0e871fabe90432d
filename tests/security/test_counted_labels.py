"""Hidden repeats stand among the labels, and only the few that must see them do: a walk over code and statements."""

import re
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from app.audit.verify import check_audit
from app.database.tables import BaseTable, CountedLabel, Label
from app.http.routing import walk_routes
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from tests.app.test_people import first_password
from tests.security.test_hidden_repeats import Coin, coin, journey, move_to_the_front, planned, read_next
from tests.support.label_queries import SEES_REPEATS, SENDERS, list_uses, seen_senders
from tests.support.service import Service

__all__ = ["coin"]
# of these an admin is to see what became of a repeat, or that time has passed
CHANGING = {"/v1/audit-events", "/v1/jobs", "/readyz", "/metrics"}


def test_no_code_selects_from_the_labels_but_that_which_must_see_repeats() -> None:
    assert set(list_uses()) == SEES_REPEATS.keys()


def documents(service: Service, case_id: str) -> dict[str, Any]:
    """What an admin gets of every route that needs no more than a case, and of every page."""
    answers = {}
    for route in walk_routes(service.client.app):  # type: ignore[arg-type]
        path = re.sub(r"{name}", "anna", re.sub(r"{case_id}", case_id, route.path))
        path += "?partition=all" if path in {"/v1/metrics", "/v1/agreement"} else ""
        if "GET" in (route.methods or ()) and "{" not in path:
            answer = service.get("admin", path, follow_redirects=False)
            if path not in CHANGING and answer.headers.get("content-type") == "application/json":
                answers[path] = answer.json()
    return answers


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_whole_flows_see_a_repeat_only_where_they_must(service: Service, coin: Coin) -> None:
    """Each statement of each test is looked at; here that the watch sees them, and that no document changes."""
    seen_senders.clear()
    case_id = str(planned(service, coin).case_id)
    cookie = first_password(service, "anna")
    move_to_the_front(service)
    before = documents(service, case_id)
    assert len(before) > 15
    assert before["/v1/metrics?partition=all"]["n_labels"] == 1
    read = read_next(service)
    journey(service, cookie, read)
    assert service.make_labels_final() == 0
    for page in ("/own", "/worklist"):
        service.client.get(page, headers=cookie | {"Accept": "text/html"})
    assert documents(service, case_id) == before
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "lead", ErasureTarget("p"), "asked for")
    with service.context.database.read_moment() as session:
        assert check_audit(session, service.context.keys.audit).faults == []
    assert seen_senders >= SENDERS | {"app.audit.proof"}


@pytest.mark.both_databases
def test_nothing_is_changed_through_the_view(service: Service) -> None:
    case = service.add_case()
    service.outside_label(case["id"], "reader", case["prediction"]["classes"][0])
    for statement in ("UPDATE counted_labels SET blind = :yes", "DELETE FROM counted_labels WHERE blind = :yes"):
        with pytest.raises(DBAPIError), service.context.database.write() as session:
            session.execute(text(statement), {"yes": True})


def test_the_view_has_the_columns_of_the_labels() -> None:
    columns = [[column.name for column in table.__table__.columns] for table in (Label, CountedLabel)]
    assert columns[0] == columns[1]
    assert "counted_labels" not in BaseTable.metadata.tables
