"""What an annotator gets back for a label is the same for every arm, and tells nothing until the label is final."""

from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select

from app.database.engine import Database
from app.database.migration import upgrade_schema
from app.database.tables import PolicyRow
from app.metrics.queries import blind_labels
from app.triage.schemas import PolicyIn
from tests.app.test_leases import classes_of, commit, lease, requests_of, set_policy
from tests.support.service import Service, cell_png

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
    read = lease(service, "anna")
    assert read is not None
    body = commit(service, "anna", read, classes_of(service)[0]).json()
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
    with service.context.database.read() as session:
        counted = [row[2] for row in session.execute(blind_labels()) if row[0] == case_id]
    assert counted == [codes[1] if blind else codes[0]]


def test_after_a_twin_was_shown_nothing_is_corrected_blind(service: Service) -> None:
    from tests.security.test_blind_by_image import show

    set_policy(service, **ARMS["one read"], reveal="after_case_closed")
    service.add_case("first", cell_png(3))
    read = lease(service, "anna")
    assert read is not None
    codes = classes_of(service)
    assert commit(service, "anna", read, codes[0]).status_code == 201
    twin = service.add_case("second", cell_png(3))
    show(service, "anna", twin["id"])
    answer = service.post("anna", f"/v1/reads/{read['id']}/correction", json={"label": codes[1]})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:secondread:problem:label-final")
