"""An export proves itself to somebody who has the public key and nothing of secondread."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.audit import verify as audit_verify
from app.audit.anchor import append_anchor
from app.audit.chain import verify_proof
from app.audit.chain.covered_rows import covered_tables
from app.audit.chain.keys import KeyRing, derive_keys
from app.audit.chain.verify_proof import merkle_root
from app.audit.verify import verify_all
from app.maintenance.export import export_dataset
from tests.security.test_tampering import populate
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


def test_a_proof_is_checked_with_the_public_key_alone(service: Service, tmp_path: Path) -> None:
    populate(service)
    public_key, anchor = service.context.keys.audit.public_key, tmp_path / "heads"
    with service.context.database.read() as session:
        append_anchor(anchor, session, service.context.keys.audit)
    proof = exported(service, tmp_path / "out")
    status, said = check(proof, public_key, str(anchor))
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
