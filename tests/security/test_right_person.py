"""A label of an account's person enters only through a read that this person holds, in time and under their name."""

import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select, update

from app.accounts import people
from app.accounts import service as accounts
from app.audit.chain.keys import KeyRing, derive_keys
from app.cases.blindness import record_exposure
from app.database.tables import Annotator, Label, Read
from app.http.errors import NotFound, Problem
from app.http.principal import Principal
from app.labels import leases
from app.metrics.queries import blind_labels
from app.web.forms import OtherAccount, account_handle, read_handle, read_of_handle
from tests.app.test_leases import (
    all_once,
    all_twice,
    classes_of,
    commit,
    expire_all,
    lease,
    read_next,
    requests_of,
    set_policy,
)
from tests.app.test_people import first_password
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

both_databases = pytest.mark.both_databases


def labels(service: Service) -> list[tuple[str, str | None]]:
    """Annotator and class of every label."""
    named = select(Annotator.name, Label.class_code).join(Label, Label.annotator_id == Annotator.id)
    return [(row[0], row[1]) for row in service.rows(named.order_by(Label.id))]


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


@pytest.mark.slow_on_second_database
@both_databases
@pytest.mark.parametrize("reason", ["know_this_case", "cannot_tell"])
def test_declined_means_declined_by_every_way_to_a_label(service: Service, reason: str) -> None:
    all_once(service)
    case, code = service.add_case(), classes_of(service)[0]
    cookie = first_password(service, "anna")
    earlier = read_next(service, "anna")
    forms = [answer_form(service, cookie, case["id"])]
    expire_all(service)
    read = read_next(service, "anna")  # the same case again, as another read
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


def test_the_page_of_a_case_without_a_read_has_no_form(service: Service) -> None:
    case, anna = service.add_case(), first_password(service, "anna")
    shown = service.client.get(f"/cases/{case['id']}", headers=anna | {"Accept": "text/html"}).text
    assert "This cell is not assigned to you" in shown
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


def lost(service: Service) -> tuple[dict[str, Any], dict[str, Any]]:
    """A read of anna's that ran out, and ben's of the same request."""
    case = service.add_case()
    read = read_next(service, "anna")
    expire_all(service)
    other = read_next(service, "ben")
    assert service.case_of("ben", other["case_id"]) == service.case_of("anna", read["case_id"]) == case["id"]
    return read, other


def judging(service: Service) -> list[tuple[str, str]]:
    """Annotator and class of every label that may judge or fit."""
    return [(row[1], row[2]) for row in service.rows(blind_labels(("planned", "adjudication")))]


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
    again = read_next(service, "anna")  # the second planned read of the case
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    assert (label["late"], label["round"]) == (False, "planned")
    assert service.get("anna", f"/v1/reads/{again['id']}").json()["state"] == "committed"
    assert len(judging(service)) == 1


@pytest.mark.parametrize("how", ["decline", "release"])
def test_who_gave_the_case_back_is_not_asked_any_more(service: Service, how: str) -> None:
    all_once(service)
    service.add_case()
    read = read_next(service, "anna")
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
    assert re.search("This cell is not assigned to you", service.client.get(f"/cases/{case['id']}", **page).text)
    for _ in range(2):
        assert submit(service, cookie, form, label=codes[0]) == (204, "")
    assert submit(service, cookie, form, label=codes[1]) == (409, "already-labelled")
    assert labels(service) == [("anna", codes[0])]
    assert "saved as late" in service.client.get(f"/cases/{case['id']}", **page).text
    states = service.scalars(select(Read.state).order_by(Read.created_at))
    assert states == ["committed", "leased"]


@pytest.mark.both_databases
def test_an_annotator_leases_three_cases_at_most(service: Service) -> None:
    all_once(service)
    for number in range(5):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number}")
    reads = [read_next(service, "anna") for _ in range(3)]
    refused = service.post("anna", "/v1/reads", "k")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:secondread:problem:too-many-leases")
    assert lease(service, "ben") is not None
    assert commit(service, "anna", reads[1], classes_of(service)[0]).status_code == 201
    assert service.post("anna", "/v1/reads", "k").status_code == 201  # the refusal left the key free
    expire_all(service)
    assert [lease(service, "anna") is not None for _ in range(3)] == [True] * 3  # what ran out does not count


