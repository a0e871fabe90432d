"""One key per database, which rotates: a new one signs, old ones still verify, what follows from the first stays."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from itsdangerous import BadSignature
from pydantic import SecretStr
from sqlalchemy import MetaData, select, text

from app.accounts import single_sign_on
from app.audit import rotation
from app.audit.anchor import HeadFile
from app.audit.chain import events, verify_proof
from app.audit.chain.keys import KeyRing, RingSecret, derive_keys
from app.audit.chain.verify_proof import ROTATION, rotation_text
from app.audit.installation import WrongKeyError, claim_database
from app.audit.rotation import apply_key_ring, rotate_key, write_ring
from app.audit.verify import check_audit, verify_all
from app.cases.ingest import partition_of
from app.context import ServiceContext, build_context
from app.database import engine as database_engine
from app.database.engine import POSTGRES_SETTINGS, Database, write_with_retry
from app.database.tables import AuditEvent, Case
from app.http.errors import ServiceUnavailable
from app.maintenance.backup import restore_backup, write_backup
from app.settings import Settings
from app.triage.planning import uniform_draw
from tests.security.test_proof import check, exported
from tests.support.chain import all_events, relink
from tests.support.command import run_here
from tests.support.postgres import PostgresServer
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import KEY, Service, cell_png, collect
from tests.support.waiting import patient

FIRST = KeyRing.parse(KEY.encode())


def with_ring(context: ServiceContext, ring: KeyRing) -> ServiceContext:
    return build_context(context.settings.model_copy(update={"secret_key": SecretStr(ring.to_bytes().decode())}))


def verified(context: ServiceContext) -> list[str]:
    with context.database.read_moment() as session:
        return verify_all(session, context).faults


def serve_with(service: Service, context: ServiceContext) -> None:
    state: Any = service.client.app.state  # type: ignore[attr-defined]
    service.context = state.context = context
    state.database = context.database


@pytest.fixture
def rotated(service: Service) -> Iterator[ServiceContext]:
    """The service's parts with a second key, which its database knows; the service itself still has the first one."""
    ring = FIRST.rotated()
    apply_key_ring(service.context, ring, "stolen")
    new = with_ring(service.context, ring)
    yield new
    new.database.engine.dispose()


@pytest.mark.both_databases
def test_a_new_key_signs_and_nothing_that_follows_from_the_first_moves(service: Service, tmp_path: Path) -> None:
    collect(service, [cell_png(number) for number in range(2)], patients=True)
    before, old = coins_and_partitions(service), service.context
    ring = FIRST.rotated()
    apply_key_ring(old, ring, "a key was lost")
    new = with_ring(old, ring)
    assert verified(new) == []
    with pytest.raises(ServiceUnavailable, match="restart it"), old.database.write() as session:
        events.record_event(session, old.keys.audit, actor="x", action="x", object_id="x")
    answer = service.client.get("/readyz")
    assert (answer.status_code, "rotated" in answer.json()["database"]) == (503, True)
    for ring_in_use, why in ((FIRST, "lacks the new one"), (KeyRing(ring.secrets[1:]), "not the key of this database")):
        with pytest.raises(WrongKeyError, match=why):
            claim_database(new.database, derive_keys(ring_in_use).audit)
    serve_with(service, new)
    service.add_case("later", cell_png(9), patient="p9")
    after = coins_and_partitions(service)
    assert {name: after[name] for name in before} == before
    assert after["later"] == (uniform_draw(old.keys.coin, "later"), partition_of(old.keys.partition, "p9", "later"))
    with new.database.read() as session:
        assert all_events(session)[-1]["action"] == "case.add"
    assert verified(new) == []
    proof = exported(service, tmp_path / "out")
    for keys in (new.keys, old.keys):
        status, said = check(proof, keys.audit.public_key)
        assert (status, said.splitlines()[-1]) == (0, "consistent"), said
    stranger = derive_keys(KeyRing.parse(b"another" * 5)).audit.public_key
    assert "not that of this chain" in check(proof, stranger)[1]
    serve_with(service, old)
    new.database.engine.dispose()


@pytest.mark.sqlite_only
@undone(
    "T22",
    "an event is signed with the key that was in force when it was written",
    verify_proof,
    "is_signed",
    lambda *_: True,
)
def test_an_event_signed_with_a_replaced_key_is_named(service: Service, rotated: ServiceContext) -> None:
    """What a thief of the old key can add after the rotation."""
    new = rotated
    with new.database.write() as session:
        events.record_event(session, new.keys.audit, actor="x", action="x", object_id="x")
    with new.database.write() as session:
        session.execute(text("DROP TRIGGER audit_events_no_update"))
        chain = all_events(session)
        relink(session, chain, service.context.keys.audit.signers[0], after=len(chain) - 1)
    assert verified(new) == [f"audit event {len(chain)} was changed, or one before it was removed"]
    service.written_past = True


