"""Practice tells nothing of a case still to be read, reaches no number, and lets those read who qualified."""

import re
import sys
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import select

from app.annotators.practice import answers
from app.audit.chain import events
from app.database.tables import (
    Annotator,
    Case,
    Exposure,
    Label,
    PracticeAnswer,
    PracticeCell,
    PracticeItem,
    PracticeRun,
    ReadRequest,
    utc_now,
)
from app.labels.posterior import reassign_open_requests
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from app.maintenance.export import export_dataset
from app.recalibration.service import read_recalibration_inputs
from app.triage.planning import new_request
from app.triage.queries import current_policy
from tests.app.test_leases import answer_next, classes_of, commit, lease, read_next, set_policy
from tests.app.test_people import first_password
from tests.support.service import Service, cell_png, store

#: Everybody reads a case once, and it is shown once it is closed.
ONCE: dict[str, Any] = {"threshold": 0.99, "audit_rate": 1e-9, "reveal": "after_case_closed"}
THREE = ("outside 1", "outside 2", "outside 3")


def settle(service: Service, n: int, first: int = 0, **fields: str) -> list[str]:
    """Closed cases with three labels each, who all say the same."""
    return [
        store(service, f"case {number}", cell_png(number), dict.fromkeys(THREE, number % 2), **fields)
        for number in range(first, first + n)
    ]


def ask_again(service: Service, cases: list[str]) -> None:
    """Let an adjudication of each case be asked for."""
    with service.context.database.write() as session:
        policy = current_policy(session)
        for case_id in map(UUID, cases):
            case = session.get_one(Case, case_id)
            session.add(new_request(case, policy, None, "adjudication", 9, utc_now()))
            case.waiting = True
        session.flush()
        keys = service.context.keys.audit
        events.record_event(session, keys, actor="test", action="test", object_id="cases", cases=[*map(UUID, cases)])