@undone("T19", "a lease ends however many heartbeats come", leases, "LONGEST_IN_LEASES", 10**6)
@pytest.mark.both_databases
def test_a_lease_ends_however_many_heartbeats_come(service: Service) -> None:
    all_once(service)
    service.add_case()
    read = read_next(service, "anna")
    for age, extended in ((5, True), (6, False), (7, False)):  # lease times since it began
        begun = datetime.now(UTC) - timedelta(seconds=age * 600)
        service.change(update(Read).values(created_at=begun))
        answer = service.call("anna", "PATCH", f"/v1/reads/{read['id']}")
        assert answer.status_code == 200
        assert (datetime.fromisoformat(answer.json()["expires_at"]) > datetime.now(UTC)) == extended
    again = read_next(service, "ben")
    assert service.case_of("ben", again["case_id"]) == service.case_of("anna", read["case_id"])


#: Spellings of "anna": other case, spaces, decomposed, a Cyrillic letter, a joiner without width.
SPELLINGS = ("anna", "Anna", "ANNA", "anna ", " anna", "\u0430nna", "ann\u200da", "anna\u00a0")


def label_as(service: Service, case_id: str, name: str) -> tuple[int, str]:
    body = {"label": classes_of(service)[0], "annotator": name, "blind": True}
    answer = service.post("outside", f"/v1/cases/{case_id}/labels", json=body)
    return answer.status_code, answer.json().get("detail", "")


def names(service: Service) -> list[str]:
    return sorted(service.scalars(select(Annotator.name).where(Annotator.account_id.is_(None))))


@undone(
    "T26", "no outside system labels under a name that looks like an account's", people, "look_alike", lambda *_: False
)
@pytest.mark.both_databases
def test_no_spelling_of_an_account_that_has_not_read_yet_is_taken(service: Service) -> None:
    all_once(service)
    case = service.add_case()["id"]
    for name in (*SPELLINGS, "admin", "Outside"):
        status, detail = label_as(service, case, name)
        assert (status, "has an account here" in detail or "looks like" in detail) == (403, True), (name, detail)
    assert names(service) == []
    read = read_next(service, "anna")
    assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201


@pytest.mark.both_databases
def test_spellings_of_an_outside_annotator_are_one(service: Service) -> None:
    cases = [service.add_case(f"case {number}")["id"] for number in range(3)]
    for case, name in zip(cases, ("Dr. Zo\u00eb", "dr. zoe\u0308", " DR. ZO\u00cb "), strict=True):
        assert label_as(service, case, name)[0] == 201
    assert names(service) == ["Dr. Zo\u00eb"]
    assert label_as(service, cases[0], " ")[0] == 422


@pytest.mark.both_databases
def test_no_account_gets_the_name_of_an_outside_annotator(service: Service) -> None:
    assert label_as(service, service.add_case()["id"], "cleo")[0] == 201
    for name in ("cleo", "Cleo", "cl\u0435o"):
        with service.context.database.write() as session, pytest.raises(Problem, match="uses the name"):
            accounts.add_account(session, service.context.keys.audit, name, "annotator")
    for name in ("Anna", "\u0430nna"):
        with service.context.database.write() as session, pytest.raises(Problem, match=r"exists|looks like"):
            accounts.add_account(session, service.context.keys.audit, name, "viewer")


@pytest.mark.both_databases
def test_of_an_account_and_an_outside_label_at_once_one_gets_the_name(service: Service) -> None:
    case = service.add_case()["id"]

    def add_account(name: str) -> bool:
        try:
            with service.context.database.write() as session:
                accounts.add_account(session, service.context.keys.audit, name, "annotator")
        except Problem:
            return False
        return True

    for number in range(6):
        name = f"person {chr(ord('a') + number)}"
        with ThreadPoolExecutor(2) as threads:
            account = threads.submit(add_account, name)
            label = threads.submit(label_as, service, case, name.upper())
            assert [account.result(), label.result()[0] == 201].count(True) == 1, name
