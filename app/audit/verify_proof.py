"""Checks a proof written by `secondread dataset export --proof` with the public key.

    python verify_proof.py proof.jsonl PUBLIC_KEY [HEAD or FILE of heads]

It needs the package cryptography and nothing of secondread. The proof has every audit event with the digests of the
rows that it wrote, and every row, with keyed digests of what names a person or opens a door. Checked are the chain
(SHA-256; events of the last second may have no link yet), all signatures (Ed25519), that each row is as the newest
event about it says, none missing or without an event, and that the chain contains the heads that were kept elsewhere.
The newest key, and heads, must come from somebody else than the keeper of the database.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

GENESIS = "0" * 64
_COVERED = ("created_at", "actor", "action", "object", "details", "reason", "request_id")


def _encode_json_document(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def merkle_root(leaves: dict[str, dict[str, str | None]]) -> str:
    """Root over the digests of an event, in the order of tables and keys."""
    rows = [
        _encode_json_document([table, *row])
        for table, digests in sorted(leaves.items())
        for row in sorted(digests.items())
    ]
    level = [hashlib.sha256(b"\0" + row).digest() for row in rows]
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return level[0].hex() if level else _sha256(b"")


class ProofChecker:
    """Checks the lines of a proof one after the other."""

    def __init__(self, public_key: str) -> None:
        self.keys, self.wanted = [public_key], public_key
        self.faults: list[str] = []
        self.heads = {f"0:{GENESIS}"}
        self.expected: dict[tuple[str, str], tuple[str, str | None]] = {}
        self.n_events = self.n_waiting = self.n_rows = 0
        self._previous = GENESIS

    def _is_signed(self, key: str, text: str, signature: str | None) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature or ""), text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True

    def _event(self, event: dict[str, Any]) -> None:
        number, leaves, stamp = event["sequence"], event["rows"], event["stamp"]
        document = {name: event[name] for name in _COVERED} | {"rows": merkle_root(leaves), "stamp": stamp}
        digest = _sha256(_encode_json_document(document))
        whole = self._is_signed(self.keys[-1], f"event {digest}", event["signature"])
        called = f"with stamp {stamp}" if number is None else str(number)
        if event["action"] == "rows.baseline" and self.n_events + self.n_waiting > 0:
            self.faults.append(f"audit event {called} is a baseline, and not the first event")
        if number is not None:
            self._link(event, digest, whole=whole)
        elif not whole:
            self.faults.append(f"the event with stamp {stamp}, which waits for its place in the chain, was changed")
        self.n_waiting += number is None
        for table, rows in leaves.items():
            self.expected.update({(table, key or str(stamp)): (called, digest) for key, digest in rows.items()})

    def _link(self, event: dict[str, Any], digest: str, *, whole: bool) -> None:
        self.n_events, number = self.n_events + 1, event["sequence"]
        head = f"{number}:{_sha256((self._previous + digest).encode())}"
        if number != self.n_events:
            self.faults.append(f"audit event {self.n_events} is missing")
            self.n_events = number
        linked = head == f"{number}:{event['digest']}" and self._is_signed(self.keys[-1], head, event["link_signature"])
        if not whole or not linked:
            self.faults.append(f"audit event {number} was changed, or one before it was removed")
        if event["action"] == "key.rotate":
            self._rotate(number, **event["details"])
        self._previous = event["digest"]
        self.heads.add(head)

    def _rotate(self, number: int, public_key: str, signature: str) -> None:
        text = f"key {public_key} follows key {self.keys[-1]} after {number - 1}:{self._previous}"
        if not self._is_signed(public_key, text, signature):
            self.faults.append(f"audit event {number} rotates to a key that has not signed it")
        self.keys.append(public_key)

    def _row(self, table: str, key: str, digest: str) -> None:
        self.n_rows += 1
        number, expected = self.expected.pop((table, key), ("", None))
        if not number or expected != digest:
            wrong = f"not as audit event {number} wrote it" if number else "no audit event wrote it"
            self.faults.append(f"{table} {key}: {wrong}")

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of the file."""
        if line["kind"] == "proof":
            self.keys = [line["first_key"]]
        elif line["kind"] == "event":
            self._event(line)
        elif line["kind"] == "row":
            self._row(line["table"], line["key"], _sha256(_encode_json_document([line["table"], line["columns"]])))
        elif line["kind"] == "cases":
            self._row("case_changes", str(line["stamp"]), _sha256(_encode_json_document(sorted(line["cases"]))))

    def end(self, heads: list[str]) -> None:
        """Name what is missing: rows, and heads that were kept elsewhere."""
        missing = [(name, number) for name, (number, digest) in self.expected.items() if digest is not None]
        self.faults += [f"{table} {key}: missing, although audit event {n} wrote it" for (table, key), n in missing]
        self.faults += [f"the chain does not contain the head {head}" for head in heads if head not in self.heads]
        self.faults += [] if self.wanted in self.keys else ["the given public key is not that of this chain"]


def main(arguments: list[str]) -> int:
    """Check a proof; gives the exit status."""
    proof, heads = ProofChecker(arguments[1]), []
    for kept in arguments[2:]:
        lines = Path(kept).read_text().splitlines() if Path(kept).is_file() else []
        heads += [json.loads(line)["head"] for line in lines] or [kept]
    with Path(arguments[0]).open(encoding="utf-8") as stream:
        for line in stream:
            proof.take(json.loads(line))
    proof.end(heads)
    events = f"{proof.n_events:,} audit events, {proof.n_waiting:,} without a link yet"
    print(*proof.faults, f"{events}, {proof.n_rows:,} rows, {len(heads)} heads", sep="\n")
    print(f"not consistent: {len(proof.faults)} faults" if proof.faults else "consistent")
    return 1 if proof.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
