"""Migrations make what the tables say, on both databases, and can be undone."""

from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DBAPIError

import migrations
from app.platform.database import Database
from app.platform.keys import DerivedKey
from app.platform.migrate import alembic_config, check, downgrade, require_head, upgrade
from app.tables import Account, Annotator, Case, CaseTwin, IdempotencyRecord
from tests.support.postgres import PostgresServer


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database(f"sqlite:///{tmp_path / 'empty.db'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return Database(server.url(server.create()))


def test_the_start_asks_for_the_newest_migration() -> None:
    from alembic.script import ScriptDirectory

    assert ScriptDirectory.from_config(alembic_config()).get_heads() == [migrations.HEAD]


def test_up_check_down_up(empty: Database) -> None:
    with pytest.raises(ValueError, match="db upgrade"):
        require_head(empty.engine)
    upgrade(empty.engine)
    check(empty.engine)
    require_head(empty.engine)
    tables = set(inspect(empty.engine).get_table_names())
    downgrade(empty.engine, "base")
    assert set(inspect(empty.engine).get_table_names()) == {"alembic_version"}
    upgrade(empty.engine)
    assert set(inspect(empty.engine).get_table_names()) == tables
    upgrade(empty.engine)  # again changes nothing
    empty.engine.dispose()


def test_a_populated_database_goes_up_down_and_up_and_loses_nothing(empty: Database) -> None:
    """Outputs of the network move to a table of their own and come back; a case without a plan gets one."""
    from app.triage.planning import plan_missing

    upgrade(empty.engine, "0002")
    with empty.write() as session:
        for statement in _POPULATED:
            session.execute(text(statement), {"now": datetime(2026, 1, 1, tzinfo=UTC), "blob": b"\0\0\x80?" * 3})
    before = _outputs(empty, "predictions")
    for _ in range(2):
        upgrade(empty.engine)
        assert _outputs(empty, "network_outputs") == before
        assert plan_missing(empty, DerivedKey(b"k" * 32, b"draws")) == 1
        with empty.read() as session:
            u, need = session.execute(text("SELECT u, need FROM cases")).one()
        assert 0 < u < 1
        assert need == 0.375
        downgrade(empty.engine, "0002")
        assert _outputs(empty, "predictions") == before
    with empty.write() as session, pytest.raises(DBAPIError, match="append-only"):
        session.execute(text("DELETE FROM predictions"))
    empty.engine.dispose()


def test_twins_answers_and_names_are_put_right_where_they_are(empty: Database) -> None:
    """A case is marked where an earlier near-duplicate was selected; names that nobody could sign in with change."""
    upgrade(empty.engine, "0004")
    with empty.write() as session:
        for statement in _TWINS:
            session.execute(text(statement), {"now": datetime(2026, 1, 1, tzinfo=UTC)})
    upgrade(empty.engine)
    with empty.read() as session:
        marked = session.execute(select(Case.external_id).where(Case.twin_selected.is_(True))).scalars()
        assert list(marked) == ["near"]
        numbers = {case_id: case_id.hex[-2:] for case_id in session.execute(select(Case.id)).scalars()}
        twins = session.execute(select(CaseTwin.case_id, CaseTwin.twin_id)).all()
        assert {(numbers[first], numbers[other]) for first, other in twins if first < other} == _LINKED
        assert len(twins) == 2 * len(_LINKED)
        names = session.execute(select(Account.name).order_by(Account.id)).scalars()
        assert list(names) == ["bob", "bob (2)", "eve", "Jos\u00e9"]
        assert session.execute(select(Annotator.name)).scalar_one() == "eve"
        answers = session.execute(select(IdempotencyRecord.key, IdempotencyRecord.case_id)).all()
    assert dict(answers) == {"case": UUID(_ID.format(11).strip("'")), "other": None}  # type: ignore[arg-type]
    downgrade(empty.engine, "0004")
    upgrade(empty.engine)
    empty.engine.dispose()


def test_open_requests_of_a_case_come_to_share_its_place(empty: Database) -> None:
    from app.triage.planning import place_of

    upgrade(empty.engine, "0004")
    with empty.write() as session:
        for statement in (*_TWINS[:1], _TWINS[5], *(_REQUEST.format(_ID.format(n), n - 20, n) for n in (21, 22))):
            session.execute(text(statement), {"now": datetime(2026, 1, 1, tzinfo=UTC)})
    upgrade(empty.engine)
    with empty.read() as session:
        places = session.execute(text("SELECT shuffle FROM read_requests")).scalars().all()
    assert places == [place_of(UUID(_ID.format(11).strip("'")))] * 2
    empty.engine.dispose()


def _outputs(database: Database, table: str) -> list[tuple[bytes, bytes]]:
    with database.read() as session:
        rows = session.execute(text(f"SELECT logits, features FROM {table}")).all()
    return [(bytes(row[0]), bytes(row[1])) for row in rows]


_ID = "'018900000000700080000000000000{:02}'"
_CARD = '{"classes": [{"code": "a"}, {"code": "b"}, {"code": "c"}], "files": {"network.onnx": "abc"}}'
_CASE = (
    "INSERT INTO cases (id, created_at, external_id, patient, image_hash, u, pi, case_metadata, image_sha256, "
    "stored_sha256, width, height, partition, created_by) VALUES ({}, :now, '{}', '{}', {}, 0.5, {}, '{{}}', 's', "
    "'{}', 8, 8, 'evaluation', " + _ID.format(1) + ")"
)
_ANSWER = (
    "INSERT INTO idempotency_records (account_id, key, request_sha256, status, body, created_at) "
    "VALUES (" + _ID.format(1) + ", '{}', 's', 201, '{}', :now)"
)
_REQUEST = (
    "INSERT INTO read_requests (id, created_at, case_id, ordinal, round, arm, u, pi, policy_version, due_at, due_on, "
    "shuffle, state) VALUES ({}, :now, " + _ID.format(11) + ", {}, 'planned', 'first', 0.5, 1.0, 1, :now, "
    "'2026-01-01', {}, 'open')"
)
# near-duplicates of a patient, the same pixels of two patients, near-duplicates of the other patient
_LINKED = {("11", "12"), ("12", "13"), ("13", "14"), ("14", "15")}
_TWINS = (
    f"INSERT INTO accounts (id, created_at, name, role) VALUES ({_ID.format(1)}, :now, 'bob', 'admin')",
    f"INSERT INTO accounts (id, created_at, name, role) VALUES ({_ID.format(2)}, :now, ' bob', 'viewer')",
    f"INSERT INTO accounts (id, created_at, name, role) VALUES ({_ID.format(3)}, :now, 'eve ', 'annotator')",
    "INSERT INTO annotators (id, created_at, name, account_id) "
    f"VALUES ({_ID.format(4)}, :now, 'eve ', {_ID.format(3)})",
    f"INSERT INTO accounts (id, created_at, name, role) VALUES ({_ID.format(5)}, :now, 'Jose\u0301', 'viewer')",
    _CASE.format(_ID.format(11), "selected", "p", -1, 1.0, "1"),
    _CASE.format(_ID.format(12), "near", "p", -8, 0.1, "2"),  # three bits apart
    _CASE.format(_ID.format(13), "far", "p", -64, 0.1, "3"),
    _CASE.format(_ID.format(14), "other patient", "q", -1, 0.1, "3"),
    _CASE.format(_ID.format(15), "twin of one that was not selected", "q", -1, 1.0, "4"),
    _ANSWER.format("case", '{"external_id"\\: "x", "id"\\: "' + _ID.format(11).strip("'") + '"}'),
    _ANSWER.format("other", '{"id"\\: "' + _ID.format(11).strip("'") + '"}'),
)
_POPULATED = (
    f"INSERT INTO accounts (id, created_at, name, role) VALUES ({_ID.format(1)}, :now, 'x', 'admin')",
    "INSERT INTO releases (id, created_at, name, card_sha256, card) "
    f"VALUES ({_ID.format(2)}, :now, 'r', 's', '{_CARD.replace(':', chr(92) + ':')}')",
    "INSERT INTO cases (id, created_at, external_id, case_metadata, image_sha256, stored_sha256, width, height, "
    "partition, created_by) "
    f"VALUES ({_ID.format(3)}, :now, 'c', '{{}}', 's', 's', 8, 8, 'evaluation', {_ID.format(1)})",
    "INSERT INTO predictions (id, created_at, case_id, release_id, logits, features, class_probs, log_concentration, "
    f"disagreement_prob) VALUES ({_ID.format(4)}, :now, {_ID.format(3)}, {_ID.format(2)}, :blob, :blob, "
    "'[0.5, 0.25, 0.25]', 0.0, 0.375)",
)


_GATES = {
    '{"name": "trained"}': "not_judged",
    '{"recalibration": {"gate": {"passed": true, "reasons": []}}}': "passed",
    '{"recalibration": {"gate": {"passed": false, "reasons": ["worse"]}}}': "refused",
}


def _add_cards(database: Database, cards: list[str]) -> None:
    from sqlalchemy import text

    statement = "INSERT INTO releases (id, created_at, name, card_sha256, card) VALUES (:id, :now, 'r', :sha256, :card)"
    with database.write() as session:
        for number, card in enumerate(cards):
            values = {"id": f"0189000000007000800000000000{number:04}", "sha256": str(number), "card": card}
            session.execute(text(statement), values | {"now": datetime(2026, 1, 1, tzinfo=UTC)})


def test_the_gates_verdict_of_each_release_is_filled_in_from_its_card(empty: Database) -> None:
    from sqlalchemy import text

    upgrade(empty.engine, "0007")
    _add_cards(empty, list(_GATES))
    for _ in range(2):
        upgrade(empty.engine)
        with empty.read() as session:
            verdicts = session.execute(text("SELECT gate FROM releases ORDER BY id")).scalars().all()
        assert verdicts == list(_GATES.values())
        downgrade(empty.engine, "0007")
    empty.engine.dispose()


@pytest.mark.parametrize("recalibration", ["{}", '{"gaet": {"passed": true}}', '{"gate": {"passed": "yes"}}', "null"])
def test_a_card_whose_gate_cannot_be_read_stops_the_migration(empty: Database, recalibration: str) -> None:
    upgrade(empty.engine, "0007")
    _add_cards(empty, [f'{{"recalibration": {recalibration}}}'])
    with pytest.raises(ValueError, match=r"release 01890000.*not how the gate judged"):
        upgrade(empty.engine)
    assert "gate" not in {column["name"] for column in inspect(empty.engine).get_columns("releases")}
    empty.engine.dispose()
