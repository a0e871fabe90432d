"""Reports from a streaming replica: nothing committed is missing, one moment is shown, and the primary stands in."""

import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from app.context import build_context
from app.evaluations.reading import read_columns
from app.evaluations.snapshots import current_columns, write_snapshot
from app.main import create_app
from app.platform import replica as replica_module
from app.platform.database import Database
from app.platform.installation import claim
from app.platform.migrate import upgrade
from app.platform.replica import READS, Reports
from app.releases.queries import champion, class_codes, existing_release
from app.settings import Settings
from app.tables import Case
from tests.support.postgres import PostgresServer
from tests.support.process import free_port
from tests.support.replica import Replica, replica_of
from tests.support.service import Service, add_people, cell_png, put_release, show_at_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow]
AUDIT = "/v1/audit-events?action=case.add&limit=1000"


@pytest.fixture(scope="module")
def replica(postgres: PostgresServer) -> Iterator[Replica]:
    with replica_of(postgres) as made:
        yield made


@pytest.fixture
def database_kind() -> str:
    return "postgresql"


@pytest.fixture(autouse=True)
def _as_patient_as_the_machine_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "WAIT_SECONDS", 30.0)
    monkeypatch.setattr(replica_module, "PAUSE_SECONDS", 0.0)


@pytest.fixture
def reading(settings: Settings, replica: Replica, tiny_release: Any) -> Iterator[Service]:
    """A service whose reports are read from the replica."""
    url = replica.url(str(settings.database_url).rpartition("/")[2])
    # a replica that is frozen must hang as long as it is
    settings = settings.model_copy(update={"database_read_url": f"{url}?connect_timeout=600"})
    context = build_context(settings)
    show_at_once(context.database)
    claim(context.database, context.keys.audit)
    with context.database.write() as session:
        put_release(session, context.keys.audit, tiny_release, settings.releases_folder)
    keys = add_people(context)
    context.database.engine.dispose()
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(client, app.state.context, keys)


def reads() -> dict[str, float]:
    return {name: READS.labels(name)._value.get() for name in ("replica", "primary")}


def reports_of(service: Service) -> Reports:
    reports: Reports = service.client.app.state.reports  # type: ignore[attr-defined]
    return reports


def n_added(service: Service) -> int:
    answer = service.get("admin", AUDIT)
    assert answer.status_code == 200, answer.text
    return len(answer.json()["items"])


def test_what_was_just_written_is_read_from_the_replica(reading: Service, replica: Replica) -> None:
    """Thirty times: without the wait some would come too soon."""
    name = str(reading.context.settings.database_url).rpartition("/")[2]
    before = reads()
    for number in range(30):
        reading.add_case(f"case-{number}", cell_png(number))
        assert n_added(reading) == number + 1
    assert reads() == {"replica": before["replica"] + 30, "primary": before["primary"]}
    assert replica.ask(f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name}'") > 0
    for path in ("/v1/metrics?weighting=none", "/v1/agreement", "/v1/evaluations", "/v1/reader-drift"):
        before = reads()["replica"]
        assert reading.get("admin", path).status_code == 200, path
        assert reads()["replica"] == before + 1, path


