"""Any column of any table, altered, deleted, inserted or swapped past the service: `db verify` finds it."""

import random
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, delete, event, insert, select, text, update
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.audit.chain import events, verify_proof
from app.audit.chain.covered_rows import COVERED, NOT_COVERED
from app.audit.verify import COMPLETE, CONSISTENT, IntegrityReport, check_audit, verify_all
from app.cases.blindness import record_exposure
from app.context import ServiceContext
from app.database.engine import Database, make_engine
from app.database.tables import APPEND_ONLY, Account, Annotator, BaseTable, CasePrediction, drop_triggers
from app.database.tables.annotators import ROLES
from app.database.tables.append_only import drop_replace_trigger
from app.database.tables.base import UtcDateTime
from app.database.tables.reads import ARMS, READ_STATES, REQUEST_STATES, REVEALS, RULES
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from app.releases.queries import get_champion_alias
from app.releases.service import move_alias
from tests.support.chain import all_events, relink
from tests.support.command import run_here
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png

#: Tables whose every column is covered although they are not in the list: the chain itself.
CHAIN = {"audit_events", "audit_head", "case_changes"}
_WORDS = (*ROLES, *ARMS, *READ_STATES, *REQUEST_STATES, *REVEALS, *RULES, "label", "planned", "adjudication", "passed")


def test_every_column_is_covered_or_has_its_reason() -> None:
    tables = BaseTable.metadata.tables
    assert set(COVERED) | set(NOT_COVERED) == set(tables)
    assert not set(COVERED) & set(NOT_COVERED)
    for name, coverage in COVERED.items():
        columns = set(tables[name].columns.keys())
        assert (coverage.private | set(coverage.free) | set(coverage.alike)) <= columns, name
        assert not coverage.private & set(coverage.free), name
    assert all([*NOT_COVERED.values(), *(reason for row in COVERED.values() for reason in row.free.values())])


def populate(service: Service) -> None:
    """Rows in every table that is covered."""
    service.before_change = lambda: None
    work(service)
    for _ in range(2):
        read = service.post("anna", "/v1/reads").json()
        body = {"label": read["classes"][0]["code"], "note": "seen"}
        assert service.post("anna", f"/v1/reads/{read['id']}/labels", json=body).status_code == 201
    read = service.post("anna", "/v1/reads").json()
    assert service.post("anna", f"/v1/reads/{read['id']}/decline", json={"reason": "cannot_tell"}).status_code == 200
    service.post("anna", "/v1/reads")
    assert service.settle(service.document("/v1/cases")["items"][0]["id"]).status_code == 201
    service.add_annotator("cleo")  # ben has left, and second reads need two
    changed = {"rule": "capacity", "capacity_per_day": 3, "audit_rate": 0.5, "reason": "by capacity"}
    assert service.post("admin", "/v1/policies", json=changed).status_code == 201
    with service.context.database.write() as session:
        account = session.execute(select(Account).where(Account.name == "anna")).scalar_one()
        token = auth.begin_session(session, service.context.keys.audit, account)
    with service.context.database.write() as session:
        auth.sign_out(session, token)
        reader = session.execute(select(Annotator.id).order_by(Annotator.id).limit(1)).scalar_one()
        case_id, release_id = session.execute(select(CasePrediction.case_id, CasePrediction.release_id).limit(1)).one()
        record_exposure(session, reader, case_id, release_id, None)
    case_id = service.add_case("of a day with a threshold")["id"]
    assert service.post("admin", f"/v1/cases/{case_id}/comments", json={"text": "here", "x": 0, "y": 1}).is_success
    assert service.post("admin", "/v1/invitations", json={"annotator": "guest", "cases": [case_id]}).is_success


@dataclass(frozen=True)
class Open:
    """A database into which somebody writes past the service, and the service that checks it."""

    service: Service
    engine: Engine

    @contextmanager
    def tampering(self) -> Iterator[Connection]:
        """What is written here is seen by `faults` and rolled back at the end."""
        with self.engine.connect() as connection, connection.begin() as transaction:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL session_replication_role = replica"))
            yield connection
            transaction.rollback()

    def faults(self, connection: Connection) -> list[str]:
        with Session(connection, join_transaction_mode="create_savepoint", autoflush=False) as session:
            return verify_all(session, self.service.context).faults


@contextmanager
def opened(service: Service) -> Iterator[Open]:
    """The database of a service without triggers and foreign keys, as its owner can have it."""
    database = service.context.database
    dialect = database.engine.dialect.name
    if dialect == "sqlite":
        with database.write() as session:
            for table in APPEND_ONLY:
                for statement in (*drop_triggers(dialect, table), drop_replace_trigger(table)):
                    session.execute(text(statement))
    engine = make_engine(database.engine.url.render_as_string(hide_password=False))
    if dialect == "sqlite":
        event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=OFF"))
    yield Open(replace_database(service, engine), engine)
    engine.dispose()


