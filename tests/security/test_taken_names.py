"""An outside system labels under no name of an account, nor under one that looks like it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from app.accounts import people
from app.accounts import service as accounts
from app.database.tables import Annotator
from app.http.errors import Problem
from tests.app.test_leases import all_once, classes_of, commit, lease
from tests.support.sabotage import undone
from tests.support.service import Service

pytestmark = pytest.mark.both_databases
#: Spellings of "anna": other case, spaces, decomposed, a Cyrillic letter, a joiner without width.
SPELLINGS = ("anna", "Anna", "ANNA", "anna ", " anna", "\u0430nna", "ann\u200da", "anna\u00a0")


def label_as(service: Service, case_id: str, name: str) -> tuple[int, str]:
    body = {"label": classes_of(service)[0], "annotator": name, "blind": True}
    answer = service.post("outside", f"/v1/cases/{case_id}/labels", json=body)
    return answer.status_code, answer.json().get("detail", "")


def names(service: Service) -> list[str]:
    with service.context.database.read() as session:
        return sorted(session.execute(select(Annotator.name).where(Annotator.account_id.is_(None))).scalars())


@undone(
    "T26",
    "no outside system labels under a name that looks like an account's",
    people,
    "look_alike",
    lambda *_: False,
)
def test_no_spelling_of_an_account_that_has_not_read_yet_is_taken(service: Service) -> None:
    all_once(service)
    case = service.add_case()["id"]
    for name in (*SPELLINGS, "admin", "Outside"):
        status, detail = label_as(service, case, name)
        assert (status, "has an account here" in detail or "looks like" in detail) == (403, True), (name, detail)
    assert names(service) == []
    read = lease(service, "anna")
    assert read is not None
    assert commit(service, "anna", read, classes_of(service)[0]).status_code == 201


def test_spellings_of_an_outside_annotator_are_one(service: Service) -> None:
    cases = [service.add_case(f"case {number}")["id"] for number in range(3)]
    for case, name in zip(cases, ("Dr. Zo\u00eb", "dr. zoe\u0308", " DR. ZO\u00cb "), strict=True):
        assert label_as(service, case, name)[0] == 201
    assert names(service) == ["Dr. Zo\u00eb"]
    assert label_as(service, cases[0], " ")[0] == 422


def test_no_account_gets_the_name_of_an_outside_annotator(service: Service) -> None:
    assert label_as(service, service.add_case()["id"], "cleo")[0] == 201
    for name in ("cleo", "Cleo", "cl\u0435o"):
        with service.context.database.write() as session, pytest.raises(Problem, match="gives labels under the name"):
            accounts.add_account(session, service.context.keys.audit, name, "annotator")
    for name in ("Anna", "\u0430nna"):
        with service.context.database.write() as session, pytest.raises(Problem, match=r"exists|looks like"):
            accounts.add_account(session, service.context.keys.audit, name, "viewer")


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
