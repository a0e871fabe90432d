"""A label of an account's person enters only through a read that this person holds, whoever uses the browser."""

import re
import uuid

import pytest
from sqlalchemy import select

from app.audit.chain.keys import KeyRing, derive_keys
from app.database.tables import Annotator, Label
from app.http.errors import NotFound
from app.http.principal import Principal
from app.web.forms import OtherAccount, account_handle, read_handle, read_of_handle
from tests.app.test_leases import all_once, all_twice, classes_of, commit, expire_all, lease, requests_of
from tests.app.test_people import first_password
from tests.support.service import Service

both_databases = pytest.mark.both_databases


def labels(service: Service) -> list[tuple[str, str | None]]:
    """Annotator and class of every label."""
    with service.context.database.read() as session:
        rows = session.execute(select(Annotator.name, Label.class_code).join(Label, Label.annotator_id == Annotator.id))
        return [(row[0], row[1]) for row in rows]


def answer_form(service: Service, cookie: dict[str, str], case_id: str) -> str:
    """Address to which the form of an open read page is sent."""
    shown = service.client.get(f"/cases/{case_id}", headers=cookie | {"Accept": "text/html"}).text
    found = re.search(r'action="(/reads/[^"]+/label)"', shown)
    assert found is not None, shown
    return found[1]


def submit(service: Service, cookie: dict[str, str], path: str, **form: str) -> tuple[int, str]:
    """Status of a form that a script sent, and the type of the problem."""
    answer = service.client.post(path, data=form, headers=cookie | {"Accept": "application/json"})
    return answer.status_code, answer.json()["type"].split(":")[-1] if answer.content else ""


@both_databases
def test_nobody_labels_a_case_of_their_own_choice(service: Service) -> None:
    all_twice(service)
    case, code = service.add_case(), classes_of(service)[0]
    for _ in range(2):  # without a read, and next to one
        answer = service.label("anna", case["id"], code)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:secondread:problem:forbidden")
        service.lease_on("anna", case["id"])
    assert labels(service) == []
    assert service.answer("anna", case["id"], code).status_code == 201
    assert labels(service) == [("anna", code)]


@both_databases
@pytest.mark.parametrize("reason", ["know_this_case", "cannot_tell"])
def test_declined_means_declined_by_every_way_to_a_label(service: Service, reason: str) -> None:
    all_once(service)
    case, code = service.add_case(), classes_of(service)[0]
    cookie = first_password(service, "anna")
    earlier = lease(service, "anna")
    assert earlier is not None
    forms = [answer_form(service, cookie, case["id"])]
    expire_all(service)
    read = lease(service, "anna")  # the same case again, as another read
    assert read is not None
    assert read["id"] != earlier["id"]
    forms.append(answer_form(service, cookie, case["id"]))
    assert service.post("anna", f"/v1/reads/{read['id']}/decline", json={"reason": reason}).status_code == 200
    for one in (earlier, read):
        assert service.call("anna", "PATCH", f"/v1/reads/{one['id']}").status_code == 409
        assert commit(service, "anna", one, code).json()["type"].endswith("lease-lost")
    for form in forms:
        assert submit(service, cookie, form, label=code) == (409, "lease-lost")
    assert service.label("anna", case["id"], code).status_code == 403
    assert lease(service, "anna") is None
    assert labels(service) == []
    assert requests_of(service, case["id"])[0].state == ("closed" if reason == "cannot_tell" else "open")


