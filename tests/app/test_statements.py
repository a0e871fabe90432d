"""What the service asks of its database: no more for many rows than for one, and each thing once per request."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event, select

from app.audit.chain import events
from app.database.engine import sqlite_engine
from app.database.tables import Annotator, CasePrediction, ReleaseRow, new_id, utc_now
from tests.app.test_leases import set_policy
from tests.support.service import Service, cell_png
from tests.support.statements import counted

ROUNDS = (1, 12, 24)
STORE_A_CASE, COMMIT_A_LABEL = 20, 24
#: Statements of whole requests, with who is calling, one commit and the settings of each transaction on PostgreSQL: far
#: below one per row that they look at. The table of what each takes is printed by `python -m benchmarks.unit_costs`.
AT_MOST = {"lease": 18, "label": 24, "case": 28}


def add_prediction_of_another_release(service: Service, number: int, case_id: str) -> None:
    with service.context.database.write() as session:
        champion = session.execute(select(ReleaseRow).order_by(ReleaseRow.id)).scalars().first()
        assert champion is not None
        release = ReleaseRow(name=f"release {number}", card_sha256=f"{number:064}", card=champion.card)
        session.add(release)
        session.flush()
        known = session.execute(
            select(CasePrediction).where(
                CasePrediction.case_id == uuid.UUID(case_id), CasePrediction.release_id == champion.id
            )
        ).scalar_one()
        names = {column.name for column in CasePrediction.__table__.columns} - {"id", "created_at", "release_id"}
        copied = {name: getattr(known, name) for name in names}
        session.add(CasePrediction(id=new_id(), created_at=utc_now(), release_id=release.id, **copied))
        session.flush()
        events.record_event(
            session,
            service.context.keys.audit,
            actor="test",
            action="release.predict",
            object_id=release.id,
            cases=[uuid.UUID(case_id)],
        )


@pytest.mark.slow
def test_a_list_of_many_rows_needs_no_more_statements_than_one_of_a_single_row(service: Service) -> None:
    service.written_past = True  # predictions without an event
    first = service.add_case("case 0", cell_png(0), patient="p0", site="north")
    code = first["prediction"]["classes"][0]
    one_case = f"/v1/cases/{first['id']}"
    lists = (
        "/v1/cases",
        "/v1/worklist",
        f"{one_case}/predictions",
        f"{one_case}/labels",
        f"{one_case}/labels?history=1",
    )
    lists += ("/v1/releases", "/v1/jobs", "/v1/audit-events?limit=1000", "/v1/policies", "/v1/evaluations")
    pages = ("/worklist", "/releases", "/jobs", "/imports", "/people", "/audit", f"/cases/{first['id']}")
    counts: dict[str, list[int]] = {}
    present = 0
    service.get("admin", "/people")  # agreements are kept until next Monday
    for target in ROUNDS:
        for number in range(present, target):
            if number:
                service.add_case(f"case {number}", cell_png(number), patient=f"p{number // 6}", site="north")
                add_prediction_of_another_release(service, number, first["id"])
            service.outside_label(first["id"], f"reader {number}", code, blind=False)  # a read stays wanted
            assert service.post("admin", "/v1/recalibrations", json={"method": "none"}).status_code == 202
        present = target
        for path in lists + pages:
            with counted(service.context.database) as statements:
                assert service.get("admin", path).status_code == 200, path
            counts.setdefault(path, []).append(len(statements))
    assert {path: row for path, row in counts.items() if len(set(row)) > 1} == {}


def test_storing_a_case_resolves_policy_rule_and_classes_once(service: Service) -> None:
    for number in range(4):
        service.add_case(f"case {number}", cell_png(number), patient="p", site="north")
    with counted(service.context.database) as statements:
        service.add_case("another", cell_png(9), patient="p", site="north")
    assert len(statements) <= STORE_A_CASE, "\n".join(statement.split("\n")[0][:60] for statement in statements)
    assert sum("FROM policies" in statement for statement in statements) == 1


def test_committing_a_label_resolves_policy_and_classes_once(service: Service) -> None:
    for number in range(4):
        service.add_case(f"case {number}", cell_png(number), patient="p", site="north")
    service.before_change = lambda: None  # what the fixture does on the way is not counted
    read = service.post("anna", "/v1/reads").json()
    body = {"label": read["classes"][0]["code"], "note": "seen twice"}
    with counted(service.context.database) as statements:
        answer = service.post("anna", f"/v1/reads/{read['id']}/labels", json=body)
    assert answer.status_code == 201, answer.text
    assert answer.json()["posterior"] is not None
    # whether a case waits for another read is written when that changes: cases with one planned read say so at once
    closing = sum(statement.startswith("UPDATE cases SET waiting") for statement in statements)
    noted = sum(statement.startswith("INSERT INTO remarks") for statement in statements)
    assert noted == 1
    assert len(statements) - closing - noted <= COMMIT_A_LABEL, "\n".join(
        statement.split("\n")[0][:60] for statement in statements
    )
    assert sum("FROM policies" in statement for statement in statements) == 1


@contextmanager
def commits(service: Service) -> Iterator[list[Connection]]:
    seen: list[Connection] = []

    def note(connection: Connection) -> None:
        seen.append(connection)

    event.listen(service.context.database.engine, "commit", note)
    yield seen
    event.remove(service.context.database.engine, "commit", note)


@pytest.mark.both_databases
@pytest.mark.parametrize("reveal", ["after_commit", "after_case_closed"])
def test_a_lease_a_label_and_a_case_need_so_many_statements_and_one_commit(service: Service, reveal: str) -> None:
    set_policy(service, reveal=reveal, threshold=0.0)  # two planned reads: no label changes what its case waits for
    for number in range(4):
        service.add_case(f"case {number}", cell_png(number), patient="p", site="north")
    service.before_change = lambda: None  # what the fixture does on the way is not counted
    service.post("anna", "/v1/reads")  # her first one makes her an annotator
    for number in range(2):  # the second label follows one that can still be corrected
        counts: dict[str, list[str]] = {}
        with counted(service.context.database) as counts["case"]:
            service.add_case(f"another {number}", cell_png(9 + number), patient="p", site="north")
        with counted(service.context.database) as counts["lease"]:
            read = service.post("anna", "/v1/reads").json()
        code = read["classes"][0]["code"]
        with counted(service.context.database) as counts["label"], commits(service) as n_commits:
            answer = service.post("anna", f"/v1/reads/{read['id']}/labels", json={"label": code})
        assert answer.status_code == 201, answer.text
        assert len(n_commits) == 1
        for what, statements in counts.items():
            said = "\n".join(" ".join(statement.split())[:120] for statement in statements)
            assert len(statements) <= AT_MOST[what], f"{what}:\n{said}"
            assert "FROM remarks" not in said, f"{what} looks for a remark that was never written:\n{said}"


def test_a_key_is_looked_up_once_per_request(service: Service) -> None:
    requests = (
        ("POST", "/v1/cases", {"files": {"image": ("x.png", cell_png())}, "data": {"external_id": "a"}}, 201),
        ("POST", "/v1/imports", {"content": b"no zip", "headers": {"Content-Type": "application/zip"}}, 422),
        ("POST", "/v1/evaluations", {"json": {}}, 202),
        ("GET", "/v1/cases", {}, 200),
    )
    for method, path, options, status in requests:
        headers = {"Idempotency-Key": uuid.uuid4().hex, **options.pop("headers", {})}
        with counted(service.context.database) as statements:
            answer = service.call("admin", method, path, headers=headers, **options)
        assert answer.status_code == status, answer.text
        assert sum("FROM api_keys" in statement for statement in statements) == 1, path


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
