"""Who reads alone: new annotators where the policy asks for it, attempts that cannot be tried until they succeed."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from app.annotators.practice import answers
from app.database.tables import Annotator, PracticeItem, PracticeRun, ReadRequest, utc_now
from app.labels.posterior import reassign_open_requests
from tests.app.test_leases import classes_of, commit, lease, set_policy
from tests.app.test_people import first_password
from tests.security.test_practice import ONCE, begin, cells_of, finish, make_set, reply, settle, true_code
from tests.support.service import Service, cell_png
from tests.support.statements import counted


def test_new_annotators_read_once_they_are_qualified(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 24)
    service.add_case("ben reads", cell_png(30))
    ben = lease(service, "ben")
    assert ben is not None
    commit(service, "ben", ben, classes_of(service)[0])
    set_policy(service, **ONCE, require_qualification=True)
    service.add_case("to read", cell_png(31))
    assert lease(service, "ben") is not None  # labels from before count
    refused = service.post("anna", "/v1/reads")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:secondread:problem:not-qualified")
    assert "/practice" in refused.json()["detail"]
    cookie = first_password(service, "anna")
    page = service.client.get("/worklist", headers=cookie | {"Accept": "text/html"})
    assert "Cases come to you once you are qualified" in page.text
    assert "0 waiting" in page.text
    assert service.client.get("/reads/upcoming", headers=cookie, follow_redirects=False).status_code == 204
    own = service.get("anna", "/v1/practice").json()
    assert (own["required"], own["may_read"], own["because"]) == (True, False, "not-yet")
    made = make_set(service, "qualification", n_cells=24, n_per_run=12)
    result = finish(service, begin(service, made).json())["result"]
    assert result["passed"] is True
    assert service.get("anna", "/v1/practice").json()["because"] == "passed"
    assert service.post("anna", "/v1/reads").status_code in {201, 204}
    assert begin(service, made).status_code == 409


def decide(service: Service, kind: str, name: str = "anna", reason: str = "seen them read") -> Any:
    body = {"kind": kind, "reason": reason}
    return service.post("admin", f"/v1/practice/annotators/{name}/decisions", json=body)


def test_nobody_takes_the_test_until_they_are_lucky(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    set_policy(service, **ONCE, require_qualification=True)
    settle(service, 26)
    made = make_set(service, "qualification", n_cells=26, n_per_run=8)
    run = begin(service, made).json()
    assert finish(service, run, wrong=True)["result"]["passed"] is False
    first = set(cells_of(service, PracticeItem))
    assert "possible from" in begin(service, made).json()["detail"]
    monkeypatch.setattr(answers, "WAIT", timedelta(0))
    assert finish(service, begin(service, made).json(), wrong=True)["result"]["passed"] is False
    items = cells_of(service, PracticeItem)
    assert len(items) == len(set(items)) == 16
    assert first < set(items)
    assert "ask an admin" in begin(service, made).json()["detail"]
    assert decide(service, "renewed").status_code == 201
    assert begin(service, made).status_code == 201
    assert service.post("anna", "/v1/reads").status_code == 403
    third = service.get("anna", "/v1/practice").json()["runs"][0]
    finish(service, third, wrong=True)
    assert "not enough cells" in begin(service, made).json()["detail"]  # two are left


def test_an_admin_decides_by_hand_with_a_reason_in_the_audit(service: Service) -> None:
    set_policy(service, **ONCE, require_qualification=True)
    service.add_case("to read", cell_png(1))
    assert decide(service, "qualified").json()["may_read"] is True
    assert lease(service, "anna") is not None
    shown = decide(service, "withdrawn", reason="took over somebody's key").json()
    assert (shown["may_read"], shown["because"]) == (False, "withdrawn")
    assert [decision["kind"] for decision in shown["decisions"]] == ["withdrawn", "qualified"]
    assert service.post("anna", "/v1/reads").status_code == 403
    assert decide(service, "qualified", "nobody").status_code == 404
    assert decide(service, "qualified", reason="  ").status_code == 422
    events = service.get("admin", "/v1/audit-events").json()["items"]
    assert [event["action"] for event in events if event["action"].startswith("annotator.")] == [
        "annotator.withdrawn",
        "annotator.qualified",
    ]
    listed = service.get("admin", "/v1/practice/annotators").json()
    assert {item["annotator"]: item["may_read"] for item in listed["items"]} == {"anna": False, "ben": False}


def test_reads_are_drawn_among_those_who_may_read(service: Service) -> None:
    set_policy(service, **ONCE, require_qualification=True, draw_readers=True)
    decide(service, "qualified", "ben")
    for number in range(6):
        service.add_case(f"drawn {number}", cell_png(number))
    with service.context.database.read() as session:
        drawn = session.execute(select(Annotator.name).join(ReadRequest, ReadRequest.annotator_id == Annotator.id))
        assert set(drawn.scalars()) == {"ben"}
    decide(service, "qualified", "anna")
    decide(service, "withdrawn", "ben")
    assert reassign_open_requests(service.context) == 6
    with service.context.database.read() as session:
        drawn = session.execute(select(Annotator.name).join(ReadRequest, ReadRequest.annotator_id == Annotator.id))
        assert set(drawn.scalars()) == {"anna"}


def test_an_answer_costs_the_same_whatever_was_said(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 12)
    run, costs = begin(service, make_set(service, "qualification", n_cells=12, n_per_run=6)).json(), []
    for wrong in (False, True, False, True):
        code = classes_of(service)[5] if wrong else true_code(service, run["item"])
        with counted(service.context.database) as statements:
            run = reply(service, run["item"], code).json()["run"]
        costs.append(len(statements))
    assert len(set(costs[1:])) == 1  # the first one fills caches


def test_many_trainings_do_not_hide_an_attempt(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 12)
    training = make_set(service, n_cells=2)
    test = make_set(service, "qualification", n_cells=10, n_per_run=8)
    finish(service, begin(service, test).json(), wrong=True)
    with service.context.database.write() as session:
        annotator_id = session.execute(select(PracticeRun.annotator_id)).scalar_one()
        for _ in range(120):
            row = {"set_id": UUID(training["id"]), "annotator_id": annotator_id, "state": "finished"}
            session.add(PracticeRun(**row, finished_at=utc_now()))
    service.written_past = True
    assert "possible from" in begin(service, test).json()["detail"]
