"""Annotators know cases by handles: nothing that they are sent tells when a case was stored, or which one is older."""

import re
from uuid import UUID

import pytest

from tests.app.test_leases import classes_of, commit, lease, set_policy
from tests.app.test_people import first_password
from tests.support.service import Service, cell_png

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
    read = lease(service, "anna")
    assert read is not None
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
    anna, ben = lease(service, "anna"), lease(service, "ben")
    assert anna is not None
    assert ben is not None
    assert len({anna["case_id"], ben["case_id"], case["id"]}) == 3
    paths = {who: f"/v1/cases/{read['case_id']}" for who, read in (("anna", anna), ("ben", ben))}
    assert service.get("anna", paths["anna"]).status_code == 403  # blind: known, and not shown
    for who, path in (("ben", paths["anna"]), ("viewer", paths["anna"]), ("anna", paths["ben"])):
        assert service.get(who, path).status_code == 404
        assert service.get(who, f"{path}/image").status_code == 404


@pytest.mark.slow
def test_cases_that_were_read_are_listed_in_the_order_of_reading(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9)
    for number in range(8):
        service.add_case(f"case {number}", cell_png(number))
    read_in_order = []
    while (read := lease(service, "anna")) is not None:
        read_in_order.append(read["case_id"])
        assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201
    cookie = first_password(service, "anna") | {"Accept": "text/html"}
    shown = re.findall(r'href="/cases/([^"]+)"', service.client.get("/worklist", headers=cookie).text)
    assert shown == read_in_order[::-1]
