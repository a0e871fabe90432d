"""Rows that a session writes are noted for the audit, however it writes them."""

import ast
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

import app
from app.audit.chain.covered_rows import COVERED, Leaves, row_digest, row_key, take_leaves, update_columns
from app.database.tables import (
    Annotator,
    BaseTable,
    Case,
    CaseTwin,
    Read,
    ReadRequest,
    new_id,
    utc_now,
)
from tests.support.service import Service, cell_png


def stored_digests(service: Service, session: Session, table: Any, *keys: uuid.UUID) -> Leaves:
    rows = session.connection().execute(select(table.__table__).where(table.id.in_(keys))).mappings().all()
    private = service.context.keys.audit.rows
    return {
        table.__tablename__: {row_key(table.__table__, row): row_digest(private, table.__table__, row) for row in rows}
    }


def annotator(name: str) -> dict[str, Any]:
    return {"id": new_id(), "name": name, "created_at": utc_now()}


@pytest.mark.both_databases
def test_a_statement_notes_its_rows_and_gives_what_was_asked_of_it(service: Service) -> None:
    take = service.context.keys.audit.rows
    with service.context.database.write() as session:
        rows = [annotator("one"), annotator("two")]
        keys = [row["id"] for row in rows]
        names = session.execute(insert(Annotator).returning(Annotator.name), rows).scalars().all()
        assert sorted(names) == ["one", "two"]
        assert take_leaves(session, take) == stored_digests(service, session, Annotator, *keys)

        renamed = update_columns(Annotator, name="three").where(Annotator.id == keys[0])
        assert session.execute(renamed.returning(Annotator.id)).scalar_one() == keys[0]
        assert take_leaves(session, take) == stored_digests(service, session, Annotator, keys[0])

        session.execute(delete(Annotator).where(Annotator.id.in_(keys)))
        assert take_leaves(session, take) == {"annotators": dict.fromkeys(map(str, keys))}
        session.rollback()


@pytest.mark.both_databases
def test_only_what_must_have_an_event_is_noted(service: Service) -> None:
    """A lease begins and ends without one: a request that waits is one that is leased."""
    service.add_case("case", cell_png(), patient="p", site="north")
    assert service.post("anna", "/v1/reads").status_code == 201
    keys = service.context.keys.audit
    with service.context.database.write() as session:
        request = session.execute(select(ReadRequest).where(ReadRequest.state == "leased")).scalars().one()
        of_request, of_reads = ReadRequest.id == request.id, Read.request_id == request.id
        session.execute(update_columns(Read, state="released", ended_at=utc_now()).where(of_reads))
        session.execute(update_columns(ReadRequest, state="open", lease_expires_at=None).where(of_request))
        session.execute(update_columns(Case, need=0.25).where(Case.id == request.case_id))
        assert take_leaves(session, keys.rows) == {}
        session.execute(update_columns(ReadRequest, state="closed", closed_at=utc_now()).where(of_request))
        session.execute(update_columns(Read, state="declined").where(of_reads))
        assert {name: len(rows) for name, rows in take_leaves(session, keys.rows).items()} == {
            "read_requests": 1,
            "reads": 1,
        }
        session.rollback()


def covered_classes() -> dict[str, str]:
    """Name of the class of each covered table, and of the table."""
    tables = {mapper.class_.__name__: str(mapper.local_table) for mapper in BaseTable.registry.mappers}
    return {name: table for name, table in tables.items() if table in COVERED}


def test_the_service_writes_covered_tables_only_by_statements_that_a_session_notes() -> None:
    """An UPDATE names its columns to the session, and no text writes a covered table."""
    classes = covered_classes()
    by_text = re.compile(rf"\b(INSERT INTO|UPDATE|DELETE FROM)\s+({'|'.join(classes.values())})\b")
    folder, faults = Path(app.__file__).parent, []
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text()
        faults += [f"{path.name}: {match[0]}" for match in by_text.finditer(source)]
        for node in ast.walk(ast.parse(source)):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "update"
                and node.args
            ):
                faults += [f"{path.name}: update({name})" for name in [ast.unparse(node.args[0])] if name in classes]
    assert faults == []
    assert CaseTwin.__name__ in classes
