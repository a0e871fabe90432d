"""Requests that meet: what each event says of its rows is what is stored, whoever was faster."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select

from app.accounts import people as auth
from app.audit.verify import check_audit
from app.database.tables import Account
from tests.support.service import Service, cell_png

ROUNDS = 6


def reader(service: Service, who: str) -> Callable[[int], None]:
    """Leases, answers, declines and gives back, as they come."""

    def read(number: int) -> None:
        answer = service.post(who, "/v1/reads")
        if answer.status_code != 201:
            return
        lease = answer.json()
        path = f"/v1/reads/{lease['id']}"
        if number % 3 == 0:
            service.post(who, f"{path}/decline", json={"reason": "cannot_tell", "note": "dark"})
        elif number % 3 == 1:
            service.call(who, "PATCH", path)
            service.call(who, "DELETE", path)
        else:
            service.post(who, f"{path}/labels", json={"label": lease["classes"][number % 3]["code"]})

    return read


@pytest.mark.both_databases
def test_every_row_is_proven_after_requests_that_met(service: Service) -> None:
    service.before_change = lambda: None
    for number in range(10):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number}")

    def store(number: int) -> None:
        case = service.upload(f"new-{number}", cell_png(20 + number), patient=f"p{number}").json()
        service.label("outside", case["id"], case["prediction"]["classes"][0], annotator="reader", blind=True)

    def keys(number: int) -> None:
        with service.context.database.write() as session:
            key, _ = auth.add_key(session, service.context.keys.audit, "viewer", [])
            auth.revoke_key(session, service.context.keys.audit, key.id)

    works = [
        reader(service, "anna"),
        reader(service, "ben"),
        store,
        keys,
    ]
    with ThreadPoolExecutor(len(works)) as pool:
        list(pool.map(lambda job: job[0](job[1]), [(work, number) for number in range(ROUNDS) for work in works]))
    with service.context.database.read_moment() as session:
        assert check_audit(session, service.context.keys.audit).faults == []


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_two_transactions_that_change_different_columns_of_a_row_leave_what_is_stored(service: Service) -> None:
    """The second one had read the row before the first one changed it."""
    named = select(Account).where(Account.name == "anna")
    service.written_past = True
    with service.context.database.write() as second:
        slow = second.execute(named).scalar_one()
        with service.context.database.write() as first:
            first.execute(named).scalar_one().one_time_sha256 = "1" * 64
        slow.oidc_subject = "issuer anna"
    with service.context.database.read_moment() as session:
        assert check_audit(session, service.context.keys.audit).faults == []
