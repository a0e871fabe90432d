"""An export proves itself to somebody with the public key alone, and a chain to somebody with its former heads."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from app.audit import verify as audit_verify
from app.audit.anchor import AnchorError, HeadFile
from app.audit.chain import events, verify_proof
from app.audit.chain.covered_rows import covered_tables
from app.audit.chain.keys import KeyRing, derive_keys
from app.audit.chain.verify_proof import is_signed, merkle_root
from app.audit.verify import COMPLETE, CONSISTENT, IntegrityReport, check_audit, verify_all
from app.database.tables import APPEND_ONLY, Account, drop_triggers
from app.database.tables.append_only import drop_replace_trigger
from app.maintenance.backup import restore_backup, write_backup
from app.maintenance.export import export_dataset
from tests.security.test_tampering import populate
from tests.support.chain import all_events, relink
from tests.support.command import run_here
from tests.support.sabotage import undone
from tests.support.service import KEY, Service, cell_png

Line = dict[str, Any]


def exported(service: Service, out: Path) -> Path:
    with service.context.database.read_moment() as session:
        export_dataset(session, service.context, out, "all", images=False, proof=True)
    return out / "proof.jsonl"


def check(proof: Path, public_key: str, *heads: str) -> tuple[int, str]:
    """By the file itself, in a process that cannot import the service."""
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        _ISOLATED,
        str(proof.parent / "verify_proof.py"),
        str(proof),
        public_key,
    ]
    done = subprocess.run([*command, *heads], capture_output=True, text=True, check=False, cwd=proof.parent)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


_ISOLATED = f"""
import sys, runpy
sys.path += {[path for path in sys.path if path.endswith("site-packages")]!r}
class No:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {{"app", "ml", "secondread", "sqlalchemy"}}:
            raise AssertionError(name)
sys.meta_path.insert(0, No())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_verifier_is_one_short_file() -> None:
    text = Path(verify_proof.__file__).read_text()
    assert len(text.splitlines()) <= 150
    assert "import app" not in text
    assert "from app" not in text


