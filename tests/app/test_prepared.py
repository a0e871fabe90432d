"""Statements and rows past the unit of work: the same values, errors and digests as through it."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import bindparam, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm.exc import StaleDataError, UnmappedInstanceError

from app.audit.chain.change_tracking import take_leaves
from app.audit.chain.detached_rows import build_detached_row, change_row, insert_row, list_columns
from app.database.engine import sqlite_engine
from app.database.sql.compiled_statements import PreparedStatement
from app.database.tables import Account, Annotator, Case, Label, PolicyRow, Read, ReadRequest
from tests.support.service import Service, cell_png
from tests.support.statements import counted


def leased(service: Service) -> None:
    service.add_case("case", cell_png(), patient="p", site="north")
    assert service.post("anna", "/v1/reads").status_code == 201


@pytest.mark.both_databases
def test_a_prepared_statement_gives_what_an_entity_has(service: Service) -> None:
    leased(service)
    with service.context.database.read() as session:
        for table in (Case, Read, ReadRequest, PolicyRow, Annotator):
            entity: Any = session.execute(select(table)).scalars().first()
            wanted = {column.name: getattr(entity, column.name) for column in list_columns(table)}
            which = PreparedStatement(select(*list_columns(table)).where(table.id == bindparam("which")))
            for _ in range(2):  # what makes values of columns is known from the first time on
                found = which.first(session, {"which": entity.id})
                assert found is not None
                assert vars(build_detached_row(table, found)) == wanted
            assert which.first(session, {"which": uuid.uuid4()}) is None


@pytest.mark.both_databases
def test_lists_of_values_and_limits_are_written_out(service: Service) -> None:
    leased(service)
    listed = PreparedStatement(select(Read.id).where(Read.state.in_(("leased", "expired"))).limit(bindparam("n")))
    with service.context.database.read() as session, counted(service.context.database) as statements:
        assert [len(listed.all(session, {"n": n})) for n in (0, 1, 5)] == [0, 1, 1]
        with pytest.raises(KeyError, match="n"):
            listed.all(session)
    assert sum("FROM reads" in statement for statement in statements) == 3


@pytest.mark.both_databases
def test_what_the_database_refuses_is_told_as_sqlalchemy_tells_it(service: Service) -> None:
    leased(service)
    statement = PreparedStatement(insert(Annotator).values(id=bindparam("id"), name=bindparam("name"), created_at=None))
    with service.context.database.write() as session:
        with pytest.raises(IntegrityError):
            statement.change(session, {"id": uuid.uuid4(), "name": "somebody"})
        session.rollback()


def test_a_plain_row_is_not_set_and_a_change_gives_another_one(service: Service) -> None:
    leased(service)
    with service.context.database.write() as session:
        found = PreparedStatement(select(*list_columns(ReadRequest)).where(ReadRequest.state == "leased")).first(
            session
        )
        assert found is not None
        request = build_detached_row(ReadRequest, found)
        with pytest.raises(AttributeError):
            request.state = "closed"
        closed = change_row(session, request, state="closed")
        assert (request.state, closed.state) == ("leased", "closed")
        stored = session.execute(select(ReadRequest.state).where(ReadRequest.id == request.id))
        assert stored.scalar_one() == "closed"
        gone = build_detached_row(
            ReadRequest, [uuid.uuid4() if one.primary_key else None for one in list_columns(ReadRequest)]
        )
        with pytest.raises(StaleDataError):
            change_row(session, gone, state="open")
        with pytest.raises(UnmappedInstanceError):
            build_detached_row(Label, [None] * len(list_columns(Label))).note  # noqa: B018


def test_only_what_must_have_an_event_is_noted(service: Service) -> None:
    """A lease begins and ends without one: a request that waits is one that is leased."""
    leased(service)
    keys = service.context.keys.audit
    with service.context.database.write() as session:
        found = PreparedStatement(select(*list_columns(ReadRequest)).where(ReadRequest.state == "leased")).first(
            session
        )
        assert found is not None
        request = change_row(session, build_detached_row(ReadRequest, found), state="open", lease_expires_at=None)
        read: dict[str, Any] = {"request_id": request.id, "case_id": request.case_id, "expires_at": request.due_at}
        annotator = session.execute(select(Annotator.id)).scalars().first()
        row = insert_row(session, Read, annotator_id=annotator, state="released", **read)
        assert take_leaves(session, keys.rows) == {}
        change_row(session, request, state="closed")
        change_row(session, row, state="declined")
        assert {name: len(rows) for name, rows in take_leaves(session, keys.rows).items()} == {
            "read_requests": 1,
            "reads": 1,
        }
        session.rollback()


def test_sqlite_prepares_a_statement_once_however_many_rows_are_asked_for(tmp_path: Path) -> None:
    engine = sqlite_engine(f"sqlite:///{tmp_path / 'empty.db'}")
    asked: list[int] = []
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE annotators (id CHAR(32) PRIMARY KEY)")
        driver: Any = connection.connection.driver_connection
        driver.set_authorizer(lambda *_: asked.append(1) or 0)
        connection.execute(select(Annotator.id).order_by(Annotator.id).limit(1)).all()
        once = len(asked)
        for n in range(2, 6):
            connection.execute(select(Annotator.id).order_by(Annotator.id).limit(n).offset(n)).all()
        driver.set_authorizer(None)
    engine.dispose()
    assert len(asked) == once > 0


@pytest.mark.both_databases
def test_a_value_that_is_made_as_a_statement_is_sent_is_made_each_time(service: Service) -> None:
    today = "monday"
    made = PreparedStatement(select(Account.name, bindparam("day", callable_=lambda: today).label("day")).limit(1))
    with service.context.database.read() as session:
        seen = [made.first(session)]
        today = "tuesday"
        seen += [made.first(session), made.first(session, {"day": "given"})]
    assert [row[1] for row in seen if row is not None] == ["monday", "tuesday", "given"]


@pytest.mark.both_databases
def test_a_look_without_a_session_gives_what_a_session_does_and_keeps_no_transaction(service: Service) -> None:
    asked = PreparedStatement(
        select(*list_columns(Account)).where(Account.name == bindparam("name")).order_by(Account.id).limit(1)
    )
    for name in ("anna", "nobody"):
        with service.context.database.read() as session:
            expected = asked.first(session, {"name": name})
        seen = service.context.database.look(asked, name=name)
        assert (None if seen is None else [*seen]) == (None if expected is None else [*expected])
        assert (seen is None) == (name == "nobody")
    assert service.context.database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