def replace_database(service: Service, engine: Engine) -> Service:
    database = Database("sqlite://")
    database.engine = engine
    return Service(service.client, replace(service.context, database=database), service.keys)


class Tamperer:
    """Changes a covered column of a random row, deletes a row, inserts one, or swaps a column of two."""

    def __init__(self, connection: Connection, seed: int) -> None:
        self.connection, self.random, self.seed = connection, random.Random(seed), seed

    def tamper(self) -> str:
        """Do it; what was done, in words."""
        while True:
            table = BaseTable.metadata.tables[self.random.choice(sorted({*COVERED, *CHAIN}))]
            rows = [dict(row) for row in self.connection.execute(select(table)).mappings()]
            if table.name in COVERED:
                rows = [row for row in rows if COVERED[table.name].covers(row)]
            kind = self.random.choice((self.alter, self.delete, self.insert, self.swap))
            if not rows:
                continue
            try:
                with self.connection.begin_nested():
                    done = kind(table, rows)
            except SQLAlchemyError:  # a constraint refuses it: try something else
                continue
            if done is not None:
                return f"seed {self.seed}: {done}"

    def _columns(self, table: SqlTable) -> list[Column[Any]]:
        free = COVERED[table.name].free if table.name in COVERED else {}
        return [column for column in table.columns if column.name not in free]

    def _set(self, table: SqlTable, row: dict[str, Any], values: dict[str, Any]) -> None:
        keys = [column == row[column.name] for column in table.primary_key.columns]
        assert self.connection.execute(update(table).where(*keys).values(values)).rowcount == 1

    def alter(self, table: SqlTable, rows: list[dict[str, Any]]) -> str | None:
        row, column = self.random.choice(rows), self.random.choice(self._columns(table))
        value = self._other(column, row[column.name], [other[column.name] for other in rows])
        if _same(table, column, value, row[column.name]):
            return None
        self._set(table, row, {column.name: value})
        return f"{table.name}.{column.name} {row[column.name]!r} -> {value!r}"

    def delete(self, table: SqlTable, rows: list[dict[str, Any]]) -> str:
        row = self.random.choice(rows)
        keys = [column == row[column.name] for column in table.primary_key.columns]
        assert self.connection.execute(delete(table).where(*keys)).rowcount == 1
        return f"{table.name}: {row} deleted"

    def insert(self, table: SqlTable, rows: list[dict[str, Any]]) -> str:
        row, columns = dict(self.random.choice(rows)), list(table.columns)
        unique = {column.name for column in columns if column.primary_key or column.unique}
        changed = unique | {column.name for column in self.random.sample(columns, self.random.randint(0, 2))}
        for name in changed:
            column = table.columns[name]
            row[name] = self._other(column, row[name], [other[name] for other in rows])
        self.connection.execute(insert(table).values(row))
        return f"{table.name}: {row} inserted"

    def swap(self, table: SqlTable, rows: list[dict[str, Any]]) -> str | None:
        column = self.random.choice([column for column in self._columns(table)])
        if len(rows) < 2 or column.primary_key or column.unique:
            return None
        one, two = self.random.sample(rows, 2)
        if _same(table, column, one[column.name], two[column.name]):
            return None
        self._set(table, one, {column.name: two[column.name]})
        self._set(table, two, {column.name: one[column.name]})
        return f"{table.name}.{column.name}: {one[column.name]!r} and {two[column.name]!r} swapped"

    def _other(self, column: Column[Any], value: Any, present: list[Any]) -> Any:
        """Another value of a column: of another row, none at all, or a slightly different one."""
        choices = [other for other in present if other != value]
        if choices and not (column.primary_key or column.unique) and self.random.random() < 0.3:
            return self.random.choice(choices)
        if column.nullable and value is not None and self.random.random() < 0.2:
            return None
        return self._near(column, value)

    def _near(self, column: Column[Any], value: Any) -> Any:
        kind = datetime if isinstance(column.type, UtcDateTime) else column.type.python_type
        if kind is uuid.UUID:
            return uuid.UUID(int=self.random.getrandbits(128))
        if kind is bool:
            return not value
        if kind is int:
            return (value or 0) + self.random.choice((1, -1, 1000))
        if kind is float:
            return self.random.random() if value is None else value * (1 - 2**-50) if value else 2.0**-40
        if kind is datetime:
            earlier = value or datetime.fromisoformat("2026-01-01T00:00:00+00:00")
            return earlier + timedelta(microseconds=self.random.choice((1, -1, 10**9)))
        if kind is bytes:
            return bytes([value[0] ^ 1]) + value[1:] if value else b"\1"
        if kind is str:
            return self.random.choice((f"{value or ''}x", *_WORDS))
        return _near_json(value)