def test_the_verifier_without_arguments_prints_its_usage() -> None:
    done = subprocess.run([sys.executable, verify_proof.__file__], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage: python verify_proof.py proof.jsonl PUBLIC_KEY")
    assert len(done.stderr.splitlines()) == 1


def test_a_proof_is_checked_with_the_public_key_alone(service: Service, tmp_path: Path) -> None:
    populate(service)
    public_key, heads = service.context.keys.audit.public_key, HeadFile(service.context)
    heads.append()
    proof = exported(service, tmp_path / "out")
    status, said = check(proof, public_key, str(heads.path))
    assert (status, said.splitlines()[-1]) == (0, "consistent"), said
    private = (KEY, '"p0"', "case-0", "seen", '"anna"')
    rows = "".join(line for line in proof.read_text().splitlines() if '"kind": "row"' in line)
    assert [word for word in private if word in rows] == []
    assert check(proof, derive_keys(KeyRing.parse(b"another" * 5)).audit.public_key)[0] == 1
    assert "does not contain the head 9:" in check(proof, public_key, f"9:{'0' * 64}")[1]
    lines = [json.loads(line) for line in proof.read_text().splitlines()]
    for how, (change, expected) in CHANGES.items():
        changed = [json.loads(json.dumps(line)) for line in lines]
        change(changed)
        altered = proof.with_name("altered.jsonl")
        altered.write_text("".join(json.dumps(line) + "\n" for line in changed))
        faults = verify(altered, public_key)
        assert any(expected in fault for fault in faults), (how, faults)


def verify(proof: Path, public_key: str) -> list[str]:
    """The same in this process."""
    checked = verify_proof.ProofChecker(public_key)
    for line in proof.read_text().splitlines():
        checked.take(json.loads(line))
    checked.end([])
    return checked.faults


def first(lines: list[Line], **wanted: str) -> Line:
    return next(line for line in lines if all(line.get(name) == value for name, value in wanted.items()))


def last_event(lines: list[Line]) -> Line:
    return next(line for line in reversed(lines) if line["kind"] == "event")


#: What somebody may change in a proof, and a part of what is said of it.
CHANGES: dict[str, tuple[Callable[[list[Line]], object], str]] = {
    "a label": (lambda lines: first(lines, table="labels")["columns"].update(class_code="x"), "not as audit event"),
    "a row less": (lambda lines: lines.remove(first(lines, table="looks")), "missing, although audit event"),
    "a row more": (lambda lines: lines.append(first(lines, table="looks") | {"key": "x"}), "no audit event wrote it"),
    "the head": (lambda lines: lines[0].update(head=f"1:{'0' * 64}"), "is not signed with the newest key"),
    "an event": (lambda lines: first(lines, action="rows.baseline").update(actor="x"), "was changed"),
    "an event of before": (lambda lines: first(lines, action="label.add").update(actor="x"), "was changed"),
    "digests of rows": (lambda lines: last_event(lines)["rows"].clear(), "was changed"),
    "an event less": (lambda lines: lines.remove(first(lines, action="rows.baseline")), "is missing"),
    "the last event": (lambda lines: lines.remove(last_event(lines)), "no audit event wrote it"),
    "cases of an event": (lambda lines: first(lines, kind="cases").update(cases=[]), "case_changes"),
}


def test_each_row_changes_the_root() -> None:
    rows = [{str(key): None if key == 3 else f"{key:064}" for key in range(n)} for n in range(9)]
    roots = {merkle_root({"labels": each, "looks": {"a": "b"}}) for each in rows} | {merkle_root({})}
    assert len(roots) == 10
    assert merkle_root({"a": {"x": "1"}}) != merkle_root({"a": {"x": "1"}, "b": {"y": None}})


@pytest.mark.both_databases
def test_what_is_written_meanwhile_is_no_fault(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.add_case("first", cell_png(1))

    def after_a_case() -> list[Any]:
        service.add_case("meanwhile", cell_png(2))
        return covered_tables()

    monkeypatch.setattr(audit_verify, "covered_tables", after_a_case)
    with service.context.database.read_moment() as session:
        assert verify_all(session, service.context).faults == []


@pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)
def test_two_transactions_that_change_different_columns_of_a_row_leave_what_is_stored(service: Service) -> None:
    """The second one had read the row before the first one changed it."""
    named = select(Account).where(Account.name == "anna")
    service.written_past = True
    with service.context.database.write() as second:
        slow = second.execute(named).scalar_one()
        with service.context.database.write() as first:
            first.execute(named).scalar_one().one_time_sha256 = "1" * 64
        slow.oidc_subject = "issuer anna"
    with service.context.database.read_moment() as session:
        assert check_audit(session, service.context.keys.audit).faults == []


@pytest.fixture
def anchored(service: Service, tmp_path: Path) -> Service:
    """A service whose triggers somebody has dropped, with a file of heads."""
    service.before_change = lambda: None
    service.context.settings.audit_anchor = tmp_path / "elsewhere" / "heads"
    for number in range(2):
        service.add_case(f"case-{number}", cell_png(number))
        HeadFile(service.context).append()
    service.written_past = True
    with service.context.database.write() as session:
        for table in APPEND_ONLY:
            for statement in (*drop_triggers("sqlite", table), drop_replace_trigger(table)):
                session.execute(text(statement))
    return service


def verified(service: Service) -> IntegrityReport:
    with service.context.database.read() as session:
        return verify_all(session, service.context)


def heads(service: Service) -> list[dict[str, str]]:
    path = service.context.settings.audit_anchor
    assert path is not None
    return [json.loads(line) for line in path.read_text().splitlines()]


def cut(service: Service, n_events: int) -> None:
    """Remove the newest events with the rows that they wrote, as somebody without the key can."""
    with service.context.database.write() as session:
        session.execute(text("PRAGMA defer_foreign_keys = ON"))
        last = events.read_head(session)[0] - n_events
        session.execute(text("DELETE FROM case_changes WHERE sequence > :last"), {"last": last})
        for event in all_events(session):
            for table, rows in event["row_digests"].items():
                if event["sequence"] > last and table != "case_changes":
                    for key in rows:
                        session.execute(text(f"DELETE FROM {table} WHERE id = :id"), {"id": key.replace("-", "")})
        session.execute(text("DELETE FROM audit_events WHERE sequence > :last"), {"last": last})
        digest = session.execute(
            text("SELECT digest FROM audit_events WHERE sequence = :last"), {"last": last}
        ).scalar()
        session.execute(text("UPDATE audit_head SET sequence = :last, digest = :digest"), locals() | {"session": None})


@pytest.mark.sqlite_only
def test_heads_are_added_once_each_and_lie_in_the_chain(anchored: Service) -> None:
    before = heads(anchored)
    HeadFile(anchored.context).append()
    assert heads(anchored) == before
    assert len(before) == 2
    report = verified(anchored)
    assert (report.faults, report.verdict, report.head) == ([], COMPLETE, before[-1]["head"])
    assert is_signed(report.public_key, before[0]["head"], before[0]["signature"])


@pytest.mark.sqlite_only
@undone("T21", "a head outside that the chain has lost is named", events, "contains_head", lambda *_: True)
def test_a_cut_end_is_found_by_the_file_alone_and_nothing_is_added_to_it(anchored: Service) -> None:
    cut(anchored, 1)
    before = heads(anchored)
    anchored.add_case("goes on", cell_png(5))
    with pytest.raises(AnchorError, match="has lost the head"):
        HeadFile(anchored.context).append()
    assert heads(anchored) == before
    (fault,) = verified(anchored).faults
    assert "does not contain the head" in fault
    anchored.context.settings.audit_anchor = None
    assert (verified(anchored).faults, verified(anchored).verdict) == ([], CONSISTENT)


@pytest.mark.sqlite_only
def test_a_chain_written_anew_with_the_key_is_found_by_the_file_alone(anchored: Service) -> None:
    with anchored.context.database.write() as session:
        chain = all_events(session)
        for event in chain:
            event["actor"] = "somebody else" if event["action"] == "case.add" else event["actor"]
        relink(session, chain, anchored.context.keys.audit.signers[-1])
    report = verified(anchored)
    assert len(report.faults) == 2
    assert all("it was cut or written anew" in fault for fault in report.faults)
    anchored.context.settings.audit_anchor = None
    assert verified(anchored).faults == []


@pytest.mark.sqlite_only
def test_a_file_that_is_gone_or_was_written_into_is_named(anchored: Service) -> None:
    path = anchored.context.settings.audit_anchor
    assert path is not None
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0].replace('"signature": "', '"signature": "00'), "no line", lines[1]]) + "\n")
    faults = verified(anchored).faults
    assert ["cannot be read" in fault or "is not signed by this installation" in fault for fault in faults] == [
        True
    ] * 2
    path.unlink()
    assert ["is missing" in fault for fault in verified(anchored).faults] == [True]


