"""Checks a proof that `secondread dataset export --proof` wrote, with the public key alone.

It needs Python and the package cryptography, and nothing of secondread:

    python verify_proof.py proof.jsonl PUBLIC_KEY [HEAD or FILE of heads]

The proof has every audit event with the digests of the rows that it wrote, and every row; of columns that name a person
or open a door it has keyed digests. Checked are the chain (SHA-256), each event's signature (Ed25519), that each row is
as the newest event about it says, that none is missing or without an event, and that the chain contains the heads that
were kept elsewhere. Key and heads must come from somebody for whom the keeper of the database cannot speak.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

GENESIS = "0" * 64
_COVERED = ("sequence", "created_at", "actor", "action", "object", "details", "reason", "request_id")


def canonical(value: Any) -> bytes:
    """JSON that is the same for the same value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def sha256(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def merkle_root(leaves: dict[str, dict[str, str | None]]) -> str:
    """Root over the digests of an event, in the order of tables and keys."""
    level = [
        hashlib.sha256(b"\0" + canonical([table, key, digest])).digest()
        for table, rows in sorted(leaves.items())
        for key, digest in sorted(rows.items())
    ]
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\1" + level[i] + level[i + 1]).digest() for i in range(0, len(level) - 1, 2)]
        level = pairs + level[len(level) & ~1 :]
    return level[0].hex() if level else sha256(b"")


class Proof:
    """Takes the lines of a proof, one after the other.

    Args:
        public_key: in hexadecimal.
    """

    def __init__(self, public_key: str) -> None:
        self.key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))
        self.faults: list[str] = []
        self.heads = {f"0:{GENESIS}"}
        self.expected: dict[tuple[str, str], tuple[int, str | None]] = {}
        self.n_events = self.n_rows = 0
        self._previous, self._before = GENESIS, hashlib.sha256()
        self._begun = self._baseline = self._closed = False

    def is_signed(self, text: str, signature: str | None) -> bool:
        """Whether the holder of the private key has signed a text."""
        try:
            self.key.verify(bytes.fromhex(signature or ""), text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True

    def event(self, event: dict[str, Any]) -> None:
        """Take the next audit event."""
        self.n_events += 1
        number, digest, leaves = event["sequence"], event["digest"], event["rows"]
        document = {name: event[name] for name in _COVERED}
        head = f"{number}:{digest}"
        if number != self.n_events:
            self.faults.append(f"audit event {self.n_events} is missing")
            self.n_events = number
        if leaves is None:  # from before events carried digests: linked by a secret key, covered by the baseline
            self._before.update(canonical([document, digest]))
            if self._begun:
                self.faults.append(f"audit event {number} has no digests of rows, although earlier ones have")
        else:
            content = self._previous.encode() + canonical(document | {"rows": merkle_root(leaves)})
            if digest != sha256(content) or not self.is_signed(head, event["signature"]):
                self.faults.append(f"audit event {number} was changed, or one before it was removed")
            self._take_leaves(document, leaves)
        self._previous = digest
        self.heads.add(head)

    def _take_leaves(self, document: dict[str, Any], leaves: dict[str, dict[str, str | None]]) -> None:
        number = document["sequence"]
        if document["action"] == "rows.baseline":
            before = {"n_events": number - 1, "events_sha256": self._before.hexdigest()}
            if self._closed or (not self._baseline and document["details"] != before):
                self.faults.append(f"audit event {number} is not the baseline of what was there before it")
            self._baseline = True
        self._closed = self._closed or document["action"] != "rows.baseline"
        self._begun = True
        for table, rows in leaves.items():
            self.expected.update({(table, key): (number, digest) for key, digest in rows.items()})

    def row(self, table: str, key: str, digest: str) -> None:
        """Take a row, by the digest that was computed from its columns."""
        self.n_rows += 1
        number, expected = self.expected.pop((table, key), (0, None))
        if number == 0:
            self.faults.append(f"{table} {key}: no audit event wrote it")
        elif expected != digest:
            self.faults.append(f"{table} {key}: not as audit event {number} wrote it")

    def take(self, line: dict[str, Any]) -> None:
        """Take a line of the file."""
        if line["kind"] == "event":
            self.event(line)
        elif line["kind"] == "row":
            self.row(line["table"], line["key"], sha256(canonical([line["table"], line["columns"]])))
        elif line["kind"] == "cases":
            self.row("case_changes", str(line["sequence"]), sha256(canonical(sorted(line["cases"]))))

    def end(self, heads: list[str]) -> None:
        """Name what is missing: rows, and heads that were kept elsewhere."""
        missing = [(name, number) for name, (number, digest) in self.expected.items() if digest is not None]
        self.faults += [f"{table} {key}: missing, although audit event {n} wrote it" for (table, key), n in missing]
        self.faults += [f"the chain does not contain the head {head}" for head in heads if head not in self.heads]
        if not self._baseline:
            self.faults.append("the chain has no baseline")


def main(arguments: list[str]) -> int:
    """Check a proof; gives the exit status."""
    proof, heads = Proof(arguments[1]), []
    for kept in arguments[2:]:
        lines = Path(kept).read_text().splitlines() if Path(kept).is_file() else []
        heads += [json.loads(line)["head"] for line in lines] or [kept]
    with Path(arguments[0]).open(encoding="utf-8") as stream:
        for line in stream:
            proof.take(json.loads(line))
    proof.end(heads)
    print(*proof.faults, f"{proof.n_events:,} audit events, {proof.n_rows:,} rows, {len(heads)} heads", sep="\n")
    print(f"not consistent: {len(proof.faults)} faults" if proof.faults else "consistent")
    return 1 if proof.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
