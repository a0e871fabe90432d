"""Nothing that an annotator is sent tells the model, the arm, or the age of a case, until the policy shows the case."""

import asyncio
import json
import re
import uuid
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from app.cases import blindness
from app.cases.queries import NamedLabel
from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.database.tables import Alias, Annotator, Exposure, Label, PolicyRow, ReadRequest
from app.http import middleware
from app.http.routing import walk_routes
from app.labels.posterior import reassign_open_requests
from app.metrics.queries import blind_labels
from app.triage.planning import random_queue_place
from app.triage.schemas import PolicyIn
from tests.app.test_drawn_annotators import READERS, asked_of, drawing
from tests.app.test_leases import (
    all_twice,
    answer_next,
    classes_of,
    commit,
    lease,
    read_next,
    requests_of,
    set_policy,
    twice,
)
from tests.app.test_people import first_password
from tests.app.test_races import add_prediction_of_another_release
from tests.security.test_blind_by_image import show
from tests.security.test_hidden_repeats import own_day
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png, raising

#: What is the same for every installation, examples with probabilities included.
FOR_EVERYBODY = {"/v1/docs", "/openapi.json"}


@pytest.mark.slow
@pytest.mark.ci
@undone("T20", "nothing is shown before the own label", blindness, "has_committed", lambda *_: True)
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("by_browser", [False, True])
def test_no_route_shows_the_prediction_before_the_commit(service: Service, by_browser: bool) -> None:
    all_twice(service)
    case = service.add_case("monocyte-says-the-file", cell_png(4), patient="p", site="s")
    codes = classes_of(service)
    other = answer_next(service, "ben", codes[0], note="ben-was-here")  # somebody else has committed already
    mine = read_next(service, "anna")
    assert mine["case_id"] == service.known_as("anna", case["id"])
    prediction = case["prediction"]
    secrets = {prediction["release"], "monocyte-says", "ben-was-here", "second_read", "triage", "audit", "answer_set"}
    secrets |= {json.dumps(p) for p in prediction["class_probs"].values()}
    secrets |= {f"{p:.3f}" for p in prediction["class_probs"].values()} - {"0.000", "0.001"}
    secrets |= {f"{prediction['disagreement_prob']:.3f}", json.dumps(prediction["disagreement_prob"])}
    ids = {"case_id": case["id"], "read_id": mine["id"], "label_id": other["label"]["id"], "name": "champion"}
    ids |= {"release_id": prediction["release"]}
    headers = {"Accept": "*/*", "Idempotency-Key": "walk"}
    if by_browser:
        headers |= first_password(service, "anna") | {"Accept": "text/html"}
    else:
        headers["Authorization"] = f"Bearer {service.keys['anna']}"
    walked = 0
    for route in walk_routes(service.client.app):  # type: ignore[arg-type]
        path = re.sub(r"{(\w+)}", lambda found: ids.get(found[1], case["id"]), route.path)
        for method in sorted((route.methods or set()) - {"DELETE"}):
            if ("{read_id}" in route.path and method == "POST") or path in {"/logout", "/metrics", *FOR_EVERYBODY}:
                continue  # these end the read, or hold nothing of this service
            sent: dict[str, Any] = {"json": {}} if method in {"POST", "PUT", "PATCH"} else {}
            answer = service.client.request(method, path, headers=headers, follow_redirects=False, **sent)
            said = answer.text.replace(path, "")  # a page of a refusal names what was asked for
            _holds_nothing(secrets, f"{method} {path}", said + str(dict(answer.headers)))
            walked += 1
    assert walked > 40
    exposed = service.metrics()
    assert case["id"] not in exposed
    assert service.post("anna", f"/v1/reads/{mine['id']}/labels", json={"label": codes[1]}).status_code == 201
    shown = service.get("anna", f"/v1/cases/{case['id']}").json()
    assert shown["prediction"] == prediction  # and afterwards everything


def _holds_nothing(secrets: set[str], where: str, text: str) -> None:
    # digits of a time are no probability
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+", "", text)
    for secret in secrets:
        assert secret not in text, (where, secret)


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_order_of_reading_is_each_annotators_own_and_not_that_of_need(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1.0)
    cases = {case["id"]: case for case in (service.add_case(f"c{i}", cell_png(i)) for i in range(10))}
    orders = {}
    for who in ("anna", "ben"):
        orders[who] = []
        while (read := lease(service, who)) is not None:
            orders[who].append(service.case_of(who, read["case_id"]))
            declined = service.post(who, f"/v1/reads/{read['id']}/decline", json={"reason": "other"})
            assert declined.status_code == 200
    assert sorted(orders["anna"]) == sorted(orders["ben"]) == sorted(cases)
    assert orders["anna"] != orders["ben"]
    needs = [cases[case_id]["prediction"]["disagreement_prob"] for case_id in orders["anna"]]
    assert needs != sorted(needs)
    assert needs != sorted(needs, reverse=True)


