"""Invitations: a link works once, for 72 hours, and gives a guest the named cells and no others."""

import re
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from sqlalchemy import select

from app.accounts import people as auth
from app.database.tables import Account, BrowserSession, IdempotencyRecord, Invitation, ReadRequest
from app.invitations import service as invitations
from app.labels.posterior import reassign_open_requests
from app.triage.service import list_eligible_annotators
from tests.app.test_gallery import send
from tests.app.test_leases import all_once, classes_of, commit, lease, requests_of, set_policy
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

HTML = {"Accept": "text/html"}


def invite(service: Service, *case_ids: str, name: str = "Dr. Gast", key: str | None = None) -> Any:
    return service.post("admin", "/v1/invitations", key, json={"annotator": name, "cases": case_ids})


def path_of(answer: Any) -> str:
    assert answer.status_code == 201, answer.text
    return urlsplit(answer.json()["url"]).path


def accept(service: Service, path: str) -> tuple[int, dict[str, str]]:
    service.client.cookies.clear()
    answer = service.client.post(path, headers=HTML, follow_redirects=False)
    service.client.cookies.clear()
    return answer.status_code, {"Cookie": "; ".join(f"{key}={value}" for key, value in answer.cookies.items())}


def key_of(service: Service, name: str) -> None:
    """Give a guest a key, so that a test can read as they do."""
    with service.context.database.write() as session:
        service.keys[name] = auth.add_key(session, service.context.keys.audit, name, [])[1]


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_link_signs_in_once_and_looking_at_it_uses_nothing_up(service: Service) -> None:
    case_id = service.add_case()["id"]
    path = path_of(invite(service, case_id))
    for _ in range(2):
        page = service.client.get(path, headers=HTML)
        assert (page.status_code, "1 cell waits for you" in page.text) == (200, True)
    status, cookie = accept(service, path)
    assert status == 303
    page = service.client.get("/worklist", headers=HTML | cookie).text
    assert "Read the next cell" in page
    assert accept(service, path)[0] == 404
    assert "This link does not work" in service.client.get(path, headers=HTML).text
    actions = [event["action"] for event in service.document("/v1/audit-events", "admin")["items"]][:5]
    assert actions == ["session.start", "invitation.use", "invitation.create", "request.assign", "account.add"]
    audit = re.sub(r"<[^>]*>|\s+|[\u2068\u2069]", " ", service.get("admin", "/audit", headers={**HTML}).text)
    assert "invited Dr. Gast to read 1 cell" in " ".join(audit.split())


@undone("T24", "a link works for 72 hours", invitations, "LIFETIME", timedelta(days=365))
def test_a_link_works_for_72_hours(service: Service) -> None:
    path = path_of(invite(service, service.add_case()["id"]))
    with service.clock.off_by(timedelta(hours=72, seconds=1)):
        assert service.client.get(path, headers=HTML).status_code == 404
        assert accept(service, path)[0] == 404
    with service.clock.off_by(timedelta(hours=71, minutes=59)):
        assert accept(service, path)[0] == 303


@pytest.mark.both_databases
def test_of_many_who_use_a_link_at_once_one_is_signed_in(service: Service) -> None:
    token = path_of(invite(service, service.add_case()["id"])).rpartition("/")[2]
    database, keys = service.context.database, service.context.keys.audit
    with ThreadPoolExecutor(8) as pool:
        begun = list(pool.map(lambda _: invitations.use_invitation(database, keys, token), range(8)))
    assert len([one for one in begun if one is not None]) == 1
    assert len(service.scalars(select(BrowserSession.id))) == 1


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_guest_is_given_the_named_cells_and_no_others(service: Service) -> None:
    set_policy(service, threshold=0.0, draw_readers=False)
    cells = [case["id"] for case in service.add_cases(6)]
    named = {cells[1], cells[4]}
    path = path_of(invite(service, *named))
    key_of(service, "Dr. Gast")
    codes, given = classes_of(service), set()
    with service.clock.off_by(timedelta(days=30)):  # what waits for others is long overdue
        while (read := lease(service, "Dr. Gast")) is not None:
            given.add(service.case_of("Dr. Gast", read["case_id"]))
            assert commit(service, "Dr. Gast", read, codes[0]).status_code == 201
        page = service.get("Dr. Gast", "/worklist", headers={**HTML}).text
    assert given == named
    assert "Thank you. You have read every cell that you were invited to read." in page
    assert "0 waiting" in page
    assert service.client.get(path, headers=HTML).text.count("0 cells wait") == 1


def test_a_guest_is_neither_drawn_nor_counted_nor_loses_a_read_to_the_worker(service: Service) -> None:
    set_policy(service, threshold=0.0, draw_readers=True)
    case_id = service.add_case()["id"]
    path_of(invite(service, case_id))
    guest = service.one(select(Account).where(Account.guest.is_(True)))
    service.add_cases(4)
    with service.context.database.write() as session:
        assert "Dr. Gast" not in {one.name for one in list_eligible_annotators(session)}
        assert auth.count_annotators(session) == 2
        annotator = auth.annotator_of_account(session, guest.id)
    assert annotator is not None
    reassign_open_requests(service.context)
    asked = service.scalars(select(ReadRequest.case_id).where(ReadRequest.annotator_id == annotator.id))
    assert asked == [uuid.UUID(case_id)]
    service.set_disabled("Dr. Gast", disabled=True)
    assert reassign_open_requests(service.context) == 1


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_third_opinion_is_an_adjudication_and_nobody_is_asked_twice(service: Service) -> None:
    all_once(service)
    case_id = service.add_case()["id"]
    read = lease(service, "anna")
    assert read is not None
    assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201
    service.make_labels_final()
    refused = invite(service, case_id, name="anna")
    assert (refused.status_code, "anna has met the cell case-1" in refused.text) == (409, True)
    path_of(invite(service, case_id))
    path_of(invite(service, case_id))  # the same read, and another link
    requests = [(one.round, one.state) for one in requests_of(service, case_id)]
    assert requests == [("planned", "answered"), ("adjudication", "open")]
    assert service.one(select(Account.role).where(Account.name == "Dr. Gast")) == "annotator"
    for name, status in (("admin", 409), ("reader of elsewhere", 201), (" ", 422)):
        assert invite(service, case_id, name=name).status_code == status, name
    assert invite(service, str(uuid.uuid4())).status_code == 404
    set_policy(service, require_qualification=True)
    assert "not qualified" in invite(service, case_id, name="new here").text
    assert service.scalars(select(Account.id).where(Account.name == "new here")) == []


