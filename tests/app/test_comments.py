"""Comments on a cell: unseen before the own read is final, seen by record, gone with the patient."""

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text

from app.cases import comments
from app.database.tables import Annotator, Case, CaseTwin, Comment, Exposure, Label, ProvisionalLabel, Read
from app.maintenance.erasure import erase_patient_everywhere
from tests.app.test_leases import all_once, classes_of, commit, read_next, set_policy, twice
from tests.app.test_refused_forms import account_of
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

TEXT = "Auer rods at the upper edge"
HTML = {"Accept": "text/html"}


def comment(service: Service, who: str, case_id: str, **body: Any) -> Any:
    return service.post(who, f"/v1/cases/{case_id}/comments", json={"text": TEXT} | body)


def exits(service: Service, who: str, handle: str) -> list[Any]:
    """Everything that an annotator is answered about a cell and its comments, without what is new in each answer."""
    paths = (f"/v1/cases/{handle}/comments", f"/v1/cases/{handle}", f"/cases/{handle}", "/worklist", "/settled")
    answers = [service.get(who, path, headers={**HTML} if "/v1/" not in path else {}) for path in paths]
    answers.append(comment(service, who, handle))
    bodies = [re.sub(r'"[0-9a-f]{32}\w?"|"request_id":"[^"]*"', "", answer.text) for answer in answers]
    return [(answer.status_code, body) for answer, body in zip(answers, bodies, strict=True)]


@undone("T30", "comments wait for the final read", comments, "ensure_discussed", lambda *_: None)
@pytest.mark.both_databases
def test_comments_are_hidden_until_the_own_read_is_final_and_nothing_tells_whether_there_are_any(
    service: Service,
) -> None:
    codes = twice(service)
    case = service.add_case("cell")
    read = read_next(service, "anna")
    handle = read["case_id"]
    others = service.known_as("ben", case["id"])
    before = exits(service, "anna", handle)
    assert [before[n][0] for n in (0, 1, 5)] == [403, 403, 403]
    assert '"urn:secondread:problem:blind-read-pending"' in before[0][1]
    assert comment(service, "admin", case["id"], x=0.25, y=0.5).status_code == 201
    assert exits(service, "anna", handle) == before
    assert commit(service, "anna", read, codes[0]).status_code == 201
    assert service.get("anna", f"/v1/cases/{handle}/comments").status_code == 403  # it may be corrected
    service.make_labels_final()
    assert service.get("anna", f"/v1/cases/{handle}/comments").status_code == 403  # the other read is planned
    assert service.get("ben", f"/v1/cases/{others}/comments").status_code == 403
    assert commit(service, "ben", read_next(service, "ben"), codes[0]).status_code == 201
    service.make_labels_final()
    (shown,) = service.document(f"/v1/cases/{handle}/comments", "anna")["items"]
    assert (shown["text"], shown["author"], shown["x"], shown["y"]) == (TEXT, "admin", 0.25, 0.5)
    assert shown["case_id"] == handle
    assert comment(service, "ben", others).json()["author"] == "ben"
    assert len(service.document(f"/v1/cases/{handle}/comments", "anna")["items"]) == 2


def test_who_has_seen_comments_changes_their_mind_unblinded(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9, reveal="after_case_closed")
    case = service.add_case("cell")
    codes = classes_of(service)
    assert commit(service, "anna", read_next(service, "anna"), codes[0]).status_code == 201
    service.make_labels_final()
    label_id = service.one(select(Label.id))
    comment(service, "admin", case["id"])
    assert service.scalars(select(Exposure.id)) == []
    assert service.get("anna", f"/v1/cases/{service.known_as('anna', case['id'])}/comments").status_code == 200
    exposed = select(Annotator.name).join(Exposure, Exposure.annotator_id == Annotator.id)
    assert service.scalars(exposed) == ["anna"]
    assert ": unblinded for <bdi>anna</bdi></li>" in service.get("admin", f"/cases/{case['id']}").text
    changed = {"label": codes[1], "reason": "as the comment says"}
    revised = service.post("anna", f"/v1/labels/{label_id}/revisions", json=changed).json()
    assert revised["label"]["post_reveal"] is True


