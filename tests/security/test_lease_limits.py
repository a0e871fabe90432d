"""How many cases one annotator may lease, for how long, and from when on their reading is timed."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update

from app.database.tables import Read
from app.labels import leases
from tests.app.test_leases import all_once, classes_of, commit, expire_all, lease
from tests.app.test_people import first_password
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

pytestmark = pytest.mark.both_databases


def test_an_annotator_leases_three_cases_at_most(service: Service) -> None:
    all_once(service)
    for number in range(5):
        service.add_case(f"case-{number}", cell_png(number), patient=f"p{number}")
    reads = [lease(service, "anna") for _ in range(3)]
    refused = service.post("anna", "/v1/reads", "k")
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:secondread:problem:too-many-leases")
    assert lease(service, "ben") is not None
    assert reads[1] is not None
    assert commit(service, "anna", reads[1], classes_of(service)[0]).status_code == 201
    assert service.post("anna", "/v1/reads", "k").status_code == 201  # the refusal left the key free
    expire_all(service)
    assert [lease(service, "anna") is not None for _ in range(3)] == [True] * 3  # what ran out does not count


@undone("T19", "a lease ends however many heartbeats come", leases, "LONGEST_IN_LEASES", 10**6)
def test_a_lease_ends_however_many_heartbeats_come(service: Service) -> None:
    all_once(service)
    service.add_case()
    read = lease(service, "anna")
    assert read is not None
    for age, extended in ((5, True), (6, False), (7, False)):  # lease times since it began
        begun = datetime.now(UTC) - timedelta(seconds=age * 600)
        with service.context.database.write() as session:
            session.execute(update(Read).values(created_at=begun))
        answer = service.call("anna", "PATCH", f"/v1/reads/{read['id']}")
        assert answer.status_code == 200
        assert (datetime.fromisoformat(answer.json()["expires_at"]) > datetime.now(UTC)) == extended
    again = lease(service, "ben")
    assert again is not None
    assert service.case_of("ben", again["case_id"]) == service.case_of("anna", read["case_id"])


def test_reading_time_runs_from_the_display(service: Service) -> None:
    all_once(service)
    case, cookie = service.add_case(), first_password(service, "anna")
    read = lease(service, "anna")
    assert read is not None
    with service.context.database.write() as session:
        session.execute(update(Read).values(created_at=datetime.now(UTC) - timedelta(seconds=300)))
    for _ in range(2):
        headers = cookie | {"Accept": "text/html"}
        assert service.client.get(f"/cases/{case['id']}", headers=headers).status_code == 200
    with service.context.database.read() as session:
        shown = session.execute(select(Read.displayed_at)).scalar_one()
    assert shown is not None
    label = commit(service, "anna", read, classes_of(service)[0]).json()["label"]
    elapsed = (datetime.fromisoformat(label["created_at"]) - shown).total_seconds()
    assert label["reading_seconds"] == pytest.approx(elapsed, abs=1)
    assert label["reading_seconds"] < 250
