"""The API through PgBouncer in transaction mode: everything works, and the time-outs hold."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import event, text

from app.context import build_context
from app.database.engine import POSTGRES_SETTINGS, Database, _begin_postgres
from app.jobs.executor import ENGINE_CONNECTIONS
from app.settings import Settings
from tests.app.conftest import Template, _running, _settings
from tests.app.test_leases import all_once, classes_of
from tests.conftest import missing
from tests.support.jobs import work_off
from tests.support.pooler import find_pgbouncer, pooler
from tests.support.postgres import PostgresServer
from tests.support.service import Service, cell_png

POOL, READERS = 3, 8
_TIMEOUTS = [name for name in POSTGRES_SETTINGS if name.endswith("timeout")]


@pytest.fixture
def pooled(
    postgres: PostgresServer, postgres_served: Template, tmp_path: Path
) -> Iterator[tuple[Service, PostgresServer]]:
    """A service that reaches its database through a pooler with few connections, and the database's server."""
    program = find_pgbouncer()
    if program is None:
        missing("PgBouncer (Debian package pgbouncer)")
    assert program is not None
    name = postgres.create(postgres_served.database)
    with pooler(program, postgres, POOL) as port:
        settings = _settings(tmp_path, f"postgresql+psycopg://postgres@127.0.0.1:{port}/{name}")
        settings = settings.model_copy(update={"database_direct_url": postgres.url(name)})
        with _running(settings, postgres_served) as service:
            yield service, postgres


@pytest.mark.slow
def test_the_api_works_through_a_pooler_in_transaction_mode(pooled: tuple[Service, PostgresServer]) -> None:
    service, _ = pooled
    all_once(service)
    codes = classes_of(service)

    def works(number: int) -> tuple[int, ...]:
        stored = service.upload(f"case {number}", cell_png(number)).status_code
        case = service.get("viewer", "/v1/cases", params={"external_id": f"case {number}"}).json()["items"][0]["id"]
        label = service.label("outside", case, codes[number % 2], annotator=f"r{number % 3}", blind=True).status_code
        return stored, label, service.get("viewer", "/v1/metrics", params={"partition": "all"}).status_code

    with ThreadPoolExecutor(READERS) as threads:
        answers = set(threads.map(works, range(2 * READERS)))
    assert answers == {(201, 201, 200)}
    assert service.get("viewer", "/v1/metrics", params={"partition": "all"}).json()["n_labels"] == 2 * READERS
    job = service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()
    settings = service.context.settings
    worker = build_context(settings.model_copy(update={"database_url": settings.database_direct_url}))
    work_off(worker)
    worker.database.engine.dispose()
    document = service.get("admin", f"/v1/evaluations/{job['id']}").json()
    assert document["state"] == "succeeded", document["error"]
    assert service.faults() == []


def test_time_outs_are_those_of_every_transaction_and_asserted(
    pooled: tuple[Service, PostgresServer],
) -> None:
    service, server = pooled
    url = service.context.database.engine.url
    plain = f"host=127.0.0.1 port={url.port} user=postgres dbname={url.database}"
    wanted = {name: POSTGRES_SETTINGS[name] for name in ("statement_timeout", "lock_timeout")}
    with psycopg.connect(plain, autocommit=True) as other:  # another client of the pooler has none of them
        assert other.execute("SELECT current_setting('statement_timeout')").fetchone() == ("0",)
    for begin in (service.context.database.read, service.context.database.write):
        with begin() as session:
            found = {
                name: session.execute(text(f"SELECT setting FROM pg_settings WHERE name = '{name}'")).scalar_one()
                for name in wanted
            }
            assert found == wanted
    assert service.get(None, "/readyz").json()["database"] == "ok"
    event.remove(service.context.database.engine, "begin", _begin_postgres)
    ready = service.get(None, "/readyz")
    assert (ready.status_code, ready.json()["database"]) == (
        503,
        "its time-outs are not in force: " + ", ".join(_TIMEOUTS),
    )
    assert server.port != url.port


def test_three_processes_fit_into_a_default_postgresql(postgres: PostgresServer) -> None:
    """Each with its pool of the service full, and the one of the job engine; three connections are superusers'."""
    name = postgres.create()
    engines = [Database(postgres.url(name)).engine for _ in range(3)]
    total = sum(engine.pool.size() + engine.pool._max_overflow for engine in engines)  # type: ignore[attr-defined]
    total += 3 * ENGINE_CONNECTIONS
    locks_and_listeners = 3 * 3
    assert total + locks_and_listeners <= 100 - 3
    for engine in engines:
        engine.dispose()


def test_owner_and_workers_go_past_the_pooler() -> None:
    settings = Settings(database_url="postgresql://pooler/x", database_direct_url="postgresql://server/x")
    assert settings.owner_sqlalchemy_url == settings.direct_sqlalchemy_url == "postgresql+psycopg://server/x"
