"""`db verify` compares rows with the events that wrote them, and names each row that no event explains."""

import re
from pathlib import Path

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.audit.verify import COMPLETE, CONSISTENT, IntegrityReport, check_audit, verify_all
from app.database.tables import APPEND_ONLY, Case, drop_triggers
from app.database.tables.append_only import drop_replace_trigger
from app.maintenance.erasure_registry import ErasureTarget, erase_patient_rows
from app.releases.queries import get_champion_alias
from app.releases.service import move_alias
from tests.support.command import run_here
from tests.support.service import Service, cell_png

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
    assert (report.faults, report.verdict) == ([], CONSISTENT)
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
    for how, (statement, expected) in TAMPERS.items():
        with open_service.context.database.read() as session:  # which keeps nothing
            changed = session.execute(text(statement))
            assert changed.rowcount > 0, how  # type: ignore[attr-defined]
            report = verify_all(session, open_service.context)
        assert any(re.search(expected, fault) for fault in report.faults), (how, report.faults)
        assert report.verdict.startswith("not consistent")
    assert verify(open_service).faults == []


def test_rows_of_nobody_are_named(open_service: Service) -> None:
    with open_service.context.database.write() as session:
        case = session.execute(select(Case).where(Case.external_id == "case-7")).scalar_one()
        session.execute(
            text(
                "INSERT INTO labels (id, created_at, case_id, annotator_id, purpose, kind, class_code, blind, round, "
                "created_by) SELECT '0189000000007000800000000000ffff', created_at, :case, annotator_id, purpose, "
                "kind, 'blast', 1, round, created_by FROM labels WHERE kind = 'label' LIMIT 1"
            ),
            {"case": case.id.hex},
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


def test_a_chain_cut_and_written_anew_is_found_by_its_former_head_alone(open_service: Service) -> None:
    before = verify(open_service).head
    with open_service.context.database.write() as session:
        last = int(before.partition(":")[0])
        kept = session.execute(text(f"SELECT sequence, digest FROM audit_events WHERE sequence = {last - 1}")).one()
        for table in ("case_changes", "audit_events"):
            session.execute(text(f"DELETE FROM {table} WHERE sequence = {last}"))
        session.execute(text("UPDATE audit_head SET sequence = :s, digest = :d"), {"s": kept[0], "d": kept[1]})
        checker = check_audit(session, open_service.context.keys.audit)
        assert checker.n_events == last - 1
        assert not any("audit event" in fault and "was changed" in fault for fault in checker.faults)
    assert any("it was cut or written anew" in fault for fault in verify(open_service, before).faults)
    with pytest.raises(ValueError, match="is not a head"):
        verify(open_service, "275")


def test_the_command_says_what_it_has_not_proven(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = service.context.settings
    assert settings.secret_key is not None
    monkeypatch.setenv("SECONDREAD_HOME", str(settings.home))
    monkeypatch.setenv("SECONDREAD_DATABASE_URL", settings.sqlalchemy_url)
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", settings.secret_key.get_secret_value())
    done = run_here("db", "verify")
    assert (done.returncode, "\nconsistent, not proven complete\n" in done.stdout) == (0, True)
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