def test_a_retried_request_gets_the_same_link_and_no_row_has_it(service: Service) -> None:
    case_id = service.add_case()["id"]
    first, again = (invite(service, case_id, key="k") for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    token = path_of(first).rpartition("/")[2]
    rows = [*service.scalars(select(IdempotencyRecord.body)), *service.rows(select(*Invitation.__table__.columns))]
    assert rows
    assert token not in str(rows)
    assert service.faults() == []


def test_guessing_links_is_slowed_down_and_another_site_signs_nobody_in(service: Service) -> None:
    path = path_of(invite(service, service.add_case()["id"]))
    elsewhere = {"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
    assert service.client.post(path, headers=elsewhere).status_code == 403
    used = path_of(invite(service, service.add_cases(1)[0]["id"], name="another"))
    assert accept(service, used)[0] == 303
    assert {service.client.get(used, headers=HTML).status_code for _ in range(9)} == {404}  # no guess
    answers = [service.client.get(f"/invitations/{number}", headers=HTML) for number in range(6)]
    assert [answer.status_code for answer in answers] == [404] * 5 + [429]
    assert service.client.post(path, headers=HTML).status_code == 429


def test_a_lead_invites_from_the_page_of_a_cell(service: Service) -> None:
    case_id = service.add_case("cell & co")["id"]
    page = service.get("admin", f"/cases/{case_id}", headers={**HTML}).text
    assert f"/people?cell={case_id}#invite" in page
    page = service.get("admin", f"/people?cell={case_id}", headers={**HTML}).text
    assert "cell &amp; co</textarea>" in page
    form = {"annotator": "Dr. Gast", "cells": "cell & co\r\n"}
    refused = service.post("admin", "/people/invitations", data=form | {"cells": "unheard of"}, headers={**HTML})
    assert (refused.status_code, "There is no cell unheard of." in refused.text) == (422, True)
    assert 'value="Dr. Gast"' in refused.text
    made = service.post("admin", "/people/invitations", data=form, headers={**HTML})
    assert made.status_code == 200, made.text
    assert "http://testserver/invitations/" in made.text
    page = service.get("admin", "/people", headers={**HTML}).text
    assert '<span class="tag">guest</span>' in page


def test_a_second_invitation_leaves_the_first_guest_their_read(service: Service) -> None:
    set_policy(service, threshold=0.0)
    case_id = service.add_case()["id"]
    names = ("Guest A", "Guest B", "Guest C")  # of two planned reads
    links = [path_of(invite(service, case_id, name=name)) for name in names]
    assert all("1 cell waits for you" in service.client.get(link, headers=HTML).text for link in links)
    for name in names:
        key_of(service, name)
    assert all(lease(service, name) is not None for name in names)


def test_a_settled_cell_without_an_open_read_is_asked_of_no_guest(service: Service) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9)
    case_id = service.add_case()["id"]
    service.answer("anna", case_id, classes_of(service)[0])
    service.make_labels_final()
    assert service.settle(case_id).status_code == 201
    answer = invite(service, case_id)
    assert (answer.status_code, "settled" in answer.text) == (409, True)
    assert [row.state for row in requests_of(service, case_id)] == ["answered"]


def test_a_disabled_account_has_no_link_and_gets_none_back(service: Service) -> None:
    case_id = service.add_case()["id"]
    path = path_of(invite(service, case_id))
    service.set_disabled("Dr. Gast", disabled=True)
    assert service.client.get(path, headers=HTML).status_code == 404
    assert accept(service, path)[0] == 404
    assert invite(service, service.add_case("b", cell_png(2))["id"]).status_code == 409
    service.set_disabled("Dr. Gast", disabled=False)
    assert accept(service, path)[0] == 404


@pytest.mark.both_databases
def test_an_invitation_and_the_gallery_wait_for_each_other_in_one_order(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_policy(service, threshold=0.99, audit_rate=1e-9)
    cells = sorted(service.add_case(name, cell_png(n))["id"] for n, name in enumerate("bc", 2))
    for case_id in cells:  # the planned read
        service.outside_label(case_id, "r", classes_of(service)[0])
    path_of(invite(service, cells[1], name="Guest A"))
    inner, asked = invitations.ask_annotator, list[uuid.UUID]()

    def slow(session: Any, keys: Any, principal: Any, case_id: uuid.UUID, annotator_id: uuid.UUID) -> ReadRequest:
        asked.append(case_id)
        if len(asked) == 2:
            time.sleep(1)  # meanwhile the gallery takes what it finds
        return inner(session, keys, principal, case_id, annotator_id)

    monkeypatch.setattr(invitations, "ask_annotator", slow)
    service.before_change = lambda: None
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(invite, service, *cells, name="Guest B")
        time.sleep(0.3)
        two = pool.submit(send, service, "labels", cell=cells, label=classes_of(service)[3])
        assert (one.result().status_code, two.result().status_code) == (201, 201)