def _near_json(value: Any) -> Any:
    if isinstance(value, list):
        return [*value[:-1], value[-1] + 2.0**-40] if value and isinstance(value[-1], float) else [*value, "manage"]
    return {**(value or {}), "added": "x"}


def _same(table: SqlTable, column: Column[Any], one: Any, two: Any) -> bool:
    alike = COVERED[table.name].alike.get(column.name) if table.name in COVERED else None
    return bool(alike(one) == alike(two) if alike is not None else one == two)


def unfound(service: Service, seeds: range) -> list[str]:
    """Changes that verification did not find."""
    populate(service)
    with opened(service) as database:
        with database.tampering() as connection:
            assert database.faults(connection) == []
        missed = []
        for seed in seeds:
            with database.tampering() as connection:
                done = Tamperer(connection, seed).tamper()
                if not database.faults(connection):
                    missed.append(done)
    return missed


@undone("T21", "a row that was altered is named", verify_proof.ProofChecker, "_take_row", lambda *_: None)
def test_forty_random_changes_past_the_service_are_found(service: Service) -> None:
    assert unfound(service, range(40)) == []


@pytest.mark.heavy
@pytest.mark.both_databases
def test_five_hundred_random_changes_past_the_service_are_found(service: Service) -> None:
    assert unfound(service, range(1000, 1500)) == []


_COPIED = ("created_at", "actor", "action", "object", "details", "reason", "request_id", "row_digests", "digest")


def faults(context: ServiceContext) -> list[str]:
    with context.database.read_moment() as session:
        return check_audit(session, context.keys.audit).faults


@pytest.mark.both_databases
@pytest.mark.parametrize(
    "changed",
    [{}, {"actor": "'somebody'"}, {"digest": "''"}, {"signature": "''"}],
    ids=["replayed", "forged", "without a digest", "without a signature"],
)
def test_an_event_that_is_there_once_more_is_named(service: Service, changed: dict[str, str]) -> None:
    """Somebody without the key brings a row back as it was, with the event that wrote it then."""
    context = service.context
    service.add_case()
    service.written_past = True
    with context.database.write() as session:
        last = len(all_events(session))
        columns = (*_COPIED, "signature")
        values = ", ".join(changed.get(name, name) for name in columns)
        copy = f"INSERT INTO audit_events (sequence, {', '.join(columns)}) SELECT {last + 1}, {values} "
        session.execute(text(f"{copy} FROM audit_events WHERE sequence = {last}"))
        session.execute(text("UPDATE audit_head SET sequence = sequence + 1"))
    assert faults(context)[0] == f"audit event {last + 1} was changed, or one before it was removed"
    service.add_case("after it", cell_png(2))
    assert len([fault for fault in faults(context) if "was changed" in fault]) >= 1


@undone("T21", "an event that was not signed with the key is named", verify_proof, "is_signed", lambda *_: True)
def test_an_event_less_is_named_although_digests_need_no_key(service: Service) -> None:
    """Somebody without the key takes an event out, and computes numbers and digests of the rest."""
    for number in range(3):
        service.add_case(f"case-{number}", cell_png(number))
    service.written_past = True
    with service.context.database.write() as session:
        dialect = session.get_bind().dialect.name
        for table in ("audit_events", "case_changes"):
            for statement in [*drop_triggers(dialect, table), *[drop_replace_trigger(table)] * (dialect == "sqlite")]:
                session.execute(text(statement))
        if dialect == "sqlite":
            session.execute(text("PRAGMA defer_foreign_keys = ON"))
        chain = all_events(session)
        gone = chain.pop(-2)
        session.execute(text("DELETE FROM case_changes WHERE sequence >= :n"), {"n": gone["sequence"]})
        session.execute(text("DELETE FROM audit_events WHERE sequence = :n"), {"n": gone["sequence"]})
        relink(session, chain, None)
    assert f"audit event {len(chain)} was changed, or one before it was removed" in faults(service.context)


def test_a_second_baseline_covers_nothing_up(service: Service) -> None:
    """Somebody with the key changes a row and writes its digest into another baseline."""
    service.add_case("a", cell_png(1))
    with service.context.database.write() as session:
        events.record_event(session, service.context.keys.audit, actor="x", action="rows.baseline", object_id="rows")
    with service.context.database.read() as session:
        (fault,) = verify_all(session, service.context).faults
    assert "is a baseline, and not the first event" in fault
    service.written_past = True