def make_set(service: Service, purpose: str = "training", **fields: Any) -> dict[str, Any]:
    body = {"name": f"a {purpose}", "purpose": purpose, "borderline_share": 0.5} | fields
    answer = service.post("admin", "/v1/practice/sets", json=body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def begin(service: Service, chosen: dict[str, Any], who: str = "anna") -> Any:
    return service.post(who, "/v1/practice/runs", json={"set": chosen["id"]})


def cells_of(service: Service, table: Any = PracticeCell) -> list[str]:
    return sorted(str(case_id) for case_id in service.scalars(select(table.case_id)))


def reply(service: Service, item: dict[str, Any], code: str, who: str = "anna") -> Any:
    return service.post(who, f"/v1/practice/items/{item['id']}/answer", json={"label": code})


def true_code(service: Service, item: dict[str, Any]) -> str:
    """What all of the others said of a cell."""
    found = select(Label.class_code).join(PracticeItem, PracticeItem.case_id == Label.case_id)
    return str(service.one(found.where(PracticeItem.id == UUID(item["id"])).limit(1)))


def decide(service: Service, kind: str, name: str = "anna", reason: str = "seen them read") -> Any:
    body = {"kind": kind, "reason": reason}
    return service.post("admin", f"/v1/practice/annotators/{name}/decisions", json=body)


def finish(service: Service, run: dict[str, Any], *, wrong: bool = False, who: str = "anna") -> dict[str, Any]:
    """Answer every cell of a run, as the others did or as none of them did."""
    codes = classes_of(service)
    while run["item"] is not None:
        right = true_code(service, run["item"])
        code = codes[5] if wrong else right
        answer = reply(service, run["item"], code, who)
        assert answer.status_code == 201, answer.text
        run = answer.json()["run"]
    return run


def test_a_set_has_settled_cells_only_and_none_of_the_other_purpose(service: Service) -> None:
    set_policy(service, **ONCE)
    settled = settle(service, 6)
    store(service, "two labels", cell_png(10), {"outside 1": 0, "outside 2": 0})
    service.add_case("waiting", cell_png(11))
    twin = store(service, "twin of a case that waits", cell_png(11), dict.fromkeys(THREE, 0))
    made = make_set(service, n_cells=4)
    assert made["n_cells"] == 4
    assert made["report"]["n_candidates"] == 6
    training = set(cells_of(service))
    assert training < set(settled)
    test = make_set(service, "qualification", n_cells=50, n_per_run=2)
    assert test["report"]["n_candidates"] == 2
    assert set(cells_of(service)) == set(settled)
    assert twin not in cells_of(service)
    again = {"name": "another", "purpose": "qualification", "n_cells": 50, "n_per_run": 40}
    assert service.post("admin", "/v1/practice/sets", json=again).status_code == 409
    assert service.post("admin", "/v1/practice/sets", json=again | {"name": "a training"}).status_code == 409


def test_training_says_how_others_answered_after_the_answer_and_not_before(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 4)
    made = make_set(service)
    run = begin(service, made).json()
    assert (run["n_cells"], run["n_answered"], run["result"]) == (4, 0, None)
    item, codes = run["item"], classes_of(service)
    assert set(item) == {"id", "image", "position", "classes"}
    shown = service.get("anna", f"/v1/practice/items/{item['id']}").json()
    assert (shown["label"], shown["feedback"]) == (None, None)
    assert service.get("anna", item["image"]).headers["content-type"] == "image/png"
    right = true_code(service, item)
    answered = reply(service, item, codes[5]).json()
    assert answered["feedback"]["label_counts"][right] == 3
    assert answered["feedback"]["sentences"][0].startswith("3 of 3 chose ")
    assert answered["feedback"]["sentences"][0].endswith("as none of them did.")
    assert service.get("anna", f"/v1/practice/items/{item['id']}").json()["feedback"] == answered["feedback"]
    assert reply(service, item, right).status_code == 409
    assert reply(service, item, codes[5]).json()["feedback"] == answered["feedback"]
    assert reply(service, answered["run"]["item"], "nonsense").status_code == 422
    done = finish(service, answered["run"])
    assert (done["state"], done["n_answered"], done["result"]) == ("finished", 4, None)
    once_more = begin(service, made).json()
    assert once_more["id"] != done["id"]
    assert begin(service, made).json()["id"] == once_more["id"]


def test_a_qualification_tells_nothing_until_its_end(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 24)
    made = make_set(service, "qualification", n_cells=24, n_per_run=12)
    assert made["report"]["pass_rates"]["guessing"] <= 0.1
    run = begin(service, made).json()
    right = reply(service, run["item"], true_code(service, run["item"])).json()
    assert right["feedback"] is None
    assert service.get("anna", f"/v1/practice/items/{right['item']}").status_code == 404
    assert service.get("anna", f"/v1/practice/items/{right['item']}/image").status_code == 404
    wrong = reply(service, right["run"]["item"], classes_of(service)[5]).json()
    assert set(wrong) == set(right)
    assert wrong["run"] | {"item": 0, "n_answered": 0} == right["run"] | {"item": 0, "n_answered": 0}
    assert service.scalars(select(Exposure)) == []
    result = finish(service, wrong["run"])["result"]
    assert result["n"] == 12
    assert result["low"] <= result["difference"] <= result["high"]


def test_cells_of_a_run_come_in_no_read_and_cells_that_were_read_in_no_run(service: Service) -> None:
    set_policy(service, **ONCE)
    cases = settle(service, 5)
    made = make_set(service)
    read = store(service, "read by anna", cell_png(9), {"outside 1": 0, "outside 2": 0})
    assert read not in cells_of(service)
    assert begin(service, made).status_code == 201
    assert cells_of(service, PracticeItem) == sorted(cases)
    ask_again(service, [*cases, read])
    service.add_case("a twin of a cell", cell_png(0))
    given = []
    while (leased := lease(service, "anna")) is not None:
        given.append(service.case_of("anna", leased["case_id"]))
        commit(service, "anna", leased, classes_of(service)[0])
    assert given == [read]
    assert lease(service, "ben") is not None  # others are given them


def test_what_somebody_is_to_read_or_has_read_is_not_dealt(service: Service) -> None:
    set_policy(service, **ONCE | {"threshold": 0.0})  # everything is read twice
    cases = [store(service, f"case {number}", cell_png(number), dict.fromkeys(THREE, 0)) for number in range(4)]
    made = make_set(service)
    ask_again(service, cases[:1])
    run = begin(service, made).json()
    assert run["n_cells"] == 3
    assert cases[0] not in cells_of(service, PracticeItem)
    leased = read_next(service, "ben")
    assert service.case_of("ben", leased["case_id"]) == cases[0]
    commit(service, "ben", leased, classes_of(service)[0])
    service.make_labels_final()
    assert begin(service, made, "ben").json()["n_cells"] == 3


def everything(service: Service, out: Path) -> list[Any]:
    """What is computed of cases and shown to those who manage reads, exported, and read by fits."""
    paths = [f"/v1/{what}?partition=all" for what in ("metrics", "agreement")]
    paths += ["/v1/worklist", "/v1/cases", "/v1/reader-models", "/v1/policies"]
    items = service.get("admin", "/v1/cases").json()["items"]
    paths += [f"/v1/cases/{case['id']}{what}" for case in items for what in ("", "/posterior", "/labels?history=true")]
    with service.context.database.read() as session, np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        labels = [(row.id, row.class_code, row.blind) for row in session.execute(select(Label)).scalars()]
        requests = [(row.id, row.state) for row in session.execute(select(ReadRequest)).scalars()]
        export_dataset(session, service.context, out, "all", images=False)
        material = read_recalibration_inputs(session, service.context)
        read = [repr(getattr(material, field.name)) for field in fields(material) if field.name != "parent"]
        fits = [re.sub(r"=\d{10}\.\d+, outside", "", text) for text in read]  # when it was asked
    files = [(out / name).read_bytes() for name in ("labels.csv", "predictions.csv", "classes.csv")]
    documents = [re.sub(r'"computed_at":"[^"]*"', "", service.get("admin", path).text) for path in paths]
    return [labels, requests, *files, *fits, *documents]


@pytest.mark.slow
def test_nothing_follows_from_practice(service: Service, tmp_path: Path) -> None:
    """Metrics with drift and agreement, posteriors, exports, and what recalibrations and models of annotators read."""
    set_policy(service, **ONCE)
    settle(service, 12)
    service.add_case("anna reads", cell_png(30))
    answer_next(service, "anna", classes_of(service)[0])
    service.make_labels_final()
    before = everything(service, tmp_path / "before")
    for purpose, wrong in (("training", True), ("qualification", False)):
        made = make_set(service, purpose, n_cells=6, n_per_run=6)
        finish(service, begin(service, made).json(), wrong=wrong)
    for number, (one, another) in enumerate(zip(before, everything(service, tmp_path / "after"), strict=True)):
        assert one == another, number
    assert len(service.rows(select(PracticeAnswer))) == 12


def test_practice_says_nothing_of_a_case_still_to_be_read(service: Service) -> None:
    """Ben reads, declines and holds cases that anna may be asked to read, and what she sees of practice stays."""
    set_policy(service, **ONCE | {"threshold": 0.0})
    settle(service, 6)
    made = make_set(service)
    run = begin(service, made).json()
    answered = reply(service, run["item"], classes_of(service)[0]).json()["item"]
    for number in range(3):
        service.add_case(f"open {number}", cell_png(20 + number))

    def seen() -> list[str]:
        paths = ("", f"/runs/{run['id']}", f"/items/{answered}", f"/items/{answered}/image")
        return [service.get("anna", f"/v1/practice{path}").text for path in paths]

    before, codes = seen(), classes_of(service)
    for number in range(3):
        read = read_next(service, "ben")
        if number == 1:
            service.post("ben", f"/v1/reads/{read['id']}/decline", json={"reason": "image_quality"})
        elif number == 0:
            assert commit(service, "ben", read, codes[number]).status_code == 201
            service.make_labels_final()
    assert seen() == before
    waiting = select(ReadRequest.case_id).where(ReadRequest.state.in_(("open", "leased")))
    assert not set(service.scalars(waiting)) & set(service.scalars(select(PracticeCell.case_id)))


def test_runs_are_of_their_annotator_alone_and_managers_do_not_practise(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 4)
    made = make_set(service)
    run = begin(service, made).json()
    item = run["item"]["id"]
    for path in (f"runs/{run['id']}", f"items/{item}", f"items/{item}/image"):
        assert service.get("ben", f"/v1/practice/{path}").status_code == 404
        assert service.get("admin", f"/v1/practice/{path}").status_code == 403
    assert reply(service, run["item"], classes_of(service)[0], "ben").status_code == 404
    later = service.one(select(PracticeItem).where(PracticeItem.position == 1)).id
    for path in (f"items/{later}", f"items/{later}/image"):
        assert service.get("anna", f"/v1/practice/{path}").status_code == 404
    assert reply(service, {"id": str(later)}, classes_of(service)[0]).status_code == 404
    for path in ("sets", "annotators"):
        assert service.get("anna", f"/v1/practice/{path}").status_code == 403
    assert service.post("admin", f"/v1/practice/sets/{made['id']}/retirement").json()["retired_at"]
    assert begin(service, made).status_code == 201  # the run that is open may end
    assert begin(service, made, "ben").status_code == 409


def test_a_policy_that_shows_cases_to_nobody_has_no_training(service: Service) -> None:
    set_policy(service, **ONCE | {"reveal": "never"})
    settle(service, 4)
    wanted = {"name": "any", "purpose": "training"}
    assert service.post("admin", "/v1/practice/sets", json=wanted).status_code == 409
    assert make_set(service, "qualification", n_per_run=2)["n_cells"] == 4


def test_a_cell_that_is_read_again_meanwhile_says_nothing(service: Service) -> None:
    set_policy(service, **ONCE)
    cases = settle(service, 3)
    run = begin(service, make_set(service)).json()
    ask_again(service, cases)
    answered = reply(service, run["item"], classes_of(service)[0]).json()
    assert answered["feedback"]["label_counts"] is answered["feedback"]["class_probs"] is None
    assert service.scalars(select(Exposure)) == []


def test_erasing_a_patient_takes_their_cells_out(service: Service) -> None:
    set_policy(service, **ONCE)
    store(service, "theirs", cell_png(20), dict.fromkeys(THREE, 0), patient="p")
    settle(service, 3)
    made = make_set(service)
    run = begin(service, made).json()
    answers = reply(service, run["item"], classes_of(service)[0]).json()
    with service.context.database.write() as session:
        erase_patient_rows(session, service.context, "lead", ErasureTarget("p"), "asked for")
    assert service.get("admin", "/v1/practice/sets").json()["items"][0]["n_cells"] == 3
    done = finish(service, service.get("anna", f"/v1/practice/runs/{run['id']}").json())
    assert answers["run"]["n_cells"] == 4
    assert done["item"] is None
    assert begin(service, made).json()["n_cells"] == 3


def test_a_set_has_a_name_that_can_be_seen(service: Service) -> None:
    """A button of spaces leads nobody anywhere."""
    for name in ("", "   "):
        refused = service.post("admin", "/v1/practice/sets", json={"name": name, "purpose": "training"})
        assert refused.status_code == 422, name


@pytest.mark.slow
@pytest.mark.ci
def test_new_annotators_read_once_they_are_qualified(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 24)
    service.add_case("ben reads", cell_png(30))
    answer_next(service, "ben", classes_of(service)[0])
    set_policy(service, **ONCE, require_qualification=True)
    service.add_case("to read", cell_png(31))
    assert lease(service, "ben") is not None  # labels from before count
    refused = service.post("anna", "/v1/reads")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:secondread:problem:not-qualified")
    assert "/practice" in refused.json()["detail"]
    cookie = first_password(service, "anna")
    page = service.client.get("/worklist", headers=cookie | {"Accept": "text/html"})
    assert "You need a qualification" in page.text
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
    assert "already seen most cells" in begin(service, made).json()["detail"]  # two are left


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
    drawn = select(Annotator.name).join(ReadRequest, ReadRequest.annotator_id == Annotator.id)
    assert set(service.scalars(drawn)) == {"ben"}
    decide(service, "qualified", "anna")
    decide(service, "withdrawn", "ben")
    assert reassign_open_requests(service.context) == 6
    assert set(service.scalars(drawn)) == {"anna"}


def test_many_trainings_do_not_hide_an_attempt(service: Service) -> None:
    set_policy(service, **ONCE)
    settle(service, 12)
    training = make_set(service, n_cells=2)
    test = make_set(service, "qualification", n_cells=10, n_per_run=8)
    finish(service, begin(service, test).json(), wrong=True)
    who = {"annotator_id": service.one(select(PracticeRun.annotator_id)), "state": "finished"}
    with service.context.database.write() as session:
        session.add_all(PracticeRun(set_id=UUID(training["id"]), finished_at=utc_now(), **who) for _ in range(120))
    service.written_past = True
    assert "possible from" in begin(service, test).json()["detail"]
