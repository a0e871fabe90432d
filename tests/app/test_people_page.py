"""People as a table: last sign-in, agreement with its interval, long names, search, and a question before a lockout."""

import re
import uuid

import pytest
from sqlalchemy import select

from app.database.tables import Account, BrowserSession, utc_now
from tests.app.test_own_reading import Clock, next_week, read_by_two, reading, twice
from tests.support.service import Service

__all__ = ["next_week"]


def account_id(service: Service, name: str) -> uuid.UUID:
    with service.context.database.read() as session:
        return session.execute(select(Account.id).where(Account.name == name)).scalar_one()


@pytest.mark.both_databases
def test_the_table_has_everybody_with_their_last_sign_in_and_finds_names(service: Service) -> None:
    long = "x" * 100
    for name in (long, "Ödön"):
        assert service.call("admin", "POST", "/people", data={"name": name, "role": "annotator"}).status_code == 200
    with service.context.database.write() as session:
        row = session.execute(select(Account).where(Account.name == "ben")).scalar_one()
        session.add(BrowserSession(account_id=row.id, token_sha256="0" * 64, seen_at=utc_now()))
    page = service.get("admin", "/people").text
    rows = dict(re.findall(r'<tr data-text="([^"]+)">(.*?)</tr>', page, re.DOTALL))
    assert set(rows) == {"admin", "viewer", "anna", "ben", "outside", long, "Ödön"}
    assert "<time" in rows["ben"]
    assert "never" in rows["anna"]
    assert "by keys only" in rows["outside"]
    found = service.get("admin", "/people", params={"search": "öD"}).text
    assert re.findall(r'data-text="([^"]+)"', found) == ["Ödön"]


def test_nobody_is_locked_out_by_one_click(service: Service) -> None:
    ben = account_id(service, "ben")
    page = service.get("admin", f"/people/{ben}").text
    assert re.search(r"<details><summary>Let in no more</summary>.*Yes, let them in no more", page, re.DOTALL)
    assert service.call("admin", "POST", f"/people/{ben}/state", data={"disabled": "true"}).status_code == 200
    page = service.get("admin", f"/people/{ben}").text
    assert "let in no more since" in page
    assert "Let in again" in page
    assert "let in no more" in service.get("admin", "/people").text
    me = service.get("admin", f"/people/{account_id(service, 'admin')}").text
    assert "This is you" in me
    assert service.get("admin", f"/people/{uuid.uuid4()}").status_code == 422


def test_what_is_wrong_with_a_new_account_or_key_stands_beside_the_field(service: Service) -> None:
    page = service.call("admin", "POST", "/people", data={"name": "ben", "role": "viewer"})
    assert page.status_code == 422
    assert 'id="name-fault"' in page.text
    assert "An account of this name exists." in page.text
    assert 'value="ben"' in page.text
    page = service.call("admin", "POST", f"/people/{account_id(service, 'outside')}/keys", data={"days": "soon"})
    assert page.status_code == 422
    assert 'id="days-fault"' in page.text
    page = service.call("admin", "POST", f"/people/{account_id(service, 'ben')}/keys", data={"scopes": ["predict"]})
    assert 'id="scopes-fault"' in page.text


def test_the_agreement_is_that_of_each_annotators_own_page(service: Service, next_week: Clock) -> None:
    twice(service)
    read_by_two(service, 13)
    next_week()
    own = reading(service, "admin", "anna")["agreement"]
    assert own["n"] == 10
    shown = f'{100 * own["value"]:.0f} % <span class="muted">({100 * own["low"]:.0f} to {100 * own["high"]:.0f};'
    assert shown in service.get("admin", "/people").text
    assert shown in service.get("admin", f"/people/{account_id(service, 'anna')}").text
