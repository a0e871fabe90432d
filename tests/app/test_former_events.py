"""What earlier versions left of patients where nothing is deleted is forgotten by the upgrade; all else stays whole."""

from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import select, text

from app.cli import serving
from app.context import Context, build_context
from app.evaluations.columns import number_of
from app.evaluations.freezing import evaluate_frozen
from app.evaluations.frozen_files import LABELS, PREDICTIONS, folder_of, snapshot_sha256
from app.operations import frozen_names
from app.operations.forgetting import forget_patient
from app.operations.former_events import forgetting
from app.operations.verify import verify_all
from app.platform import audit_chain, baseline
from app.platform.migrate import downgrade
from app.settings import Settings
from app.tables import AuditEvent, Case, Evaluation, IdempotencyRecord
from tests.app.test_restating import columns_of_events, vouch
from tests.support.jobs import work_off
from tests.support.remains import remains
from tests.support.service import KEY, Service, cell_png, store
from tests.support.version_0_1_0 import write_database

NOTE = "has a limp since Olomouc"


@pytest.fixture
def former(tmp_path: Path) -> Context:
    """Parts of a service on a database that 0.1.0 filled, with a note."""
    (tmp_path / "home").mkdir()
    write_database(tmp_path / "home" / "secondread.db")
    context = build_context(Settings(home=tmp_path / "home", secret_key=SecretStr(KEY)))
    with context.database.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER labels_no_update"))
        connection.execute(text("UPDATE labels SET note = :note"), {"note": NOTE})
        connection.execute(
            text(
                "CREATE TRIGGER labels_no_update BEFORE UPDATE ON labels BEGIN SELECT RAISE(ABORT, 'append-only'); END"
            )
        )
    return context


def test_a_database_of_0_1_0_forgets_what_its_events_said_and_loses_nothing_else(former: Context) -> None:
    with former.database.engine.connect() as connection:
        labels = connection.execute(text("SELECT id, note, class_code FROM labels ORDER BY id")).all()
        n_events = connection.execute(text("SELECT count(*) FROM audit_events")).scalar_one()
        cases = connection.execute(text("SELECT external_id, patient, image_sha256 FROM cases ORDER BY id")).all()
        said = connection.execute(text("SELECT details FROM audit_events WHERE action = 'case.add'")).scalars().all()
    assert all("image_sha256" in details for details in said)
    serving._upgrade(former)
    with former.database.read() as session:
        noted = session.execute(
            text("SELECT l.id, r.note, class_code FROM labels l JOIN remarks r USING (id) ORDER BY l.id")
        )
        assert noted.all() == labels
        now_there = "SELECT external_id, patient, image_sha256 FROM cases ORDER BY id"
        assert session.execute(text(now_there)).all() == cases
        events = list(audit_chain.events(session))
        assert [event.sequence for event in events[:n_events]] == list(range(1, n_events + 1))
        assert not any("image_sha256" in event.details for event in events)
        answers = session.execute(select(IdempotencyRecord)).scalars().all()
        assert all(answer.case_id is not None for answer in answers if "label" in (answer.body or {}))
        faults = verify_all(session, former).faults
        ours = [fault for fault in faults if not fault.startswith(("image ", "release "))]  # which are not kept
        assert [fault for fault in ours if "which picture it is nobody knows" not in fault] == []
    assert forget_patient(former, "lead", "p1", "asked").unfinished is None
    canaries = {f"digest of {row.external_id}": row.image_sha256 for row in cases if row.patient == "p1"}
    assert len(canaries) == 2
    home = former.settings.home
    assert remains(canaries | {"case-3": "case-3"}, [home], former.database.engine, None) == set()
    former.database.engine.dispose()


@pytest.mark.both_databases
@pytest.mark.slow_on_second_database
def test_digests_under_the_key_of_the_installation_leave_the_events(service: Service) -> None:
    context = service.context
    service.written_past = True
    store(service, "case-0", cell_png(0), {}, patient="p0")
    service.seal()
    downgrade(context.database.engine, "0019")
    with columns_of_events(context.database.engine):
        vouch(service, [])
    with context.database.read() as session:
        former = {
            (table, key): digest for table, key, digest in baseline.stored_digests(session, context.keys.audit.rows)
        }
    serving._upgrade(context)
    with context.database.read() as session:
        leaves = [event.row_digests or {} for event in audit_chain.events(session)]
        kept = {digest for rows in leaves for table in rows.values() for digest in table.values()}
    gone = {table for (table, _), digest in former.items() if digest not in kept}
    assert gone == {"cases", "network_outputs", "read_requests"}


def test_reasons_and_names_of_files_leave_the_events(service: Service) -> None:
    events = [
        AuditEvent(action="label.revise", details={"label": "x"}, reason="her aunt said", row_digests=None),
        AuditEvent(action="alias.move", details={}, reason="better", row_digests=None),
        AuditEvent(
            action="job.submit", details={"kind": "import", "parameters": {"source": "Jane.zip"}}, row_digests=None
        ),
    ]
    with service.context.database.read() as session:
        forget = forgetting(session, service.context.keys.audit)
    for event in events:
        forget(event)
    assert [event.reason for event in events] == [None, "better", None]
    assert events[2].details == {"kind": "import", "parameters": {}}


@pytest.mark.slow
def test_frozen_tables_get_numbers_of_nobody_and_the_same_figures(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = service.context
    for number in range(6):
        store(service, f"case-{number}", cell_png(number), {"r1": 0, "r2": number % 2}, patient=f"p{number // 2}")
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all", "weighting": "none"}).json()
    work_off(context)
    folder = folder_of(context.settings.home, asked["id"])
    _name_by_digests(context, folder)
    canaries = {f"number of p{number}": number_of(f"patient:p{number}") for number in range(3)}
    before, engine = evaluate_frozen(folder, weighted=False), context.database.engine
    assert len(remains(canaries, [folder], engine, None)) == 6
    with monkeypatch.context() as interrupted:
        interrupted.setattr(frozen_names, "_put_in_place", _fail)
        with pytest.raises(InterruptedError):
            frozen_names.renumber(context)
    assert [frozen_names.renumber(context), frozen_names.renumber(context)] == [0, 0]  # finished, not begun again
    assert remains(canaries, [folder], engine, None) == set()
    assert evaluate_frozen(folder, weighted=False).model_dump() == before.model_dump()
    with context.database.read() as session:
        assert verify_all(session, context).faults == []
        assert session.execute(select(Case.id)).first() is not None


def _fail(_folder: Path) -> None:
    raise InterruptedError


def _name_by_digests(context: Context, folder: Path) -> None:
    """Make frozen tables what an earlier version wrote."""
    import uuid

    import pyarrow as pa
    from pyarrow import parquet

    with context.database.read() as session:
        patients = {str(row[0]): row[1] for row in session.execute(select(Case.id, Case.patient))}
    for name in (LABELS, PREDICTIONS):
        table = parquet.read_table(folder / name)
        names = [f"patient:{number_of(f'patient:{patients[case]}')}" for case in table["case_id"].to_pylist()]
        place = table.column_names.index("patient")
        parquet.write_table(table.set_column(place, "patient", pa.array(names)), folder / name)
    with context.database.write() as session:
        session.get_one(Evaluation, uuid.UUID(folder.name)).snapshot_sha256 = snapshot_sha256(folder)