def test_a_head_signed_with_a_replaced_key_excuses_nothing(
    service: Service, rotated: ServiceContext, tmp_path: Path
) -> None:
    """A line of the file that says a backup was brought back, by a thief of the old key."""
    new, old, path = rotated, service.context, tmp_path / "heads"
    new.settings.audit_anchor = path
    HeadFile(new).append()
    line = json.loads(path.read_text())
    forged = {"kind": "restore", "restored_from": 1, "signature": old.keys.audit.sign(f"{line['head']} after 1")}
    path.write_text(path.read_text() + json.dumps(line | forged) + "\n")
    assert ["signed with a key that had been replaced" in fault for fault in verified(new)] == [True]


def test_a_rotation_to_a_key_that_did_not_sign_is_named(service: Service, tmp_path: Path) -> None:
    ring = FIRST.rotated()
    with service.context.database.write() as session:
        head = events.read_head_text(session)
        keys, other = derive_keys(ring).audit, derive_keys(KeyRing.parse(b"another" * 5)).audit
        signature = other.sign(rotation_text(keys.signers[0].public, head, keys.public_key))
        details = {"public_key": keys.public_key, "signature": signature}
        events.record_event(
            session, service.context.keys.audit, actor="x", action=ROTATION, object_id="2", details=details
        )
    with service.context.database.read() as session:
        assert "rotates to a key" in "\n".join(check_audit(session, keys).faults)
        assert "rotates to a key" in "\n".join(check_audit(session, service.context.keys.audit).faults)
    assert "has not signed it" in check(exported(service, tmp_path / "out"), keys.public_key)[1]
    service.written_past = True


def test_the_command_writes_the_file_first_and_finishes_what_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "home"))
    assert run_here("user", "add", "lead", "--role", "admin").returncode == 0
    settings = Settings(home=tmp_path / "home")
    first = settings.key_ring()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.audit.rotation.apply_key_ring", lambda *_: 1 / 0)
        context = build_context(settings)
        with pytest.raises(ZeroDivisionError):
            rotate_key(context, "interrupted")
        context.database.engine.dispose()
    ring = settings.key_ring()
    assert (ring.oldest(1), len(ring.secrets)) == (first, 2)
    assert (tmp_path / "home" / "secret.key").stat().st_mode & 0o777 == 0o600
    refused = run_here("db", "verify")
    assert (refused.returncode, refused.stderr.count("\n"), "finishes" in refused.stderr) == (1, 1, True)
    done = run_here("db", "rotate-key", "--reason", "again")
    assert (done.returncode, settings.key_ring()) == (0, ring), done.stderr
    assert derive_keys(ring).audit.public_key in done.stdout + done.stderr
    assert run_here("db", "verify").returncode == 0
    assert run_here("db", "rotate-key", "--reason", "once more").returncode == 0
    assert len(settings.key_ring().secrets) == 3
    assert run_here("db", "verify").returncode == 0
    assert [path.name for path in (tmp_path / "home").glob(".secret*")] == []


def test_a_key_that_is_set_is_rotated_by_a_file(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="--out FILE"):
        rotate_key(service.context, "x")
    out = tmp_path / "ring"
    write_ring(service.context, out)
    with pytest.raises(ValueError, match="choose another one"):
        write_ring(service.context, out)
    settings = service.context.settings.model_copy(update={"secret_key": None, "secret_key_file": out})
    context = build_context(settings)
    assert rotate_key(context, "x").n_keys == 2
    assert verified(context) == []
    context.database.engine.dispose()


