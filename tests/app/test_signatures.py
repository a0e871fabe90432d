"""Signatures on specimens: who may sign what, and what becomes of a signature afterwards."""

import csv
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from app.accounts import people as auth
from app.audit.chain.verify_proof import digest_json
from app.database.tables import AuditEvent, IdempotencyRecord, SpecimenRemark, SpecimenResult, SpecimenSignature
from app.maintenance.erasure import erase_patient_everywhere
from app.specimens.measuring import refresh_stale_specimens
from tests.app.test_people import GOOD, first_password, go
from tests.app.test_people import provider as provider
from tests.app.test_refused_forms import account_of
from tests.app.test_specimens import GROUP, add_cells, add_specimen, put_policy, shown
from tests.app.test_today import needs, today
from tests.support.openid import OpenIdProvider
from tests.support.service import Service, cell_png, change_append_only


@pytest.fixture
def lead(service: Service) -> dict[str, str]:
    """Cookie of the admin, who has a password; the policy has a threshold."""
    put_policy(service, reporting_groups=[GROUP])
    return first_password(service, "admin")


def another_lead(service: Service) -> dict[str, str]:
    """Cookie of a second admin, who has a password."""
    with service.context.database.write() as session:
        auth.add_account(session, service.context.keys.audit, "other", "admin")
        service.keys["other"] = auth.add_key(session, service.context.keys.audit, "other", [])[1]
    return first_password(service, "other")


def specimen_with_cells(service: Service, name: str = "S-1", n: int = 3, **fields: str) -> str:
    specimen_id = add_specimen(service, name, **fields)
    add_cells(service, name, n)
    return specimen_id


def sign(service: Service, cookie: dict[str, str], specimen_id: str, key: str | None = None, **fields: Any) -> Any:
    body = {"meaning": "approved", "version": 1, "password": GOOD} | fields
    service.client.cookies.clear()
    return service.post(None, f"/v1/specimens/{specimen_id}/signatures", key, json=body, headers=dict(cookie))


def signatures(service: Service, specimen_id: str) -> list[dict[str, Any]]:
    return list(service.document(f"/v1/specimens/{specimen_id}/signatures")["items"])


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_signature_keeps_what_was_shown(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service, patient="P-secret")
    before = shown(service, specimen_id)
    answer = sign(service, lead, specimen_id, "one", comment="seen twice")
    assert answer.status_code == 201, answer.text
    assert sign(service, lead, specimen_id, "one", comment="seen twice").json() == answer.json()  # a retry
    (one,) = signatures(service, specimen_id)
    assert one == answer.json()
    names = ("number", "meaning", "by", "comment", "reason", "version", "differs")
    assert [one[name] for name in names] == [1, "approved", "admin", "seen twice", None, 1, []]
    document = one.pop("document")
    assert digest_json(document) == one["digest"] == service.one(select(SpecimenSignature.digest))
    unsigned = ("external_id", "patient", "site", "collected_at", "created_at", "state", "computed_at", "stale")
    expected = {name: value for name, value in before.items() if name not in {*unsigned, "signature"}}
    assert document == expected | {"policy": 2}
    assert not {"S-1", "P-secret"} & set(str(document).replace("'", " ").split())
    after = shown(service, specimen_id)
    assert (after["state"], after["signature"], after["version"]) == ("signed", one, 1)
    event = service.one(select(AuditEvent).where(AuditEvent.action == "specimen.sign"))
    assert (event.actor, event.details["digest"]) == ("admin", one["digest"])
    assert [row["state"] for row in service.items("/v1/specimens", state="signed")] == ["signed"]
    assert list(service.items("/v1/specimens", state="open")) == []
    assert not service.faults()


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "change", ["UPDATE specimen_signatures SET meaning = 'reviewed'", "DELETE FROM specimen_signatures"]
)
def test_a_signed_version_is_never_changed(service: Service, lead: dict[str, str], change: str) -> None:
    specimen_id = specimen_with_cells(service)
    signed = sign(service, lead, specimen_id).json()
    with pytest.raises(DBAPIError, match="append-only"):
        service.change(text(change))
    assert signatures(service, specimen_id) == [signed]