@pytest.mark.slow_on_second_database
@both_databases
@pytest.mark.parametrize("also_reading", [False, True])
def test_the_form_of_one_person_is_never_stored_under_another(service: Service, also_reading: bool) -> None:
    """Two people in one browser: the page is anna's, and ben is signed in when it is sent."""
    all_twice(service)
    case, codes = service.add_case(), classes_of(service)
    anna, ben = first_password(service, "anna"), first_password(service, "ben")
    service.lease_on("anna", case["id"])
    form = answer_form(service, anna, case["id"])
    if also_reading:
        service.lease_on("ben", case["id"])
    for tail in ("label", "decline", "release"):
        path = form.replace("/label", f"/{tail}")
        fields = {"label": codes[0], "reason": "other", "form_key": "k"}
        assert submit(service, ben, path, **fields) == (403, "other-account")
    assert submit(service, {}, form, label=codes[0]) == (401, "unauthenticated")
    assert labels(service) == []
    assert [read["state"] for read in service.get("anna", "/v1/reads").json()["items"]] == ["leased"]
    assert submit(service, anna, form, label=codes[0]) == (204, "")
    assert labels(service) == [("anna", codes[0])]
    if also_reading:
        assert submit(service, ben, answer_form(service, ben, case["id"]), label=codes[1]) == (204, "")
        assert sorted(labels(service)) == [("anna", codes[0]), ("ben", codes[1])]


@both_databases
def test_a_form_that_is_sent_again_stores_nothing_and_another_class_is_refused(service: Service) -> None:
    """A browser keeps only the class of an answer: what comes again may lack the note."""
    case, codes = service.add_case(), classes_of(service)
    anna = first_password(service, "anna")
    service.lease_on("anna", case["id"])
    form = answer_form(service, anna, case["id"])
    assert submit(service, anna, form) == (422, "invalid")
    assert submit(service, anna, form, label=codes[0], note="clear", confidence="0.9") == (204, "")
    assert submit(service, anna, form, label=codes[0]) == (204, "")
    assert submit(service, anna, form, label=codes[1]) == (409, "already-labelled")
    assert labels(service) == [("anna", codes[0])]


@both_databases
def test_a_form_with_a_key_is_done_once_and_the_key_is_of_its_request(service: Service) -> None:
    case, anna = service.add_case(), first_password(service, "anna")
    service.lease_on("anna", case["id"])
    form = answer_form(service, anna, case["id"]).replace("/label", "/decline")
    assert submit(service, anna, form, reason="other") == (422, "invalid")
    for _ in range(2):
        assert submit(service, anna, form, reason="other", form_key="k") == (204, "")
    assert submit(service, anna, form, reason="cannot_tell", form_key="k") == (422, "idempotency-key-reused")
    assert submit(service, anna, form, reason="other", form_key="l") == (409, "lease-lost")
    admin = first_password(service, "admin")
    decision = {"kind": "qualified", "reason": "known to read well", "form_key": "k"}
    path = "/practice/decisions"
    for _ in range(2):
        data = {"name": "anna", **decision}
        assert service.client.post(path, data=data, headers=admin, follow_redirects=False).status_code == 303
    assert submit(service, admin, path, name="ben", **decision) == (422, "idempotency-key-reused")


def test_the_page_of_a_case_without_a_read_has_no_form(service: Service) -> None:
    case, anna = service.add_case(), first_password(service, "anna")
    shown = service.client.get(f"/cases/{case['id']}", headers=anna | {"Accept": "text/html"}).text
    assert "This case is not with you" in shown
    assert "/reads/next" in shown
    assert re.findall(r"/reads/[^\"]+/(label|decline|release)", shown) == []


def test_a_handle_is_of_one_account_and_one_read() -> None:
    key, another = (derive_keys(KeyRing.parse(secret * 32)).readers for secret in (b"s", b"t"))
    read = uuid.uuid4()
    anna, ben = (Principal(uuid.uuid4(), name, "annotator", frozenset()) for name in ("anna", "ben"))
    handle = read_handle(key, anna.account_id, read)
    assert read_of_handle(key, anna, handle) == read
    assert account_handle(key, anna.account_id) != account_handle(key, ben.account_id)
    other_read = f"{uuid.uuid4().hex}.{handle.split('.')[1]}"
    cases = [(ben, key, handle), (anna, another, handle), (anna, key, other_read)]
    for who, used, wrong in cases:
        with pytest.raises(OtherAccount):
            read_of_handle(used, who, wrong)
    for wrong in ("", "x", handle[:-1], handle + "\n", handle.upper(), str(read)):
        with pytest.raises(NotFound):
            read_of_handle(key, anna, wrong)
