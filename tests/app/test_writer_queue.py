"""Writers of one process take turns on SQLite, in the order in which they came; on PostgreSQL two starts at once."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.audit.chain.keys import AuditKeys, KeyRing, derive_keys
from app.audit.installation import claim_database, require_keys
from app.database import engine as database_module
from app.database.engine import Database, write_with_retry
from app.database.migration import upgrade_schema
from app.database.tables import AuditEvent, Installation
from app.http.errors import ServiceUnavailable
from tests.support.postgres import PostgresServer
from tests.support.process import free_port
from tests.support.waiting import patient

_Open = Callable[..., Database]


@pytest.fixture
def opened() -> Iterator[_Open]:
    """Makes databases, and closes their connections when the test has ended, as a failed one does too."""
    made: list[Database] = []

    def make(url: str, keys: AuditKeys | None = None) -> Database:
        made.append(Database(url, keys))
        return made[-1]

    yield make
    for database in made:
        database.engine.dispose()


@pytest.fixture
def on_disk(tmp_path: Path, opened: _Open) -> Database:
    database = opened(f"sqlite:///{tmp_path / 'some.db'}")
    upgrade_schema(database.engine)
    return database


def test_writers_wait_for_each_other_before_they_ask_the_database(on_disk: Database) -> None:
    """With no patience of SQLite's own nobody meets a lock."""
    on_disk.engine.dispose()
    event.listen(on_disk.engine, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout=0"))
    failed: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(5):
                with on_disk.write() as session:
                    session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
                    time.sleep(0.005)
        except Exception as exc:  # reported below
            failed.append(exc)

    before = head_keys(on_disk)
    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert head_keys(on_disk) == before + 20


def head_keys(database: Database) -> int:
    with database.read() as session:
        return int(session.execute(text("SELECT n_keys FROM audit_head")).scalar_one())


def test_a_turn_ends_with_the_transaction_and_not_with_the_session(on_disk: Database) -> None:
    before = head_keys(on_disk)
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        session.rollback()  # as before a password is hashed
        with on_disk.write() as other:
            other.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    with pytest.raises(OperationalError), on_disk.write() as session:
        session.execute(text("UPDATE no_such_table SET n_keys = n_keys + 1"))
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    assert head_keys(on_disk) == before + 3


def test_a_writer_who_never_ends_is_told_of_as_a_lock_is(
    tmp_path: Path, opened: _Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    database = opened(f"sqlite:///{tmp_path / 'some.db'}")
    upgrade_schema(database.engine)
    before = head_keys(database)
    with database.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
        with pytest.raises(OperationalError, match="database is locked"), database.write() as other:
            other.execute(text("UPDATE audit_head SET n_keys = n_keys + 1"))
    assert head_keys(database) == before + 1


def test_two_starts_at_once_write_one_baseline(postgres: PostgresServer, opened: _Open) -> None:
    keys = derive_keys(KeyRing.parse(b"the same key in each of these processes")).audit
    url = postgres.url(postgres.create())
    empty = opened(url)
    upgrade_schema(empty.engine)
    empty.engine.dispose()
    databases, together, failed = [opened(url, keys) for _ in range(2)], threading.Barrier(2), list[Exception]()

    def start(database: Database) -> None:
        together.wait(patient(20))
        try:
            claim_database(database, keys)
        except Exception as exc:  # reported below
            failed.append(exc)

    threads = [threading.Thread(target=start, args=(database,)) for database in databases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with databases[0].read() as session:
        assert session.execute(select(func.count()).select_from(Installation)).scalar_one() == 1
        written = select(func.count()).select_from(AuditEvent).where(AuditEvent.action == "rows.baseline")
        assert session.execute(written).scalar_one() == 1


@pytest.mark.both_databases
def test_a_start_waits_for_one_that_writes_for_longer_than_a_lock_is_waited_for(
    database_url: str, opened: _Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a machine is busy."""
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.1)
    monkeypatch.setitem(database_module.POSTGRES_SETTINGS, "lock_timeout", "100")
    keys = derive_keys(KeyRing.parse(b"the same key in each of these processes")).audit
    first, second = opened(database_url, keys), opened(database_url, keys)
    upgrade_schema(first.engine)
    waits, told, failed = threading.Event(), list[str](), list[Exception]()

    def say(line: str) -> None:
        told.append(line)
        waits.set()

    def start() -> None:
        try:
            claim_database(second, keys, say)
        except Exception as exc:  # reported below
            failed.append(exc)
        waits.set()

    thread = threading.Thread(target=start)
    with first.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys"))
        thread.start()
        assert waits.wait(patient(20))
    thread.join()
    assert failed == []
    assert told[0] == "waiting: another process, perhaps one that is starting too, is writing to the database"
    assert require_keys(second, keys)


def test_a_database_that_is_away_is_waited_for_by_nobody(opened: _Open) -> None:
    away, told = opened(f"postgresql+psycopg://nobody@127.0.0.1:{free_port()}/none"), list[str]()
    with pytest.raises(OperationalError, match="connection failed"):
        write_with_retry(away, lambda session: session.execute(text("SELECT 1")), "others are writing", told.append)
    assert told == []


def test_own_work_that_takes_too_long_is_no_waiting_for_others(
    postgres: PostgresServer, opened: _Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Done again and again, it would keep all writers waiting."""
    monkeypatch.setitem(database_module.POSTGRES_SETTINGS, "statement_timeout", "100")
    database, told = opened(postgres.url(postgres.create())), list[str]()

    def work(session: Session) -> None:
        session.execute(text("SELECT pg_sleep(30)"))

    with pytest.raises(OperationalError, match="statement timeout"):
        write_with_retry(database, work, "others are writing", told.append)
    assert told == []


def test_patience_ends(on_disk: Database, opened: _Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_module, "_PATIENCE", 0.0)
    monkeypatch.setattr(database_module, "BUSY_SECONDS", 0.05)
    other = opened(str(on_disk.engine.url))
    with on_disk.write() as session:
        session.execute(text("UPDATE audit_head SET n_keys = n_keys"))
        with pytest.raises(ServiceUnavailable, match="for too long; try again shortly"):
            write_with_retry(other, lambda writing: writing.execute(text("SELECT 1")), "others are writing")