ARMS: dict[str, dict[str, Any]] = {
    "one read": {"threshold": 0.99, "audit_rate": 1e-9},
    "triage": {"threshold": 0.0, "audit_rate": 0.1},
    "audit": {"threshold": 0.99, "audit_rate": 0.999999},
}


def test_a_new_database_shows_a_case_once_it_is_closed(database_url: str) -> None:
    database = Database(database_url)
    upgrade_schema(database.engine)
    with database.read() as session:
        assert session.execute(select(PolicyRow.reveal)).scalar_one() == "after_case_closed"
    assert PolicyIn(threshold=0.2, reason="x").reveal == "after_case_closed"
    database.engine.dispose()


def answered(service: Service, name: str, number: int, reveal: str) -> tuple[dict[str, Any], str, int]:
    """What anna gets back for a label of a case of an arm, what the case says then, and how often it is to be read."""
    set_policy(service, **ARMS[name], reveal=reveal)
    case = service.add_case(name, cell_png(number))
    body = answer_next(service, "anna", classes_of(service)[0])
    shown = service.get("anna", f"/v1/cases/{case['id']}")
    return body, f"{shown.status_code} {shown.json().get('detail')}", len(requests_of(service, case["id"]))


@pytest.mark.parametrize("reveal", ["after_case_closed", "after_commit", "never"])
def test_the_answer_to_a_label_does_not_tell_the_arm(service: Service, reveal: str) -> None:
    answers, pages, planned = [], [], []
    for number, name in enumerate(ARMS):
        body, page, n_planned = answered(service, name, number, reveal)
        answers.append((body["hidden_because"], body["posterior"] is None))
        pages.append(page)
        planned.append(n_planned)
    assert planned == [1, 2, 2]
    assert len(set(answers)) == 1
    assert len(set(pages)) == 1
    assert answers[0][1] is (reveal != "after_commit")


@pytest.mark.parametrize(("reveal", "blind"), [("after_case_closed", False), ("never", True)])
def test_a_change_of_mind_once_the_arm_can_be_told_is_not_blind(service: Service, reveal: str, blind: bool) -> None:
    """A final label of a case that stays hidden is of one that somebody else is still to read."""
    body, _, _ = answered(service, "audit", 0, reveal)
    codes, label = classes_of(service), body["label"]
    assert service.make_labels_final() == 1
    change = {"label": codes[1], "reason": "another look"}
    changed = service.post("anna", f"/v1/labels/{label['id']}/revisions", json=change).json()["label"]
    assert changed["blind"] is blind
    case_id = UUID(service.case_of("anna", label["case_id"]))
    counted = [row[2] for row in service.rows(blind_labels()) if row[0] == case_id]
    assert counted == [codes[1] if blind else codes[0]]


def test_after_a_twin_was_shown_nothing_is_corrected_blind(service: Service) -> None:
    set_policy(service, **ARMS["one read"], reveal="after_case_closed")
    service.add_case("first", cell_png(3))
    read = read_next(service, "anna")
    codes = classes_of(service)
    assert commit(service, "anna", read, codes[0]).status_code == 201
    show(service, "anna", service.add_case("second", cell_png(3))["id"])
    answer = service.post("anna", f"/v1/reads/{read['id']}/correction", json={"label": codes[1]})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:secondread:problem:label-final")


_ID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")


def ids_in(text: str) -> set[UUID]:
    return {UUID(found) for found in _ID.findall(text)}


