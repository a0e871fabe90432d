"""Any column of any table, altered, deleted, inserted or swapped past the service: `db verify` finds it."""

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Engine, delete, event, insert, select, text, update
from sqlalchemy import Table as SqlTable
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.audit.chain import verify_proof
from app.audit.chain.covered_rows import COVERED, NOT_COVERED
from app.audit.verify import verify_all
from app.cases.blindness import record_exposure
from app.database.engine import Database, make_engine
from app.database.tables import APPEND_ONLY, Account, Annotator, BaseTable, CasePrediction, drop_triggers
from app.database.tables.annotators import ROLES
from app.database.tables.append_only import drop_replace_trigger
from app.database.tables.base import UtcDateTime
from app.database.tables.reads import ARMS, READ_STATES, REQUEST_STATES, REVEALS, RULES
from tests.security.test_verify_rows import work
from tests.support.sabotage import undone
from tests.support.service import Service

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
    service.add_case("of a day with a threshold")


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
    """Changes a covered column of a random row, deletes a row, inserts one, or swaps a column of two.

    Args:
        connection: to the database.
        seed: of the choices.
    """

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
