"""Requests, leases, declines, revisions, the reveal: over HTTP, on both databases."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.database.tables import Annotator, Case, Label, Read, ReadRequest
from app.labels import queries
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

pytestmark = pytest.mark.both_databases


def requests_of(service: Service, case_id: str) -> list[ReadRequest]:
    found = select(ReadRequest).where(ReadRequest.case_id == UUID(case_id))
    return service.scalars(found.order_by(ReadRequest.ordinal))


def set_policy(service: Service, **fields: Any) -> dict[str, Any]:
    body = {"rule": "disagreement", "threshold": 0.2, "adjudicate_below": None, "reveal": "after_commit"}
    response = service.post("admin", "/v1/policies", json=body | {"repeat_rate": 0, "reason": "test"} | fields)
    assert response.status_code == 201, response.text
    return dict(response.json())


def twice(service: Service, **fields: Any) -> list[str]:
    """From now on every case is planned twice, and shown once both reads are in; gives the codes of the classes."""
    set_policy(service, **{"threshold": 0.0, "reveal": "after_case_closed"} | fields)
    return classes_of(service)


def all_twice(service: Service) -> None:
    """From now on every case is planned to be read twice, by triage."""
    set_policy(service, threshold=0.0)


def all_once(service: Service) -> None:
    """From now on familiar cells are planned to be read once."""
    set_policy(service, threshold=0.99, audit_rate=1e-9)


def lease(service: Service, who: str) -> dict[str, Any] | None:
    response = service.post(who, "/v1/reads")
    assert response.status_code in {201, 204}, response.text
    return dict(response.json()) if response.status_code == 201 else None


def read_next(service: Service, who: str) -> dict[str, Any]:
    read = lease(service, who)
    assert read is not None
    return read


def commit(service: Service, who: str, read: dict[str, Any], code: str, **fields: Any) -> Any:
    return service.post(who, f"/v1/reads/{read['id']}/labels", json={"label": code, **fields})


def answer_next(service: Service, who: str, code: str, **fields: Any) -> dict[str, Any]:
    answer = commit(service, who, read_next(service, who), code, **fields)
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def classes_of(service: Service) -> list[str]:
    return [info["code"] for info in service.document("/v1/releases")["items"][0]["classes"]]


def answer_all(service: Service, who: str, codes: list[str]) -> int:
    """Answer whatever an annotator is given, by one class after another; gives how often."""
    n = 0
    while (read := lease(service, who)) is not None:
        assert commit(service, who, read, codes[n % len(codes)]).status_code == 201
        n += 1
    service.make_labels_final()
    return n


def expire_all(service: Service) -> None:
    past = datetime.now(UTC) - timedelta(hours=1)
    with service.context.database.write() as session:
        session.execute(update(ReadRequest).where(ReadRequest.state == "leased").values(lease_expires_at=past))
        session.execute(update(Read).where(Read.state == "leased").values(expires_at=past))


def test_lease_label_reveal(service: Service) -> None:
    all_once(service)
    case = service.add_case()
    read = read_next(service, "anna")
    assert read["case_id"] == service.known_as("anna", case["id"])
    assert service.get("anna", f"/v1/cases/{case['id']}").status_code == 403
    answer = commit(service, "anna", read, classes_of(service)[0], confidence=0.5, note="clear")
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert body["posterior"]["n_labels"] == 1
    assert (body["label"]["blind"], body["label"]["round"]) == (True, "planned")
    assert body["label"]["reading_seconds"] >= 0
    assert service.document(f"/v1/cases/{case['id']}", "anna")["prediction"] == case["prediction"]
    request = requests_of(service, case["id"])[0]
    assert (request.state, str(request.label_id)) == ("answered", body["label"]["id"])
    assert commit(service, "anna", read, classes_of(service)[0]).json()["type"].endswith("lease-lost")


def test_a_case_goes_to_two_different_annotators_and_to_nobody_twice(service: Service) -> None:
    all_twice(service)
    case = service.add_case()
    reads = [lease(service, "anna"), lease(service, "ben")]
    handles = [service.known_as(who, case["id"]) for who in ("anna", "ben")]
    assert [read and read["case_id"] for read in reads] == handles
    assert [lease(service, who) for who in ("anna", "ben")] == [None, None]
    for who, read in zip(("anna", "ben"), reads, strict=True):
        assert read is not None
        assert commit(service, who, read, classes_of(service)[1]).status_code == 201
    assert [lease(service, who) for who in ("anna", "ben")] == [None, None]
    assert [r.arm for r in requests_of(service, case["id"])] == ["first", "triage"]


def test_a_retried_lease_gives_the_same_read_and_an_empty_answer_keeps_the_key_free(service: Service) -> None:
    assert service.post("anna", "/v1/reads", "k").status_code == 204
    service.add_case()
    first, again = (service.post("anna", "/v1/reads", "k") for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert service.get("anna", "/v1/reads").json()["items"] == [first.json()]


def test_release_decline_and_expiry(service: Service) -> None:
    all_once(service)
    case = service.add_case()
    read = read_next(service, "anna")
    assert service.call("anna", "DELETE", f"/v1/reads/{read['id']}").status_code == 204
    read = read_next(service, "anna")  # a released case may come back
    longer = service.call("anna", "PATCH", f"/v1/reads/{read['id']}").json()
    assert longer["expires_at"] >= read["expires_at"]
    declined = service.post("anna", f"/v1/reads/{read['id']}/decline", json={"reason": "know_this_case"})
    assert (declined.status_code, declined.json()["state"]) == (200, "declined")
    assert lease(service, "anna") is None  # a declined one may not
    read = read_next(service, "ben")
    expire_all(service)
    assert lease(service, "anna") is None
    again = read_next(service, "ben")
    assert again["id"] != read["id"]
    assert commit(service, "ben", read, classes_of(service)[0]).status_code == 201  # by the read that they have now
    assert commit(service, "ben", again, classes_of(service)[0]).json()["type"].endswith("lease-lost")
    assert requests_of(service, case["id"])[0].state == "answered"


def test_a_lease_that_ran_out_still_takes_the_label_while_nobody_else_has_the_case(service: Service) -> None:
    all_once(service)
    service.add_case()
    read = read_next(service, "anna")
    expire_all(service)
    swept_by = read_next(service, "ben")
    assert service.call("ben", "DELETE", f"/v1/reads/{swept_by['id']}").status_code == 204
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    assert (label["late"], label["round"], label["blind"]) == (False, "planned", True)
    service.add_case("case-2", cell_png(2))
    mine = read_next(service, "anna")
    expire_all(service)
    assert commit(service, "anna", mine, classes_of(service)[0]).json()["label"]["late"] is False


def test_cannot_tell_closes_the_request_and_enters_no_count(service: Service) -> None:
    all_once(service)
    case = service.add_case()
    read = read_next(service, "anna")
    body = {"reason": "cannot_tell", "note": "out of focus"}
    assert service.post("anna", f"/v1/reads/{read['id']}/decline", json=body).status_code == 200
    assert requests_of(service, case["id"])[0].state == "closed"
    assert lease(service, "ben") is None
    assert service.document(f"/v1/cases/{case['id']}/posterior")["n_labels"] == 0


def read_of_anybody(session: Session, _: UUID, read_id: UUID) -> tuple[Read, Annotator]:
    statement = select(Read, Annotator).join(Annotator, Annotator.id == Read.annotator_id).where(Read.id == read_id)
    return tuple(session.execute(statement).one())


@undone("T10", "a label enters only through a read that its person has leased", queries, "own_read", read_of_anybody)
def test_reads_of_others_are_not_there(service: Service) -> None:
    service.add_case()
    read = read_next(service, "anna")
    missing = service.get("ben", f"/v1/reads/{UUID(int=7)}").json()
    for method in ("GET", "PATCH", "DELETE"):
        answer = service.call("ben", method, f"/v1/reads/{read['id']}")
        assert (answer.status_code, answer.json()) == (404, missing)
    assert commit(service, "ben", read, classes_of(service)[0]).json() == missing


def test_the_coin_is_tossed_once_and_a_second_read_never_unplanned(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=0.5)
    cases = [case["id"] for case in service.add_cases(12)]
    rows = {str(c.id): (c.u, c.pi) for c in service.scalars(select(Case))}
    for case in cases:
        u, pi = rows[case]
        arms = [r.arm for r in requests_of(service, case)]
        if pi == 1:  # unlike the training cells
            assert arms == ["first", "triage"]
        else:
            assert (pi, arms) == (0.5, ["first", "audit"] if u < 0.5 else ["first"])
    assert len({len(requests_of(service, case)) for case in cases}) == 2


def test_a_change_of_mind_after_the_reveal_is_tagged_and_the_blind_opinion_stands(service: Service) -> None:
    case = service.add_case()
    codes = classes_of(service)
    first = commit(service, "anna", read_next(service, "anna"), codes[0]).json()["label"]
    path = f"/v1/labels/{first['id']}/revisions"
    assert service.post("ben", path, json={"label": codes[1], "reason": "x"}).status_code == 404
    changed = service.post("anna", path, json={"label": codes[1], "reason": "the model is right"}).json()
    assert (changed["label"]["post_reveal"], changed["label"]["blind"]) == (True, False)
    assert changed["label"]["supersedes"] == first["id"]
    assert (changed["posterior"]["n_labels"], changed["posterior"]["label_counts"][codes[0]]) == (1, 1)
    again = service.post("anna", path, json={"label": codes[2], "reason": "x"})
    assert (again.status_code, again.json()["type"]) == (409, "urn:secondread:problem:superseded")
    labels = f"/v1/cases/{case['id']}/labels"
    assert [row["kind"] for row in service.document(labels, history=True)["items"]] == ["label", "revision"]
    assert [row["label"] for row in service.document(labels)["items"]] == [codes[1]]


@pytest.mark.slow
@pytest.mark.ci
def test_a_correction_before_any_reveal_stays_blind(service: Service) -> None:
    set_policy(service, reveal="never")
    case = service.add_case()
    codes = classes_of(service)
    first = commit(service, "anna", read_next(service, "anna"), codes[0]).json()["label"]
    path = f"/v1/labels/{first['id']}/revisions"
    changed = service.post("anna", path, json={"label": codes[1], "reason": "wrong key"}).json()["label"]
    assert (changed["post_reveal"], changed["blind"]) == (False, True)
    service.make_labels_final()
    counts = service.document(f"/v1/cases/{case['id']}/posterior")["label_counts"]
    assert {code for code, count in counts.items() if count} == {codes[1]}


def test_retraction_and_labelling_again_extend_one_chain(service: Service) -> None:
    case = service.add_case()
    codes = classes_of(service)
    label = service.outside_label(case["id"], "r1", codes[0])["label"]
    for path, more in (("revisions", {"label": codes[1]}), ("retraction", {})):
        refused = service.post("outside", f"/v1/labels/{label['id']}/{path}", json=more | {"reason": " "})
        assert refused.status_code == 422
    gone = service.post("outside", f"/v1/labels/{label['id']}/retraction", json={"reason": "wrong patient"})
    assert (gone.status_code, gone.json()["posterior"]["n_labels"]) == (201, 0)
    assert gone.json()["label"]["label"] is None
    twice = service.post("outside", f"/v1/labels/{gone.json()['label']['id']}/retraction", json={"reason": "x"})
    assert twice.status_code == 409
    again = service.outside_label(case["id"], "r1", codes[3])
    assert (again["label"]["kind"], again["posterior"]["n_labels"]) == ("revision", 1)
    chain = service.scalars(select(Label).order_by(Label.position))
    assert [row.kind for row in chain] == ["label", "retraction", "revision"]
    assert [row.supersedes_id for row in chain[1:]] == [row.id for row in chain[:2]]


def test_labelling_again_after_a_retraction_takes_no_read_that_is_wanted_of_somebody_else(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="never")
    case, codes = service.add_case(), classes_of(service)
    first = commit(service, "anna", read_next(service, "anna"), codes[0]).json()["label"]
    gone = service.post("anna", f"/v1/labels/{first['id']}/retraction", json={"reason": "slip"}).json()["label"]
    assert service.label("anna", case["id"], codes[1]).status_code == 403
    path = f"/v1/labels/{gone['id']}/revisions"
    again = service.post("anna", path, json={"label": codes[1], "reason": "looked again"}).json()["label"]
    assert (again["kind"], again["round"], again["blind"]) == ("revision", None, True)
    assert sorted(r.state for r in requests_of(service, case["id"])) == ["answered", "open"]
    answer_next(service, "ben", codes[0])
    service.make_labels_final()
    assert service.document("/v1/metrics", partition="all")["n_labels"] == 2


def test_labels_that_leave_a_case_undecided_prompt_an_adjudication_that_plans_nothing(service: Service) -> None:
    set_policy(service, threshold=0.0, adjudicate_below=0.999999)
    case = service.add_case()
    codes = classes_of(service)
    for who, code in (("anna", codes[0]), ("ben", codes[1])):
        answer_next(service, who, code)
    rounds = [(r.round, r.arm, r.state) for r in requests_of(service, case["id"])]
    assert rounds[:2] == [("planned", "first", "answered"), ("planned", "triage", "answered")]
    assert rounds[2:] == [("adjudication", "adjudication", "open")]
    third = service.label("outside", case["id"], codes[0], annotator="r3", blind=True, round="adjudication").json()
    assert (third["label"]["round"], third["posterior"]["n_labels"]) == ("adjudication", 3)
    assert service.document("/v1/metrics", partition="all")["n_labels"] == 2


def test_an_adjudication_asked_under_a_newer_policy_decides_what_its_label_reveals(service: Service) -> None:
    """The answer to the label that calls for it says what the next look at the case says, too."""
    set_policy(service, threshold=0.0, adjudicate_below=0.999999, reveal="after_commit")
    case = service.add_case()
    set_policy(service, threshold=0.0, adjudicate_below=0.999999, reveal="never")
    for who, code in zip(("anna", "ben"), classes_of(service)[:2], strict=True):
        answer = commit(service, who, read_next(service, who), code)
        assert answer.status_code == 201
    assert [request.arm for request in requests_of(service, case["id"])] == ["first", "triage", "adjudication"]
    assert (answer.json()["posterior"], answer.json()["hidden_because"]) == (None, "never")
    assert service.get("ben", f"/v1/cases/{case['id']}").status_code == 403


def test_worklist_orders_by_need_and_says_why(service: Service) -> None:
    cases = [service.add_case(f"case-{i}", cell_png(i), patient=f"p{i}") for i in range(5)]
    twin = service.add_case("case-5", cell_png(3), patient="p3")
    pages = list(service.items("/v1/worklist", limit=2))
    needs = [item["need"] for item in pages[:-1]]
    assert needs == sorted(needs, reverse=True)
    assert [item["near_duplicate"] for item in pages] == [False] * 5 + [True]
    assert {item["case"]["id"] for item in pages} == {case["id"] for case in [*cases, twin]}
    assert all(item["requests"][0]["arm"] == "first" for item in pages)
    assert service.get("anna", "/v1/worklist").status_code == 403
    assert service.get("viewer", "/v1/worklist", params={"cursor": "zzz"}).status_code == 422


def test_filters_of_the_case_list(service: Service) -> None:
    service.add_case("a", cell_png(1), patient="p1", site="north")
    service.add_case("b", cell_png(2), patient="p2", site="south")
    for params, names in (
        ({"patient": "p1"}, ["a"]), ({"site": "south"}, ["b"]), ({"external_id": "a"}, ["a"]), ({}, ["b", "a"]),
        ({"until": "2000-01-01T00:00:00Z"}, []), ({"since": "2000-01-01T00:00:00Z"}, ["b", "a"]),
    ):  # fmt: skip
        found = service.document("/v1/cases", **params)["items"]
        assert [item["external_id"] for item in found] == names, params


def test_policies_are_versions_and_audited(service: Service) -> None:
    assert [p["version"] for p in service.document("/v1/policies")["items"]] == [1]
    made = set_policy(service, threshold=0.3, reason="fewer second reads")
    assert (made["version"], made["current"]) == (2, True)
    same = {"rule": "disagreement", "threshold": 0.3, "adjudicate_below": None, "reveal": "after_commit", "reason": "x"}
    assert service.post("admin", "/v1/policies", json=same | {"repeat_rate": 0}).status_code == 409
    for wrong in (
        {"rule": "capacity"},
        {"rule": "disagreement"},
        {"threshold": 2},
        {"threshold": 0.1, "audit_rate": 0},
    ):
        assert service.post("admin", "/v1/policies", json={"reason": "x", **wrong}).status_code == 422
    assert "0.30" in service.add_case()["prediction"]["triage"]["reason"]
