"""Heads of the chain outside the database, by default: an older database shows, and is not served unasked."""

import json
import shutil
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, func, insert, select, text, update

from app.audit import anchor
from app.audit.anchor import AnchorError, HeadFile, missing_heads
from app.audit.chain import events
from app.audit.chain.covered_rows import covered_tables
from app.audit.rotation import apply_key_ring
from app.context import build_context
from app.database.engine import make_engine
from app.database.tables import APPEND_ONLY, AuditEvent, AuditHead, CaseChange, drop_triggers
from app.database.tables.append_only import drop_replace_trigger
from app.main import create_app
from app.settings import Settings
from app.worker import run_worker
from tests.security.test_append_only import Roles, roles  # noqa: F401
from tests.support.command import run_here
from tests.support.jobs import work_off
from tests.support.sabotage import undone
from tests.support.service import KEY, Service, add_people, cell_png, put_release

both_databases = pytest.mark.both_databases


@pytest.fixture
def home(request: pytest.FixtureRequest, database_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME of a default installation; on PostgreSQL with a role that owns the tables and one for the service."""
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", KEY)
    monkeypatch.setenv("SECONDREAD_WORKER", "false")
    monkeypatch.setenv("SECONDREAD_MIN_FREE_BYTES", "0")
    monkeypatch.setenv("SECONDREAD_ALLOWED_HOSTS", '["testserver"]')
    if database_kind == "postgresql":
        two: Roles = request.getfixturevalue("roles")
        monkeypatch.setenv("SECONDREAD_DATABASE_URL", two.url(two.service))
        monkeypatch.setenv("SECONDREAD_DATABASE_OWNER_URL", two.url(two.owner))
    assert run_here("db", "upgrade").returncode == 0
    monkeypatch.setattr("app.cli.server.run_server", lambda *_: None)  # a service that starts and ends at once
    return tmp_path / "home"


def correct_a_label(release: Path) -> None:
    """Serve until a label has been corrected, which is the last event."""
    context = build_context(Settings())
    with context.database.write() as session:
        put_release(session, context.keys.audit, release, context.settings.releases_folder)
    keys = add_people(context)
    context.database.engine.dispose()
    app = create_app(Settings())
    with TestClient(app) as client:
        service = Service(client, app.state.context, keys)
        case = service.add_case("case", cell_png(1), patient="p")
        label = service.outside_label(case["id"], "reader", "blast")["label"]["id"]
        service.post("outside", f"/v1/labels/{label}/revisions", json={"label": "monocyte", "reason": "looked again"})


def remove_newest_event() -> None:
    """Remove the newest event with the rows that it wrote, as the owner of the tables can without the key."""
    engine = make_engine(Settings().owner_sqlalchemy_url)
    dialect = engine.dialect.name
    with engine.begin() as connection:
        for table in APPEND_ONLY:
            for statement in [*drop_triggers(dialect, table), *[drop_replace_trigger(table)] * (dialect == "sqlite")]:
                connection.execute(text(statement))
        newest = select(func.max(AuditEvent.sequence)).scalar_subquery()
        action, rows = connection.execute(
            select(AuditEvent.action, AuditEvent.row_digests).where(AuditEvent.sequence == newest)
        ).one()
        assert action == "label.revise"
        connection.execute(delete(CaseChange).where(CaseChange.sequence == newest))
        for table in reversed(covered_tables()):
            for key in rows.get(table.name, {}):
                connection.execute(delete(table).where(table.c.id == uuid.UUID(key)))
        connection.execute(delete(AuditEvent).where(AuditEvent.sequence == newest))
        digest = select(AuditEvent.digest).where(AuditEvent.sequence == newest).scalar_subquery()
        connection.execute(update(AuditHead).values(sequence=newest, digest=digest))
    engine.dispose()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@undone("T28", "a chain that has lost its last head outside is not served", anchor, "_find_restore", lambda *_: None)
@both_databases
def test_a_label_that_the_owner_of_the_tables_removes_shows_by_default(home: Path, tiny_release: Path) -> None:
    correct_a_label(tiny_release)
    assert run_here("db", "verify").returncode == 0
    remove_newest_event()
    done = run_here("db", "verify")
    assert (done.returncode, done.stdout.count("was cut or written anew")) == (1, 1), done.stdout
    done = run_here("serve")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "`secondread db restore`" in done.stderr
    assert "`secondread serve --accept-older-head REASON`" in done.stderr
    context = build_context(Settings())
    with pytest.raises(AnchorError, match="has lost the head"):
        run_worker(context, threading.Event())
    context.database.engine.dispose()
    assert run_here("user", "add", "late", "--role", "viewer").returncode == 0  # the chain goes on from there
    assert [run_here("serve").returncode, run_here("db", "verify").returncode] == [1, 1]


@both_databases
def test_a_lost_head_is_accepted_for_a_reason_in_every_home(home: Path, tiny_release: Path, tmp_path: Path) -> None:
    correct_a_label(tiny_release)
    lost, reason = lines(home / "heads")[-1]["head"], "the disk came back from Monday's copy"
    remove_newest_event()
    assert run_here("serve", "--accept-older-head", reason).returncode == 0
    context = build_context(Settings())
    with context.database.read() as session:
        event = session.execute(select(AuditEvent).order_by(AuditEvent.sequence.desc()).limit(1)).scalar_one()
        assert (event.action, event.reason, event.details["lost"]) == (anchor.ACCEPTED, reason, lost)
        assert [lines(home / "heads")[-1][name] for name in ("kind", "head")] == [
            "restore",
            events.read_head_text(session),
        ]
    done = run_here("db", "verify")
    assert (done.returncode, f"audit event {event.sequence}: an older database was accepted" in done.stdout) == (
        0,
        True,
    )
    done = run_here("serve", "--accept-older-head", "again")  # a flag that was left in place accepts no later loss
    assert (done.returncode, "no head of the audit chain is lost" in done.stderr) == (1, True)
    assert run_here("serve").returncode == 0
    other = tmp_path / "heads of another home"
    other.write_text("".join((home / "heads").read_text().splitlines(keepends=True)[:-1]))
    context.settings.audit_anchor = other
    HeadFile(context).append()
    with context.database.read() as session:
        assert [line["kind"] for line in lines(other)][-2:] == ["head", "restore"]
        assert list(missing_heads(other, session, context.keys.audit)) == []
        changed = lines(other)
        changed[-1]["restored_from"] = 1
        other.write_text("".join(json.dumps(line) + "\n" for line in changed))
        faults = list(missing_heads(other, session, context.keys.audit))
        assert ["does not contain the head" in faults[0], "is not signed" in faults[1]] == [True, True]
        path = home / "heads"
        path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[-1])
        assert ["is there once more" in fault for fault in missing_heads(path, session, context.keys.audit)] == [True]
    context.database.engine.dispose()


def test_an_unsigned_acceptance_starts_nothing(home: Path, tiny_release: Path) -> None:
    correct_a_label(tiny_release)
    remove_newest_event()
    engine = make_engine(Settings().sqlalchemy_url)
    with engine.begin() as connection:
        row = dict(
            connection.execute(select(AuditEvent.__table__).order_by(AuditEvent.sequence.desc())).mappings().first()
        )
        forged = {"sequence": row["sequence"] + 1, "action": anchor.ACCEPTED, "details": {"head": f"1:{'0' * 64}"}}
        connection.execute(insert(AuditEvent.__table__).values(row | forged))
        connection.execute(update(AuditHead).values(sequence=row["sequence"] + 1))
    engine.dispose()
    assert run_here("serve").returncode == 1


@pytest.mark.sqlite_only
def test_a_backup_comes_back_below_the_last_head(
    home: Path, tiny_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_here("db", "backup", tmp_path / "backup").returncode == 0
    correct_a_label(tiny_release)
    kept, new = lines(home / "heads"), tmp_path / "new"
    assert len(kept) > 1  # one of the backup, one of the service
    new.mkdir()
    for name in ("heads", "erasures.jsonl"):
        shutil.copy(home / name, new / name)
    monkeypatch.setenv("SECONDREAD_HOME", str(new))
    assert run_here("db", "restore", tmp_path / "backup").returncode == 0
    assert [line["kind"] for line in lines(new / "heads")] == ["head"] * len(kept) + ["restore"]
    assert [run_here("serve").returncode, run_here("db", "verify").returncode] == [0, 0]


@pytest.mark.sqlite_only
@pytest.mark.parametrize("kept", ["nothing", "heads next to the database", "heads elsewhere", "a head"])
def test_verification_begins_with_what_it_cannot_show(home: Path, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "heads" if kept == "heads next to the database" else home.parent / "elsewhere" / "heads"
    arguments: list[str] = []
    if kept == "heads elsewhere":
        monkeypatch.setenv("SECONDREAD_AUDIT_ANCHOR", str(path))
    if kept.startswith("heads"):
        assert run_here("serve").returncode == 0
        assert len(lines(path)) == 1
    if kept == "a head":
        head = json.loads(run_here("db", "verify", "--json").stdout)["head"]
        arguments = ["--against", head]
    done = run_here("db", "verify", *arguments)
    proven = kept in {"heads elsewhere", "a head"}
    assert (done.returncode, done.stdout.startswith("not proven complete: ")) == (0, not proven), done.stdout
    assert ("lies next to the database" in done.stdout) == (kept == "heads next to the database")


def test_labels_go_on_while_heads_cannot_be_written(service: Service) -> None:
    heads: HeadFile = service.client.app.state.heads  # type: ignore[attr-defined]
    written = heads.path.read_bytes()
    case = service.add_case("case", cell_png(1))
    heads.path.unlink()
    heads.path.mkdir()
    heads.require()
    ready = service.client.get("/readyz")
    assert (ready.status_code, ready.json()["storage"]) == (
        200,
        "heads of the audit chain cannot be written (Is a directory)",
    )
    service.outside_label(case["id"], "reader", "blast")
    heads.path.rmdir()
    heads.path.write_bytes(written + b'{"kind": "head", "hea')  # as a full disk leaves it
    heads.require()
    assert service.client.get("/readyz").json()["storage"] == "ok"
    assert heads.path.read_bytes().startswith(written)
    assert len(lines(heads.path)) == len(written.splitlines()) + 1
    assert service.faults() == []


def test_a_service_whose_database_becomes_older_is_no_longer_ready(service: Service) -> None:
    heads: HeadFile = service.client.app.state.heads  # type: ignore[attr-defined]
    with service.context.database.read() as session:
        head = events.read_head(session)[0]
    service.context.settings.audit_anchor = heads.path
    line = lines(heads.path)[-1]
    line["head"] = f"{head + 5}:{'0' * 64}"
    line["signature"] = service.context.keys.audit.sign(line["head"])
    before = heads.path.read_text()
    heads.path.write_text(before + json.dumps(line) + "\n" + "of another installation\n" * 9000)
    heads._add_again()
    ready = service.client.get("/readyz")
    assert (ready.status_code, "lost a head of the audit chain" in ready.json()["database"]) == (503, True)
    heads.path.write_text(before)
    heads._add_again()
    assert service.client.get("/readyz").status_code == 200


def test_heads_of_several_processes_stand_in_order_and_a_replaced_key_adds_none(service: Service) -> None:
    heads = HeadFile(service.context)

    def work() -> None:
        for _ in range(5):
            with service.context.database.write() as session:
                events.record_event(session, service.context.keys.audit, actor="x", action="x", object_id="x")
            heads.append()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [int(line["head"].split(":")[0]) for line in lines(heads.path)]
    assert (numbers, len(set(numbers)) > 5) == (sorted(set(numbers)), True)
    before = heads.path.read_bytes()
    apply_key_ring(service.context, service.context.settings.key_ring().rotated(), "a test")
    heads.append()
    assert heads.path.read_bytes() == before


@pytest.mark.sqlite_only
@pytest.mark.parametrize(
    "odd",
    [
        "details = 'no JSON'",
        "details = 'no JSON', action = 'db.restore'",
        "created_at = 'yesterday'",
        "row_digests = '[1]'",
        "row_digests = '{\"labels\": 5}'",
    ],
)
def test_one_odd_event_is_named_and_the_others_are_compared(service: Service, odd: str) -> None:
    service.add_case("first", cell_png(1))
    service.add_case("second", cell_png(2))
    service.written_past = True
    with service.context.database.write() as session:
        for statement in [*drop_triggers("sqlite", "audit_events"), drop_replace_trigger("audit_events")]:
            session.execute(text(statement))
        newest = events.read_head(session)[0]
        session.execute(text(f"UPDATE audit_events SET {odd} WHERE sequence = {newest - 1}"))
        session.execute(text("UPDATE cases SET site = 'elsewhere' WHERE external_id = 'second'"))
    faults = service.faults()
    assert [fault for fault in faults if fault.startswith(f"audit event {newest - 1} cannot be checked")]
    assert not [fault for fault in faults if fault.startswith("audit event") and str(newest - 1) not in fault]
    assert [fault for fault in faults if fault.endswith(f"not as audit event {newest} wrote it")]
    assert not [fault for fault in faults if fault.startswith("accounts")]


@pytest.mark.slow
@pytest.mark.ci
def test_a_frozen_report_names_the_head(service: Service) -> None:
    case = service.add_case("case", cell_png(1), patient="p")
    service.outside_label(case["id"], "reader", "blast")
    asked = service.post("admin", "/v1/evaluations", json={"partition": "all"}).json()
    with service.context.database.read() as session:
        head = events.read_head_text(session)
    work_off(service.context)
    report = service.get("viewer", f"/v1/evaluations/{asked['id']}", headers={"Accept": "text/html"}).text
    assert head in report