def test_one_that_is_behind_is_left_alone(reading: Service, replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    reading.add_case("case-1")
    assert n_added(reading) == 1
    with replica.behind():
        reading.add_case("case-2", cell_png(2))
        monkeypatch.setattr(replica_module, "WAIT_SECONDS", 0.05)
        before = reads()
        assert n_added(reading) == 2
        assert reads() == {"replica": before["replica"], "primary": before["primary"] + 1}
    monkeypatch.setattr(replica_module, "WAIT_SECONDS", 30.0)
    before = reads()
    assert n_added(reading) == 2
    assert reads()["replica"] == before["replica"] + 1


def test_a_snapshot_of_later_does_not_mix_into_what_a_replica_shows(reading: Service, replica: Replica) -> None:
    """Whoever reads a replica that is behind gets its own moment, though the snapshot on disk is newer."""
    context = reading.context
    with context.database.read() as session:
        release_id = champion(session).release_id
        classes = class_codes(existing_release(session, release_id))
    for number in range(3):
        reading.add_case(f"case-{number}", cell_png(number))
    assert n_added(reading) == 3
    there = Database(replica.url(str(context.settings.database_url).rpartition("/")[2]))
    try:
        with replica.behind():
            reading.add_case("case-3", cell_png(3))
            assert write_snapshot(context.database, context.folders, release_id, classes) == 4
            with there.read() as session:
                shown = current_columns(session, context.settings.home, release_id, classes)
                own = read_columns(session, release_id, classes)
            assert len(shown) == len(own) == 3
            assert sorted(shown.ids()) == sorted(own.ids())
            np.testing.assert_array_equal(np.sort(shown.cluster), np.sort(own.cluster))
    finally:
        there.engine.dispose()


def test_within_a_read_the_replica_shows_one_moment(reading: Service, replica: Replica) -> None:
    reports = reports_of(reading)
    with reports.read(reading.context.database) as session:
        before = session.execute(select(func.count()).select_from(Case)).scalar_one()
        reading.add_case("case-1")
        assert n_added(reading) == 1  # the replica has it
        assert session.execute(select(func.count()).select_from(Case)).scalar_one() == before


def test_without_it_reports_come_from_the_primary_and_back(reading: Service, replica: Replica) -> None:
    reading.add_case("case-1")
    assert n_added(reading) == 1
    replica.stop()
    try:
        before = reads()
        assert n_added(reading) == 1
        assert reading.get("viewer", "/v1/metrics?weighting=none").status_code == 200
        assert reads() == {"replica": before["replica"], "primary": before["primary"] + 2}
        warning = reports_of(reading).check_at_start(reading.context.database)
        assert str(warning).endswith("reports are read from the primary")
    finally:
        replica.start()
    before = reads()
    assert n_added(reading) == 1
    assert reads()["replica"] == before["replica"] + 1


def test_one_that_hangs_takes_no_more_than_its_places(reading: Service, replica: Replica) -> None:
    reading.add_case("case-1")
    assert n_added(reading) == 1
    found: list[int] = []
    waiting = [threading.Thread(target=lambda: found.append(n_added(reading))) for _ in range(replica_module.AT_ONCE)]
    reports = reports_of(reading)
    with replica.frozen():
        for thread in waiting:
            thread.start()
        wait_until(lambda: reports._places._value == 0)
        before = reads()["primary"]
        assert n_added(reading) == 1
        assert reads()["primary"] == before + 1
        assert reading.add_case("case-2", cell_png(2))
    for thread in waiting:
        thread.join()
    assert len(found) == len(waiting)
    assert reports._places._value == replica_module.AT_ONCE


def test_another_database_is_refused_and_never_read(
    reading: Service, postgres: PostgresServer, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of another installation at the start; one that takes writes is no replica, whatever its rows say."""
    primary = reading.context.database
    name = postgres.create()
    other = settings.model_copy(
        update={"database_url": postgres.url(name), "secret_key": None, "home": settings.home / "o"}
    )
    other.home.mkdir(parents=True)
    context = build_context(other)
    upgrade(context.database.engine)
    claim(context.database, context.keys.audit)
    context.database.engine.dispose()
    reports = Reports(postgres.url(name))
    with pytest.raises(
        ValueError, match="DATABASE_READ_URL: it is no replica of the database of SECONDREAD_DATABASE_URL"
    ):
        reports.check_at_start(primary)
    reports.close()
    itself = Reports(str(settings.database_url))
    monkeypatch.setattr(replica_module, "WAIT_SECONDS", 0.05)
    assert itself.check_at_start(primary) is None
    before = reads()
    with itself.read(primary) as session:
        assert session.get_bind() is primary.engine
    assert reads()["primary"] == before["primary"] + 1
    itself.close()


@pytest.mark.parametrize("urls", [(None, "postgresql://there/x"), ("postgresql://here/x", "sqlite:///x")])
def test_a_replica_is_one_of_postgresql(urls: tuple[str | None, str]) -> None:
    with pytest.raises(ValueError, match="DATABASE_READ_URL needs PostgreSQL there and in DATABASE_URL"):
        Settings(database_url=urls[0], database_read_url=urls[1])


def test_an_address_says_how_long_it_is_waited_for() -> None:
    url = f"postgresql+psycopg://postgres:secret@127.0.0.1:{free_port()}/x"
    reports = Reports(url)
    shown = str(reports._replica.engine.url)
    assert re.search(r"connect_timeout=2\b", shown)
    assert "secret" not in shown
    reports.close()