@pytest.mark.parametrize("reveal", ["after_commit", "after_case_closed"])
def test_no_identifier_of_a_case_reaches_an_annotator(service: Service, reveal: str) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal=reveal)
    cases = {UUID(service.add_case(f"case {number}", cell_png(number))["id"]) for number in range(3)}
    cookie = first_password(service, "anna") | {"Accept": "text/html"}
    said = []

    def page(path: str, method: str = "GET", **form: str) -> str:
        answer = service.client.request(method, path, headers=cookie, data=form or None, follow_redirects=False)
        assert answer.status_code < 400, answer.text
        said.append(answer.text + str(dict(answer.headers)))
        return answer.headers.get("location", answer.text)

    page("/worklist")
    page("/reads/upcoming")
    where = page("/reads/next", "POST")
    action = re.search(r'action="(/reads/[^"]+/label)"', page(where))
    assert action is not None
    page(page(action[1], "POST", label=classes_of(service)[0]))
    page("/worklist")
    read = read_next(service, "anna")
    listed = service.get("anna", "/v1/reads").json()["items"]
    assert read in listed
    path = f"/v1/reads/{read['id']}"
    said += [str(read), service.get("anna", path).text, service.call("anna", "PATCH", path).text]
    body = commit(service, "anna", read, classes_of(service)[0]).json()
    assert body["label"]["case_id"] == read["case_id"]
    said.append(str(body))
    for tail in ("", "/labels", "/posterior", "/predictions", "/image"):
        answer = service.get("anna", f"/v1/cases/{read['case_id']}{tail}")
        assert answer.status_code == (200 if reveal == "after_commit" or tail == "/image" else 403), tail
        said.append(str(dict(answer.headers)) + (answer.text if tail != "/image" else ""))
    for text in said:
        assert not ids_in(text) & cases, text
    assert UUID(read["id"]).version != 7  # nor one that tells the order of leases


def test_a_handle_is_its_annotators_own_and_nobody_elses(service: Service) -> None:
    set_policy(service, threshold=0.0)
    case = service.add_case()
    anna, ben = read_next(service, "anna"), read_next(service, "ben")
    assert len({anna["case_id"], ben["case_id"], case["id"]}) == 3
    paths = {who: f"/v1/cases/{read['case_id']}" for who, read in (("anna", anna), ("ben", ben))}
    assert service.get("anna", paths["anna"]).status_code == 403  # blind: known, and not shown
    for who, path in (("ben", paths["anna"]), ("viewer", paths["anna"]), ("anna", paths["ben"])):
        assert service.get(who, path).status_code == 404
        assert service.get(who, f"{path}/image").status_code == 404