@pytest.fixture
def by_file(service: Service, tmp_path: Path) -> Iterator[tuple[ServiceContext, Path]]:
    """The service's parts with the key in a file, which a rotation replaces."""
    path = tmp_path / "ring"
    path.write_bytes(FIRST.to_bytes())
    context = build_context(service.context.settings.model_copy(update={"secret_key": None, "secret_key_file": path}))
    yield context, path
    context.database.engine.dispose()


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_a_rotation_waits_for_whoever_has_the_key_and_replaces_no_file_before(
    service: Service, by_file: tuple[ServiceContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every command would be refused, for a key that the database does not know, until it is run again."""
    context, path = by_file
    monkeypatch.setitem(POSTGRES_SETTINGS, "lock_timeout", "100")
    waits, told = threading.Event(), list[str]()

    def say(line: str) -> None:
        told.append(line)
        waits.set()

    with ThreadPoolExecutor(1) as pool:
        with service.context.database.write() as session:
            events.lock_head(session)
            with monkeypatch.context() as patch:
                patch.setattr(database_engine, "_PATIENCE", 0.0)
                with pytest.raises(ServiceUnavailable, match="busy"):
                    rotate_key(context, "x")
            assert path.read_bytes() == FIRST.to_bytes()
            rotating = pool.submit(rotate_key, context, "x", say)
            assert waits.wait(patient(30))
            assert path.read_bytes() == FIRST.to_bytes()
        assert rotating.result(patient(60)).n_keys == 2
    assert told[0] == "waiting: others are writing to the database"
    assert len(KeyRing.parse(path.read_bytes()).secrets) == 2
    rotated = with_ring(context, KeyRing.parse(path.read_bytes()))
    assert verified(rotated) == []
    rotated.database.engine.dispose()


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_of_two_who_bring_in_the_same_ring_the_second_finds_it_done(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = FIRST.rotated()

    def the_first_goes_between(database: Database, work: Any, *rest: Any, **of: Any) -> Any:
        # before the new key is written, after it was asked which ones there are
        monkeypatch.setattr(rotation, "write_with_retry", write_with_retry)
        apply_key_ring(service.context, ring, "the first")
        return write_with_retry(database, work, *rest, **of)

    monkeypatch.setattr(rotation, "write_with_retry", the_first_goes_between)
    assert apply_key_ring(service.context, ring, "the second").n_keys == 2
    new = with_ring(service.context, ring)
    with new.database.read() as session:
        reasons = session.execute(select(AuditEvent.reason).where(AuditEvent.action == ROTATION)).scalars()
        assert list(reasons) == ["the first"]
    new.database.engine.dispose()


@pytest.mark.slow
def test_a_backup_from_before_a_rotation_is_brought_back_with_the_newer_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SECONDREAD_AUDIT_ANCHOR", str(tmp_path / "heads"))
    for command in (("user", "add", "lead", "--role", "admin"), ("db", "backup", str(tmp_path / "backup"))):
        assert run_here(*command).returncode == 0
    assert run_here("db", "rotate-key", "--reason", "lost").returncode == 0
    (tmp_path / "home" / "secret.key").rename(tmp_path / "ring")
    (tmp_path / "again").mkdir()
    (tmp_path / "home" / "erasures.jsonl").rename(tmp_path / "again" / "erasures.jsonl")
    monkeypatch.setenv("SECONDREAD_HOME", str(tmp_path / "again"))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY_FILE", str(tmp_path / "ring"))
    done = run_here("db", "restore", tmp_path / "backup")
    assert done.returncode == 0, done.stderr
    done = run_here("db", "verify")
    assert done.returncode == 0, done.stdout


def test_cookies_of_a_replaced_key_are_accepted_until_they_would_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    first = single_sign_on._make_cookie_serializer(derive_keys(FIRST).cookies)
    for age, accepted in ((single_sign_on.COOKIE_SECONDS - 60, True), (single_sign_on.COOKIE_SECONDS + 60, False)):
        ring = KeyRing((FIRST.secrets[0], RingSecret(b"n" * 32, int(time.time()) - age)))
        newer = single_sign_on._make_cookie_serializer(derive_keys(ring).cookies)
        if accepted:
            assert newer.loads(first.dumps({"state": 1}), max_age=600) == {"state": 1}
        else:
            with pytest.raises(BadSignature):
                newer.loads(first.dumps({"state": 1}), max_age=600)
        with pytest.raises(BadSignature):
            first.loads(newer.dumps({"state": 2}), max_age=600)


def test_a_ring_is_read_as_it_was_written_and_anything_else_is_refused() -> None:
    for first in (KEY.encode(), b"ends with a line\n" * 3, bytes(range(10, 60))):
        ring = KeyRing.parse(first).rotated().rotated()
        assert KeyRing.parse(KeyRing.parse(first).to_bytes()) == KeyRing.parse(first)
        assert KeyRing.parse(ring.to_bytes()) == ring
        assert KeyRing.parse(ring.to_bytes().replace(b"\n", b" ").strip()) == ring
    for wrong in (b"secondread-keys", b"secondread-keys x", b"secondread-keys 0:zz", b"secondread-keys 0:00"):
        with pytest.raises(ValueError, match=r"ring must|at least 32 bytes"):
            KeyRing.parse(wrong)
    assert "hexadecimal" not in repr(ring)
    assert ring.secrets[0].value.hex() not in repr(ring)
    assert repr(ring.secrets[0].value) not in repr(ring)


def test_a_key_in_home_that_others_can_read_is_refused(tmp_path: Path) -> None:
    Settings(home=tmp_path).key_ring()
    (tmp_path / "secret.key").chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        Settings(home=tmp_path).key_ring()


def test_no_key_gives_what_the_key_of_another_purpose_gives() -> None:
    keys = derive_keys(FIRST)
    derived = [keys.coin, keys.partition, keys.readers.cases, keys.readers.pages, keys.readers.order, keys.audit.rows]
    assert len({key.digest(b"x") for key in derived} | {key.value for key in keys.cookies}) == len(derived) + 1


REFUSED = "not the key of this database"
OTHER = b"another key, as long as a key must be at least"
COMMANDS = ("user add eve --role admin", "db upgrade", "db verify", "demo", "serve", "worker")


def contents(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, those of the job engine too."""
    rows = {}
    for schema in (None, "dbos") if database.engine.dialect.name == "postgresql" else (None,):
        metadata = MetaData(schema=schema)
        metadata.reflect(database.engine)
        with database.engine.connect() as connection:
            for table in metadata.sorted_tables:
                rows[str(table)] = sorted(map(tuple, connection.execute(select(table)).all()), key=str)
    return rows


COINS = [0.6961641958968792, 0.30279549747923895, 0.1919679594478232]
PARTITIONS = ["calibration", "evaluation", "calibration", "evaluation", "calibration"]
CHECK = "a7221a5c28f01ee6f3bc49753083ac98ad4c421ea873372e58a7f674669319da"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(server.create())


@pytest.mark.slow
def test_a_second_installation_with_a_key_of_its_own_is_refused_before_it_writes(
    url: str, tmp_path: Path, tiny_release: Path
) -> None:
    first, second = Installation(tmp_path / "first", url), Installation(tmp_path / "second", url)
    first.prepare(tiny_release, lead="admin")
    first.run("user", "list")
    database = Database(url)
    before = contents(database)
    for command in COMMANDS:
        done = second.run(*command.split(), check=False)
        assert (done.returncode, REFUSED in done.stderr, done.stderr.count("\n")) == (1, True, 1), command
        assert contents(database) == before, command
    first.run("user", "add", "ben", "--role", "annotator")
    database.engine.dispose()


def coins_and_partitions(service: Service) -> dict[str, tuple[float, str]]:
    return {row[0]: (row[1], row[2]) for row in service.rows(select(Case.external_id, Case.u, Case.partition))}


def test_what_a_key_decides_never_moves() -> None:
    """Whatever is derived from the key in a new way would move them."""
    keys = derive_keys(KeyRing.parse(b"the same coins and partitions in every run"))
    assert [uniform_draw(keys.coin, name) for name in ("case-1", "case-2", "a b")] == COINS
    assert [partition_of(keys.partition, patient, "case-1") for patient in (None, "p1", "p2", "p3", "p4")] == PARTITIONS
    assert keys.audit.signers[0].check == CHECK


def test_the_key_may_come_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(OTHER + b"\n")
    assert Settings(home=tmp_path, secret_key_file=path).key_ring() == KeyRing.parse(OTHER)
    assert not (tmp_path / "secret.key").exists()
    with pytest.raises(ValueError, match="not both"):
        Settings(home=tmp_path, secret_key_file=path, secret_key=SecretStr(OTHER.decode()))
    path.write_text("short")
    with pytest.raises(ValueError, match="at least 32 bytes"):
        Settings(home=tmp_path, secret_key_file=path).key_ring()


def test_an_empty_key_file_in_home_is_refused_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "secret.key").touch(mode=0o600)
    with pytest.raises(ValueError, match=r"secret\.key: a key must be at least 32 bytes"):
        Settings(home=tmp_path).key_ring()
    assert (tmp_path / "secret.key").read_bytes() == b""


def test_a_key_is_made_once_and_whole(tmp_path: Path) -> None:
    key = Settings(home=tmp_path).key_ring()
    assert len(key.secrets[0].value) == 64
    assert Settings(home=tmp_path).key_ring() == key
    assert [path.name for path in tmp_path.iterdir()] == ["secret.key"]


@pytest.mark.sqlite_only
@pytest.mark.slow
def test_a_backup_of_another_key_is_refused_before_anything_is_restored(service: Service, tmp_path: Path) -> None:
    write_backup(service.context, tmp_path / "backup")
    (tmp_path / "new").mkdir()
    made = Installation(tmp_path / "new" / "home")
    made.environment["SECONDREAD_SECRET_KEY"] = OTHER.decode()
    done = made.run("db", "restore", "--without-list", tmp_path / "backup", check=False)
    assert (done.returncode, "another key" in done.stderr, done.stderr.count("\n")) == (1, True, 1)
    assert not made.home.exists()
    home = tmp_path / "elsewhere"
    assert restore_backup(
        tmp_path / "backup", home, home / "images", f"sqlite:///{home / 'x.db'}", service.context.settings.key_ring()
    )
