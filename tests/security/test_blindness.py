"""An annotator with an open read walks every route, page, header and export, and finds nothing of the model."""

import json
import re
from typing import Any

import pytest

from app.cases import blindness
from app.http.routing import walk_routes
from tests.app.test_leases import all_twice, classes_of, lease
from tests.app.test_people import first_password
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

#: What is the same for every installation, examples with probabilities included.
FOR_EVERYBODY = {"/v1/docs", "/openapi.json"}


@undone("T20", "nothing is shown before the own label", blindness, "has_committed", lambda *_: True)
@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
@pytest.mark.parametrize("by_browser", [False, True])
def test_no_route_shows_the_prediction_before_the_commit(service: Service, by_browser: bool) -> None:
    all_twice(service)
    case = service.add_case("monocyte-says-the-file", cell_png(4), patient="p", site="s")
    codes = classes_of(service)
    read = lease(service, "ben")  # somebody else has committed already
    assert read is not None
    other = service.post(
        "ben", f"/v1/reads/{read['id']}/labels", json={"label": codes[0], "note": "ben-was-here"}
    ).json()
    mine = lease(service, "anna")
    assert mine is not None
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


def test_a_request_tells_its_annotator_nothing_of_why_it_was_made(service: Service) -> None:
    all_twice(service)
    service.add_case()
    read = lease(service, "anna")
    assert read is not None
    assert set(read) == {"id", "case_id", "image", "field", "classes", "state", "leased_at", "expires_at"}


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_the_order_of_reading_is_each_annotators_own_and_not_that_of_need(service: Service) -> None:
    from tests.app.test_leases import set_policy

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