@pytest.mark.slow
def test_cases_that_were_read_are_listed_in_the_order_of_reading(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_case_closed")
    for number in range(8):
        service.outside_label(service.add_case(f"case {number}", cell_png(number))["id"], "r", classes_of(service)[0])
    read_in_order = []
    while (read := lease(service, "anna")) is not None:
        read_in_order.append(read["case_id"])
        assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201
    service.make_labels_final()
    cookie = first_password(service, "anna") | {"Accept": "text/html"}
    shown = re.findall(r'href="/cases/([^"]+)"', service.client.get("/settled", headers=cookie).text)
    assert shown == read_in_order[::-1]


def test_all_requests_of_a_case_have_its_place(service: Service) -> None:
    set_policy(service, threshold=0.0, adjudicate_below=0.999999)
    for number in range(3):
        service.add_case(f"case {number}", cell_png(number))
    codes = classes_of(service)
    for place, who in enumerate(("anna", "ben")):
        while (read := lease(service, who)) is not None:
            assert commit(service, who, read, codes[place]).status_code == 201
    rows = service.rows(select(ReadRequest.case_id, ReadRequest.shuffle))
    places: dict[Any, set[int]] = {}
    for case_id, place in rows:
        places.setdefault(case_id, set()).add(place)
    assert len(rows) >= 6
    assert [len(of_case) for of_case in places.values()] == [1, 1, 1]
    assert len(set.union(*places.values())) == 3


def mixed(service: Service, n: int = 12) -> list[str]:
    """Cases of which some are read once and some twice, by annotators who are drawn; gives their identifiers."""
    drawing(service, "cleo", "dora", threshold=0.99, audit_rate=0.5)
    cases = [str(service.add_case(f"case {number}", cell_png(number))["id"]) for number in range(n)]
    assert {len(requests_of(service, case)) for case in cases} == {1, 2}
    return cases


def test_a_queue_is_one_place_per_case_whichever_read_is_asked_and_whatever_others_do(service: Service) -> None:
    """An annotator goes through their own cases by the places of the cases: four at a time, as in one queue for all."""
    cases = mixed(service)
    codes = classes_of(service)
    own = {who: [case for case in cases if who in asked_of(service, case)] for who in READERS}
    for who in READERS:
        left = sorted(random_queue_place(uuid.UUID(case)) for case in own[who])
        assert own_day(service, who).n_waiting == len(left)
        while (read := lease(service, who)) is not None:
            place = random_queue_place(uuid.UUID(service.case_of(who, read["case_id"])))
            assert left.index(place) < 4
            left.remove(place)
            assert own_day(service, who).n_waiting == len(left)
            assert commit(service, who, read, codes[0]).status_code == 201
        assert left == []


def test_nothing_that_others_do_in_time_moves_an_annotators_count_or_next_case(service: Service) -> None:
    """Before, a colleague who leased a case with one read took it from everybody's count."""
    cases = mixed(service)
    codes = classes_of(service)
    for who in READERS[1:]:
        seen = []
        for number in range(3):
            seen.append(own_day(service).n_waiting)
            read = lease(service, who)
            if read is not None and number:
                commit(service, who, read, codes[number])
        assert len(set(seen)) == 1
    assert own_day(service).n_waiting == sum("anna" in asked_of(service, case) for case in cases)


def test_what_a_read_shows_is_the_same_for_the_first_and_the_second(service: Service) -> None:
    """Every answer that an annotator gets, whichever of the case's reads is theirs."""
    mixed(service)
    shapes: dict[tuple[int, str], set[str]] = {}
    for who in READERS:
        while (read := lease(service, who)) is not None:
            case = uuid.UUID(service.case_of(who, read["case_id"]))
            asked = ReadRequest.annotator_id.in_(select(Annotator.id).where(Annotator.name == who))
            mine = service.one(select(ReadRequest).where(ReadRequest.case_id == case, asked))
            answer = commit(service, who, read, classes_of(service)[0])
            document = answer.json()
            for name in ("id", "case_id", "annotator", "reading_seconds", "created_at"):  # of the person
                del document["label"][name]
            said: Any = [sorted(read), read["state"], answer.status_code, document]
            shapes.setdefault((mine.ordinal, mine.arm), set()).add(str(said))
    assert {key[0] for key in shapes} == {1, 2}
    assert len({frozenset(shape) for shape in shapes.values()}) == 1


def test_the_routes_that_tell_who_was_drawn_are_closed_to_annotators(service: Service) -> None:
    mixed(service, 2 + 8)
    for path in ("/v1/worklist", "/v1/policies", "/v1/metrics"):
        assert service.get("anna", path).status_code == 403
    read = next(read for who in READERS if (read := lease(service, who)) is not None)
    assert not {"asked_of", "probability", "ordinal", "arm", "due_at"} & set(read)


def test_all_requests_of_a_case_keep_one_place_after_a_draw_and_another(service: Service) -> None:
    cases = mixed(service)
    who = asked_of(service, cases[0])[0]
    assert who is not None
    read = read_next(service, who)
    service.post(who, f"/v1/reads/{read['id']}/decline", json={"reason": "not_my_field"})
    assert reassign_open_requests(service.context) == 1
    for case in cases:
        places = {(request.due_on, request.shuffle) for request in requests_of(service, case)}
        assert len(places) == 1
    waiting = [own_day(service, name).n_waiting for name in READERS]
    assert sum(waiting) == sum(len(requests_of(service, case)) for case in cases)


PLANNED, NOBODY = "until all planned reads", "never shows this"
#: Policy of a case that anna has answered, what became of its second read, and what then hides the case from her.
HIDDEN: list[tuple[str, dict[str, Any], str | None]] = [
    ("after_commit", {}, None),
    ("after_case_closed", {}, PLANNED),
    ("after_case_closed", {"state": "leased"}, PLANNED),
    ("after_case_closed", {"state": "answered"}, None),
    ("after_case_closed", {"state": "closed"}, None),
    ("after_case_closed", {"round": "adjudication", "arm": "adjudication"}, None),
    ("after_case_closed", {"due_at": datetime(2020, 1, 1, tzinfo=UTC)}, None),
    ("never", {"state": "answered"}, NOBODY),
]


def test_what_is_shown_after_the_commit(service: Service) -> None:
    """The newest policy of a case's requests decides, not the one in force."""
    code = classes_of(service)[0]
    for number, (reveal, changes, hidden) in enumerate(HIDDEN):
        set_policy(service, threshold=number * 1e-9, reveal=reveal)
        case = service.add_case(f"case {number}", cell_png(number))
        path = f"/v1/cases/{case['id']}"
        assert "submit your own label first" in service.get("anna", path).json()["detail"]
        assert service.answer("anna", case["id"], code).status_code == 201
        service.make_labels_final()
        second = update(ReadRequest).where(ReadRequest.case_id == UUID(case["id"]), ReadRequest.ordinal == 2)
        service.change(second.values(ordinal=2, **changes))
        set_policy(service, threshold=number * 1e-9, reveal="after_commit" if reveal == "never" else "never")
        answer = service.get("anna", path)
        assert answer.status_code == (403 if hidden else 200), (reveal, changes)
        assert (hidden or "") in answer.text
        assert "submit your own label first" in service.get("ben", path).json()["detail"]
    service.written_past = True
    with service.context.database.read() as session:  # a case without requests goes by the policy in force
        assert blindness.hidden_after_commit(session, [], unsettled=False) is None
        assert blindness.hidden_after_commit(session, [], unsettled=True) == "until-case-closed"


def test_the_first_look_is_recorded_once_with_what_was_shown(service: Service) -> None:
    set_policy(service, threshold=0.0, reveal="after_commit")
    case = service.add_case()
    assert service.get("admin", f"/v1/cases/{case['id']}").status_code == 200
    label = service.answer("anna", case["id"], classes_of(service)[0]).json()["label"]
    for _ in range(2):
        assert service.get("anna", f"/v1/cases/{case['id']}").status_code == 200
    row = service.one(select(Exposure))
    champion = service.one(select(Alias.release_id).where(Alias.name == "champion"))
    who = service.one(select(Annotator.name).where(Annotator.id == row.annotator_id))
    assert (who, row.case_id, row.release_id, row.label_id) == ("anna", UUID(case["id"]), champion, UUID(label["id"]))


def test_the_first_look_of_each_annotator_at_each_case_is_recorded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a case with predictions of two releases and labels of two annotators: the champion's and the newest."""
    codes, expected, paths = twice(service), set(), []
    champion = service.one(select(Alias.release_id).where(Alias.name == "champion"))
    for number in range(2):
        case = str(service.add_case(f"case {number}", cell_png(number))["id"])
        labels = [service.answer(who, case, codes[0]).json()["label"]["id"] for who in ("anna", "ben")]
        add_prediction_of_another_release(service, number, UUID(case))
        expected |= {(who, UUID(case), champion, UUID(labels[-1])) for who in ("anna", "ben")}
        paths += [(who, f"/v1/cases/{service.known_as(who, case)}") for who in ("anna", "ben")]
    service.make_labels_final()
    assert service.scalars(select(Exposure)) == []
    assert {service.get(who, path).status_code for who, path in paths} == {200}
    columns = (Annotator.name, Exposure.case_id, Exposure.release_id, Exposure.label_id)
    assert set(service.rows(select(*columns).join_from(Exposure, Annotator))) == expected
    monkeypatch.setattr(service.context.database, "write", raising(AssertionError("a second look waits for a writer")))
    assert {service.get(who, path).status_code for who, path in paths} == {200}


CHAINS: dict[str, list[tuple[str, bool]]] = {
    "gave in": [("label", True), ("revision", False)],
    "corrected": [("label", True), ("correction", True)],
    "took back": [("label", True), ("retraction", True)],
    "took back and gave in": [("label", True), ("retraction", True), ("revision", False)],
    "never blind": [("label", False)],
}


def test_an_annotators_opinion_is_their_last_blind_label_unless_they_took_it_back() -> None:
    history = [
        NamedLabel(
            Label(id=uuid.uuid4(), annotator_id=uuid.uuid5(uuid.NAMESPACE_OID, who), position=n, kind=k, blind=b), who
        )
        for who, chain in CHAINS.items()
        for n, (k, b) in enumerate(chain)
    ]
    opinions = blindness.blind_opinions(history[::-1])
    found = sorted((row.annotator, row.label.position) for row in opinions)
    assert found == [("corrected", 1), ("gave in", 0), ("took back and gave in", 0)]


def test_leases_and_answers_are_sent_at_steps_after_all_of_their_work(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell with labels of others takes longer, and the time of an answer told it: AUC .59 without the steps."""
    waits = {route.path for route in walk_routes(service.client.app) if _sends_at_steps(route)}  # type: ignore[arg-type]
    in_browser = {"/reads/next", "/reads/ahead", "/reads/{handle}/label"}
    assert waits == {"/v1/reads", "/v1/reads/{read_id}/labels", "/v1/reads/{read_id}/correction"} | in_browser
    clock, slept = [7.0], list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("app.http.middleware.monotonic", lambda: clock[0])
    monkeypatch.setattr("asyncio.sleep", sleep)

    async def answered_after(seconds: float) -> float:
        answer = middleware._send_at_a_step()
        await anext(answer)
        clock[0] += seconds
        await anext(answer, None)
        return seconds + slept[-1]

    total = [asyncio.run(answered_after(seconds)) for seconds in (0.0051, 0.0066, 0.0069, 0.0121)]
    assert total == pytest.approx([0.01, 0.01, 0.01, 0.02])


def _sends_at_steps(route: Any) -> bool:
    given = getattr(getattr(route, "dependant", None), "dependencies", ())
    return any(one.call is middleware._send_at_a_step for one in given)