CLASSES = ("blast", "monocyte", "lymphocyte")


def verify(service: Service, against: str | None = None) -> IntegrityReport:
    with service.context.database.read() as session:
        return verify_all(session, service.context, against)


def work(service: Service) -> None:
    """A little of everything that leaves an event."""
    context = service.context
    for number in range(6):
        case = service.add_case(f"case-{number}", cell_png(number), patient=f"p{number // 2}", site="north")
        label = service.outside_label(case["id"], "reader", case["prediction"]["classes"][number % 3])
        if number == 1:
            service.post(
                "outside", f"/v1/labels/{label['label']['id']}/revisions", json={"label": "blast", "reason": "x"}
            )
    changed = {"rule": "disagreement", "threshold": 0.3, "audit_rate": 0.5, "reason": "more audits"}
    assert service.post("admin", "/v1/policies", json=changed).status_code == 201
    for number in range(6, 10):
        service.add_case(f"case-{number}", cell_png(number))
    with context.database.write() as session:
        key, _ = auth.add_key(session, context.keys.audit, "viewer", [])
        auth.revoke_key(session, context.keys.audit, key.id)
        auth.set_disabled(session, context.keys.audit, "ben", disabled=True)
        move_alias(session, context, "test", "challenger", get_champion_alias(session).release_id, "to compare", None)
        images = erase_patient_rows(session, context, "lead", ErasureTarget("p2"), "asked").images
    for digest in images:
        context.images.remove(digest)


@pytest.mark.both_databases
def test_what_the_service_wrote_is_explained_by_its_events(service: Service) -> None:
    work(service)
    report = verify(service)
    in_one_home = service.context.database.engine.dialect.name == "sqlite"  # database and heads
    assert (report.faults, report.verdict) == ([], CONSISTENT if in_one_home else COMPLETE)
    assert verify(service, report.head).verdict == COMPLETE
    service.add_case("later", cell_png(20))
    assert verify(service, report.head).verdict == COMPLETE


TAMPERS = {
    "classes": (
        "UPDATE labels SET class_code = 'monocyte' WHERE class_code <> 'monocyte'",
        r"^labels \S+: not as audit event",
    ),
    "blind": ("UPDATE labels SET blind = NOT blind", r"^labels \S+: not as audit event"),
    "round": ("UPDATE labels SET round = 'adjudication'", r"^labels \S+: not as audit event"),
    "late": ("UPDATE labels SET late = NOT late", r"^labels \S+: not as audit event"),
    "a label removed": ("DELETE FROM labels WHERE kind = 'revision'", r"^labels \S+: missing, although"),
    "partition": (
        "UPDATE cases SET partition = CASE partition WHEN 'calibration' THEN 'evaluation' ELSE 'calibration' END",
        "partition is not that of its patient",
    ),
    "coin": ("UPDATE cases SET u = u / 2", "coin u is not that of its external id"),
    "another picture": (
        "UPDATE cases SET stored_sha256 = (SELECT stored_sha256 FROM cases WHERE external_id = 'case-0')",
        r"^cases \S+: not as audit event",
    ),
    "another digest": (
        "UPDATE cases SET image_sha256 = stored_sha256",
        r"^cases \S+: not as audit event",
    ),
    "role": (
        "UPDATE accounts SET role = 'admin' WHERE name = 'anna'",
        r"^accounts \S+: not as audit event",
    ),
    "enabled": ("UPDATE accounts SET disabled_at = NULL", r"^accounts \S+: not as audit event"),
    "key restored": ("UPDATE api_keys SET revoked_at = NULL", r"^api_keys \S+: not as audit event"),
    "scopes": ("UPDATE api_keys SET scopes = '[\"manage\"]'", r"^api_keys \S+: not as audit event"),
    "alias": (
        "UPDATE aliases SET revision = revision + 1 WHERE name = 'challenger'",
        r"^aliases \S+: not as audit event",
    ),
    "alias removed": ("DELETE FROM aliases WHERE name = 'challenger'", r"^aliases challenger: missing, although"),
    "card": ("UPDATE releases SET card_sha256 = 'x'", r"^releases \S+: not as audit event"),
    "a prediction removed": (
        "DELETE FROM predictions WHERE case_id = (SELECT id FROM cases WHERE external_id = 'case-1')",
        r"^predictions \S+: missing, although",
    ),
    "arm": ("UPDATE read_requests SET arm = 'audit', pi = 0.1", r"^read_requests \S+: not as audit event"),
    "π of a case": ("UPDATE cases SET pi = 1.0 WHERE pi < 1", r"^cases \S+: not as audit event"),
    "π of a look": ("UPDATE looks SET pi = 0.9", r"^looks \S+: not as audit event"),
    "policy": (
        "UPDATE policies SET audit_rate = 0.4 WHERE version = 2",
        r"^policies \S+: not as audit event",
    ),
    "erased": (
        "UPDATE cases SET erased_at = created_at WHERE external_id = 'case-0'",
        r"^cases \S+: not as audit event",
    ),
    "a value that is never written": ("UPDATE labels SET confidence = 'much'", r"rows of labels cannot be checked \("),
    "digests of the baseline": (
        "UPDATE audit_events SET row_digests = '{}' WHERE action = 'rows.baseline'",
        "was changed, or one before it",
    ),
    "signature of the baseline": (
        "UPDATE audit_events SET signature = '00' WHERE action = 'rows.baseline'",
        "was changed, or one before it",
    ),
    "cases of events": ("DELETE FROM case_changes WHERE sequence < 20", "case_changes"),
    "no head": ("DELETE FROM audit_head", "its head says nothing"),
}


