"""Checks a proof written by `secondread dataset export --proof` with the public key.

    python verify_proof.py proof.jsonl PUBLIC_KEY [HEAD or FILE of heads]

It needs the package cryptography. A proof has every audit event with digests of its rows, and every row. Checked: the
chain, signatures, rows against newest events, heads. Take key and heads from another keeper than the database's.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

GENESIS = "0" * 64
# the first event; the one after which the next key signs; among digests of rows, that of the cases that an event names
BASELINE, ROTATION, CASE_CHANGES = "rows.baseline", "key.rotate", "case_changes"
_COVERED = ("sequence", "created_at", "actor", "action", "object", "details", "reason", "request_id")
_encode_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode


def encode_canonical_json(value: Any) -> bytes:
    """JSON that is the same for the same value."""
    return _encode_json(value).encode()


def digest_json(value: Any) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(encode_canonical_json(value)).hexdigest()


def merkle_root(leaves: dict[str, dict[str, str | None]]) -> str:
    """Root of the tree over the digests of an event, in the order of tables and keys; the last odd node moves up."""
    level = [
        hashlib.sha256(b"\0" + encode_canonical_json([table, key, digest])).digest()
        for table, rows in sorted(leaves.items())
        for key, digest in sorted(rows.items())
    ]
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return level[0].hex() if level else hashlib.sha256(b"").hexdigest()


def event_digest(previous: str, event: dict[str, Any], root: str) -> str:
    """SHA-256 of the digest before, the event's columns and the root over the digests of its rows."""
    document = encode_canonical_json({name: event[name] for name in _COVERED} | {"rows": root})
    return hashlib.sha256(previous.encode() + document).hexdigest()


def rotation_text(before: str, head: str, public: str) -> str:
    """Text that a new key signs, so that a thief of the key before cannot write the past again."""
    return f"key {public} follows key {before} after {head}"


def is_signed(public: str, text: str, signature: str | None) -> bool:
    """Whether a signature of a text was made with the key of which this is the public one."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature or ""), text.encode())
    except (InvalidSignature, ValueError):
        return False
    return True


class ProofChecker:
    """Checks the lines of a proof one after the other."""

    def __init__(self, public_key: str) -> None:
        self.keys, self.public_key = [public_key], public_key
        self.own_head, self.signature, self.heads = f"0:{GENESIS}", "", {f"0:{GENESIS}"}
        # table → key of the row → the newest event that wrote it, and the digest: None for a row that was deleted
        self.expected: dict[str, dict[str, tuple[int, str | None]]] = {}
        self.n_events, self.n_rows, self.previous, self.faults = 0, 0, GENESIS, list[str]()

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of the file."""
        if line["kind"] == "proof":
            self.keys, self.own_head, self.signature = [line["first_key"]], line["head"], line["signature"]
        elif line["kind"] == "event":
            try:
                self._take_event(line)
            except (AttributeError, KeyError, TypeError, ValueError) as exc:  # the others are checked all the same
                self.faults.append(f"audit event {line['sequence']} cannot be checked ({type(exc).__name__})")
        elif line["kind"] == "row":
            self._take_row(line["table"], line["key"], digest_json([line["table"], line["columns"]]))
        elif line["kind"] == "cases":
            self._take_row(CASE_CHANGES, str(line["sequence"]), digest_json(sorted(line["cases"])))

    def _take_event(self, event: dict[str, Any]) -> None:
        sequence, following, previous = event["sequence"], self.n_events + 1, self.previous
        self.n_events, self.previous = sequence, event["digest"]
        if sequence != following:
            self.faults.append(f"audit event {following} is missing")
        leaves, details = event["rows"], event["details"]
        if event["action"] == BASELINE and sequence != 1:
            self.faults.append(f"audit event {sequence} is a baseline, and not the first event")
        digest = event_digest(previous, event, merkle_root(leaves))
        head = f"{sequence}:{digest}"
        if digest != event["digest"] or not is_signed(self.keys[-1], head, event["signature"]):
            self.faults.append(f"audit event {sequence} was changed, or one before it was removed")
        elif event["action"] == ROTATION:
            text = rotation_text(self.keys[-1], f"{sequence - 1}:{previous}", details["public_key"])
            if not is_signed(details["public_key"], text, details["signature"]):
                self.faults.append(f"audit event {sequence} rotates to a key that has not signed it")
            self.keys.append(details["public_key"])
        self.heads.add(head)
        for table, rows in leaves.items():
            self.expected.setdefault(table, {}).update({k or str(sequence): (sequence, d) for k, d in rows.items()})

    def _take_row(self, table: str, key: str, digest: str) -> None:
        self.n_rows += 1
        sequence, expected = self.expected.get(table, {}).pop(key, (0, None))
        if expected != digest:
            wrong = f"not as audit event {sequence} wrote it" if expected else "there again, although it was deleted"
            self.faults.append(f"{table} {key}: {wrong if sequence else 'no audit event wrote it'}")

    def end(self, heads: list[str]) -> None:
        """Name what is missing: rows, and heads that were kept elsewhere."""
        for table, rows in self.expected.items():
            missing = [(key, sequence) for key, (sequence, digest) in rows.items() if digest is not None]
            self.faults += [f"{table} {key}: missing, although audit event {n} wrote it" for key, n in missing]
        lost = sorted({self.own_head, *heads} - self.heads)
        self.faults += [f"the chain does not contain the head {head}" for head in lost]
        signed = is_signed(self.keys[-1], self.own_head, self.signature)
        self.faults += [] if signed else ["the head is not signed with the newest key of this chain"]
        self.faults += [] if self.public_key in self.keys else ["the given public key is not that of this chain"]


def main(arguments: list[str]) -> int:
    """Check a proof; gives the exit status."""
    if len(arguments) < 2:
        sys.exit("usage: python verify_proof.py proof.jsonl PUBLIC_KEY [HEAD or FILE of heads]")
    proof, heads = ProofChecker(arguments[1]), []
    for kept in arguments[2:]:
        lines = Path(kept).read_text().splitlines() if Path(kept).is_file() else []
        heads += [json.loads(line)["head"] for line in lines] or [kept]
    with Path(arguments[0]).open(encoding="utf-8") as stream:
        for line in map(json.loads, stream):
            proof.take(line)
    proof.end(heads)
    print(*proof.faults, f"{proof.n_events:,} audit events, {proof.n_rows:,} rows, {len(heads)} heads", sep="\n")
    print(f"not consistent: {len(proof.faults)} faults" if proof.faults else "consistent")
    return 1 if proof.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