@pytest.mark.parametrize(("state", "status"), [("leased", 403), ("to be corrected", 403), ("declined", 200)])
def test_comments_wait_for_the_read_of_a_near_duplicate(service: Service, state: str, status: int) -> None:
    all_once(service)
    first, second = service.add_case("one"), service.add_case("the same once more")
    assert service.scalars(select(func.count()).select_from(CaseTwin)) == [2]
    read = read_next(service, "anna")
    assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201
    service.make_labels_final()
    path = f"/v1/cases/{read['case_id']}/comments"
    service.add_case("another image", cell_png(8))
    assert read_next(service, "anna")["case_id"] != read["case_id"]
    read_next(service, "ben")  # the near-duplicate
    assert service.get("anna", path).status_code == 200
    other = next(case["id"] for case in (first, second) if service.known_as("anna", case["id"]) != read["case_id"])
    service.written_past = True  # the queue gives no twin, whatever a clock or an import did
    own = {"case_id": uuid.UUID(other), "annotator_id": service.one(select(Label.annotator_id))}
    at = service.context.clock()
    if state != "to be corrected":
        own |= {
            "id": uuid.uuid4(),
            "request_id": service.one(select(Read.request_id).where(Read.state == "committed")),
            "state": state,
        }
        service.change(insert(Read).values(**own, created_at=at, expires_at=at))
    else:
        own |= {
            "label_id": service.one(select(Label.id)),
            "read_id": service.one(select(Read.id).where(Read.state == "committed")),
        }
        service.change(insert(ProvisionalLabel).values(**own, final_at=at + timedelta(days=1)))
    assert service.get("anna", path).status_code == status
    page = service.get("anna", f"/cases/{read['case_id']}", headers={**HTML}).text
    assert ('id="comments"' in page) is (status == 200)


def test_leads_read_and_admins_write_and_a_place_is_whole_and_on_the_image(service: Service) -> None:
    case_id = service.add_case()["id"]
    assert comment(service, "viewer", case_id).status_code == 403
    assert comment(service, "outside", case_id).status_code == 403
    for wrong in ({"x": 0.5}, {"x": 1.01, "y": 0.5}, {"x": -0.1, "y": 0}, {"text": " \n"}, {"text": "a" * 2001}):
        assert comment(service, "admin", case_id, **wrong).status_code == 422, wrong
    assert comment(service, "admin", str(uuid.uuid4())).status_code == 404
    assert comment(service, "admin", case_id, x=0, y=1).status_code == 201
    assert [one["y"] for one in service.document(f"/v1/cases/{case_id}/comments")["items"]] == [1.0]
    (event,) = service.document("/v1/audit-events", "admin", action="comment.add")["items"]
    assert (event["object"], event["actor"]) == (case_id, "admin")
    assert TEXT not in str(event)


@pytest.mark.both_databases
def test_comments_go_with_an_erased_patient_and_none_follows(service: Service) -> None:
    case_id = service.add_case(patient="p-1")["id"]
    comment(service, "admin", case_id)
    assert erase_patient_everywhere(service.context, "test", "p-1", "asked").remarks == 1
    assert service.scalars(select(Comment.id)) == []
    assert service.one(select(Case.erased_at)) is not None
    assert comment(service, "admin", case_id).status_code == 409
    assert service.faults() == []


def test_a_comment_that_was_changed_past_the_service_is_named(service: Service) -> None:
    comment(service, "admin", service.add_case()["id"])
    assert service.faults() == []
    service.written_past = True
    service.change(text("UPDATE comments SET text = 'nothing to see'"))
    assert any(fault.startswith("comments ") for fault in service.faults())


def test_the_page_lists_comments_with_their_marks_and_a_refused_form_comes_back(service: Service) -> None:
    case_id = service.add_case()["id"]
    form = {"text": "<b>here</b>", "x": "25", "y": "50,5", "form_key": "k1", "listed": "site=a&search=%2F%2Fb"}
    form |= {"account": account_of(service)}
    path = f"/cases/{case_id}/comments"
    for _ in range(2):  # sent twice, stored once
        answer = service.post("admin", path, data=form, headers={**HTML}, follow_redirects=False)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"] == f"/cases/{case_id}?site=a&search=%2F%2Fb#comments"
    page = service.get("admin", f"/cases/{case_id}", headers={**HTML}).text
    assert page.count("&lt;b&gt;here&lt;/b&gt;") == 1
    assert 'data-x="0.25" data-y="0.505"' in page
    refused = service.post("admin", path, data=form | {"x": "250", "form_key": "k2"}, headers={**HTML})
    assert refused.status_code == 422
    assert "Must be a number from 0 to 100." in refused.text
    assert 'value="250"' in refused.text
    page = service.get("viewer", f"/cases/{case_id}", headers={**HTML}).text
    assert "&lt;b&gt;here&lt;/b&gt;" in page
    assert path not in page