@pytest.fixture
def open_service(service: Service) -> Service:
    """A service whose triggers somebody has dropped."""
    service.before_change = lambda: None  # what is changed past the service, no snapshot sees
    service.written_past = True
    work(service)
    assert verify(service).faults == []
    dialect = service.context.database.engine.dialect.name
    with service.context.database.write() as session:
        for table in APPEND_ONLY:
            for statement in drop_triggers(dialect, table):
                session.execute(text(statement))
            if dialect == "sqlite":
                session.execute(text(drop_replace_trigger(table)))
    return service


def test_a_change_past_the_service_is_named(open_service: Service) -> None:
    dialect = open_service.context.database.engine.dialect.name
    for how, (statement, expected) in TAMPERS.items():
        if how == "a value that is never written" and dialect == "postgresql":
            continue  # it takes no text for a number
        with open_service.context.database.read() as session:  # which keeps nothing
            changed = session.execute(text(statement))
            assert changed.rowcount > 0, how  # type: ignore[attr-defined]
            report = verify_all(session, open_service.context)
        assert any(re.search(expected, fault) for fault in report.faults), (how, report.faults)
        assert report.verdict.startswith("not consistent")
    assert verify(open_service).faults == []


def test_rows_of_nobody_are_named(open_service: Service) -> None:
    with open_service.context.database.write() as session:
        session.execute(
            text(
                "INSERT INTO labels (id, created_at, case_id, annotator_id, purpose, kind, class_code, blind, round, "
                "created_by) SELECT '0189000000007000800000000000ffff', created_at, "
                "(SELECT id FROM cases WHERE external_id = 'case-7'), annotator_id, purpose, "
                "kind, 'blast', true, round, created_by FROM labels WHERE kind = 'label' LIMIT 1"
            )
        )
        session.execute(
            text(
                "INSERT INTO accounts (id, created_at, name, role) "
                "SELECT '0189000000007000800000000000fffe', created_at, 'mallory', 'admin' FROM accounts LIMIT 1"
            )
        )
    assert verify(open_service).faults == [
        "accounts 01890000-0000-7000-8000-00000000fffe: no audit event wrote it",
        "labels 01890000-0000-7000-8000-00000000ffff: no audit event wrote it",
    ]


def test_the_command_says_what_it_has_not_proven(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = service.context.settings
    assert settings.secret_key is not None
    settings.head_file.unlink()
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", settings.sqlalchemy_url)
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.secret_key.get_secret_value())
    done = run_here("db", "verify")
    assert (done.returncode, "\nconsistent, not proven complete\n" in done.stdout) == (0, True)
    assert done.stdout.startswith("not proven complete: no head was kept outside the database")
    head = next(line for line in done.stdout.splitlines() if line.startswith("head: ")).removeprefix("head: ")
    assert "contains the given head" in run_here("db", "verify", "--against", head).stdout
    wrong = run_here("db", "verify", "--against", head[:-1] + ("0" if head[-1] != "0" else "1"))
    assert wrong.returncode == 1
    assert Path(settings.home).is_dir()


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_database_that_goes_away_is_no_fault_of_its_rows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was stopped, or that ended a transaction it took for forgotten."""

    def gone(session: Session, *_: object) -> list[str]:
        session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return []

    work(service)
    assert verify(service).faults == []
    monkeypatch.setattr("app.audit.verify.check_key_columns", gone)
    with pytest.raises(DBAPIError, match="terminat"):
        verify(service)
