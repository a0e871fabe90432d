"""An answer to a read that ran out: taken again while that is possible, else kept as late, never lost."""

import re
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from app.cases.blindness import record_exposure
from app.database.tables import Annotator, Read
from app.metrics.queries import blind_labels
from tests.app.test_leases import all_once, all_twice, classes_of, commit, expire_all, lease, set_policy
from tests.app.test_people import first_password
from tests.security.test_right_person import answer_form, labels, submit
from tests.support.service import Service


def lost(service: Service) -> tuple[dict[str, Any], dict[str, Any]]:
    """A read of anna's that ran out, and ben's of the same request."""
    case = service.add_case()
    read = lease(service, "anna")
    expire_all(service)
    other = lease(service, "ben")
    assert read is not None
    assert other is not None
    assert service.case_of("ben", other["case_id"]) == service.case_of("anna", read["case_id"]) == case["id"]
    return read, other


def judging(service: Service) -> list[tuple[str, str]]:
    """Annotator and class of every label that may judge or fit."""
    with service.context.database.read() as session:
        return [(row[1], row[2]) for row in session.execute(blind_labels(("planned", "adjudication")))]


@pytest.mark.parametrize("answered", [False, True])
def test_an_answer_to_a_lost_read_is_late_and_judges_nothing(service: Service, answered: bool) -> None:
    all_once(service)
    read, other = lost(service)
    codes = classes_of(service)
    if answered:
        assert commit(service, "ben", other, codes[1]).status_code == 201
    body = commit(service, "anna", read, codes[0]).json()
    label = body["label"]
    assert (label["late"], label["blind"], label["round"], label["reading_seconds"]) == (True, True, "planned", None)
    if not answered:
        assert commit(service, "ben", other, codes[1]).json()["label"]["late"] is False
    assert judging(service) == [("ben", codes[1])]
    posterior = service.get("viewer", f"/v1/cases/{service.case_of('anna', read['case_id'])}/posterior").json()
    assert (posterior["n_labels"], posterior["label_counts"][codes[0]]) == (2, 1)
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["n_labels"] == 1
    assert lease(service, "anna") is None
    assert service.get("anna", f"/v1/reads/{read['id']}").json()["state"] == "committed"
    assert commit(service, "anna", read, codes[2]).status_code == 409


def test_a_correction_of_a_late_label_is_late(service: Service) -> None:
    all_once(service)
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="never")
    read, _ = lost(service)
    codes = classes_of(service)
    label = commit(service, "anna", read, codes[0]).json()["label"]
    for body in ({"label": codes[1], "reason": "slip"}, {"label": codes[2], "reason": "slip"}):
        label = service.post("anna", f"/v1/labels/{label['id']}/revisions", json=body).json()["label"]
        assert (label["late"], label["blind"]) == (True, True)
    assert judging(service) == []
    gone = service.post("anna", f"/v1/labels/{label['id']}/retraction", json={"reason": "no"}).json()["label"]
    assert gone["late"] is True


def test_somebody_who_saw_more_than_the_image_meanwhile_is_late_and_not_blind(service: Service) -> None:
    all_once(service)
    read, _ = lost(service)
    release = UUID(service.get("viewer", "/v1/releases").json()["items"][0]["id"])
    with service.context.database.write() as session:
        anna = session.execute(select(Annotator.id).where(Annotator.name == "anna")).scalar_one()
        record_exposure(session, anna, UUID(service.case_of("anna", read["case_id"])), release, None)
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    assert (label["late"], label["blind"]) == (True, False)


def test_whoever_has_the_case_again_answers_the_read_that_they_have(service: Service) -> None:
    all_twice(service)
    read, _ = lost(service)
    again = lease(service, "anna")  # the second planned read of the case
    assert again is not None
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    assert (label["late"], label["round"]) == (False, "planned")
    assert service.get("anna", f"/v1/reads/{again['id']}").json()["state"] == "committed"
    assert len(judging(service)) == 1


@pytest.mark.parametrize("how", ["decline", "release"])
def test_who_gave_the_case_back_is_not_asked_any_more(service: Service, how: str) -> None:
    all_once(service)
    service.add_case()
    read = lease(service, "anna")
    assert read is not None
    if how == "decline":
        assert service.post("anna", f"/v1/reads/{read['id']}/decline", json={"reason": "other"}).status_code == 200
    else:
        assert service.call("anna", "DELETE", f"/v1/reads/{read['id']}").status_code == 204
    refused = commit(service, "anna", read, classes_of(service)[0])
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:secondread:problem:lease-lost")
    assert labels(service) == []


def test_the_page_takes_a_late_answer_once_and_says_so(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="never")
    case, cookie, codes = service.add_case(), first_password(service, "anna"), classes_of(service)
    service.lease_on("anna", case["id"])
    form = answer_form(service, cookie, case["id"])
    expire_all(service)
    assert lease(service, "ben") is not None
    page = {"headers": cookie | {"Accept": "text/html"}}
    assert re.search("This case is not with you", service.client.get(f"/cases/{case['id']}", **page).text)
    for _ in range(2):
        assert submit(service, cookie, form, label=codes[0]) == (204, "")
    assert submit(service, cookie, form, label=codes[1]) == (409, "already-labelled")
    assert labels(service) == [("anna", codes[0])]
    assert "kept as late" in service.client.get(f"/cases/{case['id']}", **page).text
    with service.context.database.read() as session:
        states = session.execute(select(Read.state).order_by(Read.created_at)).scalars().all()
    assert states == ["committed", "leased"]