@pytest.mark.slow
@pytest.mark.ci
def test_only_a_lead_signs_and_no_key(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    path, body = f"/v1/specimens/{specimen_id}/signatures", {"meaning": "approved", "version": 1, "password": GOOD}
    for name in ("admin", "viewer", "anna", "outside"):
        answer = service.post(name, path, json=body)
        assert answer.status_code == 403, answer.text
        assert ("API keys never sign" in answer.text) == (name == "admin")
    for name in ("anna", "viewer"):
        assert sign(service, first_password(service, name), specimen_id).status_code == 403
    assert service.get("anna", path).status_code == 403
    assert signatures(service, specimen_id) == []
    assert sign(service, lead, str(uuid.uuid4())).status_code == 404
    assert sign(service, lead, specimen_id).status_code == 201


@pytest.mark.slow
@pytest.mark.ci
def test_a_wrong_password_signs_nothing_and_counts_like_one_at_sign_in(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    for password in (None, "", "wrong password 123"):
        refused = sign(service, lead, specimen_id, password=password)
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (403, "forbidden")
        assert "password is missing or wrong" in refused.json()["detail"]
    for _ in range(10):
        refused = sign(service, lead, specimen_id, password="wrong password 123")
    assert (refused.status_code, "too many wrong passwords" in refused.text) == (429, True)
    assert sign(service, lead, specimen_id).status_code == 429
    assert service.client.post("/login", data={"name": "admin", "password": GOOD}).status_code == 401
    assert len(service.scalars(select(AuditEvent.sequence).where(AuditEvent.action == "account.throttle"))) == 1
    assert signatures(service, specimen_id) == []


@pytest.mark.slow
@pytest.mark.ci
def test_a_password_does_not_enter_the_stored_digest_of_a_request(service: Service, lead: dict[str, str]) -> None:
    specimen_id, other = specimen_with_cells(service), "quite another one"
    signed = sign(service, lead, specimen_id, "one")
    changed = service.client.post("/account", data={"present": GOOD, "wanted": other}, headers=lead)
    assert changed.status_code == 200
    again = sign(service, lead, specimen_id, "one", password=other)
    assert (again.headers.get("Idempotent-Replayed"), again.json()) == ("true", signed.json())


@pytest.mark.slow
@pytest.mark.ci
def test_only_what_is_shown_now_is_signed(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    (cell, *_) = [row["id"] for row in service.items(f"/v1/specimens/{specimen_id}/cells")]
    assert shown(service, specimen_id)["version"] == 1
    service.outside_label(cell, "r1", "blast")
    stale = sign(service, lead, specimen_id)
    assert (stale.status_code, "the shares have changed" in stale.text) == (412, True)
    assert sign(service, lead, specimen_id, version=3).status_code == 412
    assert sign(service, lead, specimen_id, version=2).status_code == 201
    empty = add_specimen(service, "S-empty")
    assert shown(service, empty)["version"] == 1
    assert sign(service, lead, empty).status_code == 409


@pytest.mark.slow
@pytest.mark.ci
def test_an_amendment_is_a_further_version_with_a_reason(
    service: Service, lead: dict[str, str], tmp_path: Path
) -> None:
    specimen_id = specimen_with_cells(service)
    assert sign(service, lead, specimen_id, reason="none is needed").status_code == 409
    assert sign(service, lead, specimen_id, amends=1, reason="there is none").status_code == 412
    first = sign(service, lead, specimen_id, meaning="reviewed").json()
    for fields, status in (({}, 409), ({"amends": 1}, 409), ({"amends": 2, "reason": "later"}, 412)):
        assert sign(service, lead, specimen_id, **fields).status_code == status
    second = sign(service, lead, specimen_id, amends=1, reason="approved now")
    assert second.status_code == 201, second.text
    assert (second.json()["number"], second.json()["reason"]) == (2, "approved now")
    assert signatures(service, specimen_id) == [second.json(), first]
    third = sign(service, lead, specimen_id, version=None, reason="once more").json()  # whatever is shown now
    assert (third["number"], shown(service, specimen_id)["signature"]["number"]) == (3, 3)
    service.export(tmp_path / "out", images=False)
    row, *_ = csv.DictReader((tmp_path / "out" / "specimens.csv").read_text().splitlines())
    assert (row["state"], row["signature"], row["signed_at"][:4]) == ("signed", "3", third["signed_at"][:4])


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_of_two_leads_who_sign_at_once_one_does(service: Service, lead: dict[str, str]) -> None:
    cookies, together = [lead, another_lead(service)], Barrier(2)
    for number in range(2):
        specimen_id = specimen_with_cells(service, f"S-{number}")

        def act(cookie: dict[str, str], specimen_id: str = specimen_id) -> int:
            together.wait(20)
            return int(sign(service, cookie, specimen_id).status_code)

        with ThreadPoolExecutor(2) as threads:
            assert sorted(threads.map(act, cookies)) == [201, 409]
    assert service.scalars(select(SpecimenSignature.number)) == [1, 1]
    assert not service.faults()


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_an_erased_patient_leaves_the_numbers_of_signatures(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service, patient="P1")
    signed = sign(service, lead, specimen_id, comment="the hand of Mr Miller").json()
    assert service.scalars(select(SpecimenRemark.comment)) == ["the hand of Mr Miller"]
    erase_patient_everywhere(service.context, "admin", "P1", "asked for")
    assert signatures(service, specimen_id) == [signed | {"comment": None}]
    assert service.get("viewer", f"/v1/specimens/{specimen_id}").status_code == 404
    assert service.scalars(select(SpecimenRemark.id)) == []
    bodies = [str(body) for body in service.scalars(select(IdempotencyRecord.body))]
    assert not [body for body in bodies if "Miller" in body or "S-1" in body or "P1" in body]
    assert sign(service, lead, specimen_id).status_code == 404
    assert not service.faults()


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_what_was_shown_before_a_cell_was_erased_is_not_signed(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service, n=2)
    assert shown(service, specimen_id)["version"] == 1
    assert sign(service, lead, specimen_id).status_code == 201
    service.change(update(SpecimenResult).values(differs=True))
    erase_patient_everywhere(service.context, "admin", "S-1 cell 1", "asked for", without_patient=True)
    assert f"/specimens/{specimen_id}" not in today(service)  # no notice without a sentence
    (cell,) = service.items("/v1/cases", specimen="S-1")  # before it is measured again
    assert cell["class_probs_in_specimen"] is None
    again = {"amends": 1, "reason": "a cell less"}
    assert sign(service, lead, specimen_id, **again).status_code == 412
    assert sign(service, lead, specimen_id, version=2, **again).json()["document"]["n_cells"] == 1


def test_an_image_that_came_twice_counts_twice_as_on_the_page(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    service.add_case("copy", cell_png(0), specimen="S-1")
    assert shown(service, specimen_id)["n_cells"] == 4
    assert sign(service, lead, specimen_id).json()["document"]["n_cells"] == 4


def test_a_signed_version_without_a_field_of_later_ones_is_shown(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    older = sign(service, lead, specimen_id).json()["document"]
    del older["assumes"]
    service.written_past = True
    with service.context.database.write() as session:
        change_append_only(session, "specimen_signatures", update(SpecimenSignature).values(document=older))
    page = service.get("viewer", f"/specimens/{specimen_id}", params={"signed": 1})
    assert (page.status_code, "These are the shares of signed version 1" in page.text) == (200, True)
    assert "The intervals leave out" not in page.text


def test_warnings_are_in_the_language_of_the_page(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service)
    signed = sign(service, lead, specimen_id).json()
    assert signed["digest"] == digest_json(signed["document"])
    for version in ({}, {"signed": 1}):
        page = service.get("viewer", f"/specimens/{specimen_id}", params=version, headers={"Accept-Language": "de"})
        assert "Weniger als 20 Zellbilder: die Klassenmischung" in page.text
    assert not service.faults()


def test_a_refused_form_comes_back_without_the_password(service: Service, lead: dict[str, str]) -> None:
    path = f"/specimens/{specimen_with_cells(service)}"
    typed = {"form_key": "k", "account": account_of(service), "meaning": "approved", "comment": "typed"}
    for password, version, status in ((GOOD, "2", 412), ("wrong password 123", "1", 403)):
        typed |= {"password": password, "version": version}
        answer = service.client.post(f"{path}/signatures", data=typed, headers={**lead, "Accept": "text/html"})
        assert (answer.status_code, ">typed</textarea>" in answer.text) == (status, True)
        assert password not in answer.text


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.both_databases
def test_a_label_that_changes_a_decision_is_told_to_the_signer_alone(service: Service, lead: dict[str, str]) -> None:
    specimen_id = specimen_with_cells(service, n=21)
    other = another_lead(service)
    assert sign(service, lead, specimen_id).status_code == 201
    cells = [row["id"] for row in service.items(f"/v1/specimens/{specimen_id}/cells")]
    service.outside_label(cells[0], "r1", "blast")
    refresh_stale_specimens(service.context)
    assert shown(service, specimen_id)["signature"]["differs"] == []
    assert "was signed as" not in today(service)
    for cell in cells:
        for reader in ("r2", "r3"):
            service.outside_label(cell, reader, "blast")
    refresh_stale_specimens(service.context)
    changed = {"group": "blasts", "at": 0.2, "signed": "open", "now": "above"}
    after = shown(service, specimen_id)
    assert (after["state"], after["signature"]["differs"]) == ("signed", [changed])
    said = "S-1: blasts at 20% was signed as open, and is above now."
    assert needs(today(service))[said] == f"/specimens/{specimen_id}"
    assert "was signed as" not in today(service, "other")
    fields = {"version": after["version"], "amends": 1, "reason": "more labels"}
    assert sign(service, other, specimen_id, **fields).status_code == 201
    for who in ("admin", "other"):
        assert "was signed as" not in today(service, who)
    assert [row["differs"] for row in signatures(service, specimen_id)] == [[], [changed]]
    assert not service.faults()


@pytest.mark.slow
@pytest.mark.ci
def test_a_person_of_single_sign_on_signs_after_a_fresh_sign_in(service: Service, provider: OpenIdProvider) -> None:
    specimen_id = specimen_with_cells(service)
    with service.context.database.write() as session:
        auth.link_subject(session, service.context.keys.audit, "admin", f"{provider.issuer} lead-1")
    provider.subject = "lead-1"

    def signed_in(path: str, **spoil: object) -> dict[str, str]:
        provider.spoil = spoil
        answer = go(service, provider, path)
        fresh = path != "/login/oidc"
        assert answer.headers["location"] == (f"/specimens/{specimen_id}" if fresh else "/today")
        asked = (provider.asked.get("prompt"), provider.asked.get("max_age"))
        assert asked == (("login", "0") if fresh else (None, None))
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in answer.cookies.items() if value)}

    fresh = f"/login/oidc?specimen={specimen_id}"
    now = int(time.time())
    for path, spoil in (
        ("/login/oidc", {}),
        (fresh, {"auth_time": None}),
        (fresh, {"auth_time": now - 301}),
        (fresh, {"auth_time": now + 3600}),
        (fresh, {"auth_time": 1000 * now}),  # in milliseconds, as some providers tell it
    ):
        refused = sign(service, signed_in(path, **spoil), specimen_id, password=None)
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (403, "sign-in-too-old")
        assert "sign in again at your provider" in refused.json()["detail"]
    cookie = signed_in(fresh)
    assert sign(service, cookie, specimen_id).status_code == 403  # a password that the account does not have
    with service.clock.off_by(timedelta(minutes=6)):  # it expired in between
        assert sign(service, cookie, specimen_id, password=None).status_code == 403
    assert signatures(service, specimen_id) == []
    signed = sign(service, signed_in(fresh), specimen_id, password=None)
    assert (signed.status_code, signed.json().get("by")) == (201, "admin")
    assert not service.faults()


@pytest.mark.parametrize("specimen", ["https://elsewhere.example", "//elsewhere.example", "x"])
def test_a_fresh_sign_in_leads_to_no_other_address(service: Service, provider: OpenIdProvider, specimen: str) -> None:
    assert service.client.get("/login/oidc", params={"specimen": specimen}).status_code == 422