def settings_of(service: Service, monkeypatch: pytest.MonkeyPatch, home: Path, anchor: Path) -> None:
    """Let the commands use the service's key, another HOME and this file of heads."""
    monkeypatch.setenv("SECONDREAD_HOME", str(home))
    monkeypatch.setenv("SECONDREAD_AUDIT_ANCHOR", str(anchor))
    monkeypatch.setenv("SECONDREAD_SECRET_KEY", KEY)


@pytest.mark.sqlite_only
@pytest.mark.slow
def test_a_backup_that_comes_back_says_so_and_a_shorter_database_that_does_not_was_cut(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchor = service.context.settings.audit_anchor = tmp_path / "heads"
    service.add_case("before", cell_png(1))
    written = write_backup(service.context, tmp_path / "backup")
    assert written["head"] == verified(service).head
    assert json.loads((tmp_path / "backup" / "manifest.json").read_text())["audit"]["head"] == written["head"]
    for number in range(2, 6):
        service.add_case(f"after {number}", cell_png(number))
        HeadFile(service.context).append()
    lost = heads(service)[-1]["head"]

    by_hand = tmp_path / "by hand"  # the files of the backup, without the command
    restore_backup(tmp_path / "backup", by_hand, by_hand / "images", f"sqlite:///{by_hand / 'secondread.db'}")
    settings_of(service, monkeypatch, by_hand, anchor)
    done = run_here("db", "verify", "--against", lost)
    assert (done.returncode, done.stdout.count("it was cut or written anew")) == (1, 5)

    settings_of(service, monkeypatch, tmp_path / "restored", anchor)
    assert run_here("db", "restore", "--without-list", tmp_path / "backup").returncode == 0
    done = run_here("db", "verify", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["faults"], report["verdict"]) == (0, [], COMPLETE)
    assert [sentence for sentence in report["restores"] if "a backup was brought back, which ended at" in sentence]
    done = run_here("db", "verify", "--against", lost)
    assert (done.returncode, "says that an older backup was brought back" in done.stdout) == (0, True)
    assert (f"\n{CONSISTENT}\n" in done.stdout, COMPLETE in done.stdout) == (True, False)
    assert run_here("db", "verify", "--against", anchor).returncode == 0

    anchor.write_text("".join(anchor.read_text().splitlines(keepends=True)[:-1]))  # as if nothing had come back
    assert run_here("db", "verify").returncode == 1


def test_the_audit_page_shows_the_head_and_the_public_key(service: Service) -> None:
    head, public_key = verified(service).head, service.context.keys.audit.public_key
    page = service.get("admin", "/audit").text
    assert (head in page, public_key in page) == (True, True)
