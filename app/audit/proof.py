"""Writes the audit and every covered row as one file that can be checked with the public key."""

import json
import shutil
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import Table as SqlTable
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events, verify_proof
from app.audit.chain.covered_rows import COVERED, build_row_document, covered_tables, row_key
from app.audit.chain.keys import AuditKeys, DerivedKey
from app.context import ServiceContext
from app.database.tables import CaseChange

_ROWS = 1000
#: A line of the file.
ProofLine = dict[str, Any]


def write_proof(session: Session, context: ServiceContext, out: Path) -> int:
    """Write ``proof.jsonl``, and next to it the program that checks it."""
    n_lines = 0
    with (out / "proof.jsonl").open("w", encoding="utf-8") as stream:
        for line in _build_proof_lines(session, context):
            stream.write(json.dumps(line) + "\n")
            n_lines += 1
    shutil.copyfile(verify_proof.__file__, out / "verify_proof.py")
    return n_lines


def _build_proof_lines(session: Session, context: ServiceContext) -> Iterator[ProofLine]:
    keys = context.keys.audit
    yield build_first_line(session, keys)
    written: dict[str, set[str]] = {}
    for line in build_event_lines(session):
        for table, leaves in line["rows"].items():
            written.setdefault(table, set()).update(leaves)
        yield line
    for table in covered_tables():
        yield from build_row_lines(session, keys.rows, table, written.get(table.name, ()))
    yield from build_case_lines(session)


def build_first_line(session: Session, keys: AuditKeys) -> ProofLine:
    """The first line, with the head signed by the newest key."""
    head = events.read_head_text(session)
    return {
        "kind": "proof",
        "version": 4,
        "public_key": keys.public_key,
        "first_key": keys.signers[0].public,
        "head": head,
        "signature": keys.sign(head),
    }


def build_event_lines(session: Session) -> Iterator[ProofLine]:
    """A line for each event, in order."""
    for event in events.read_events(session):
        line = {"kind": "event", **event}
        if "created_at" in line:
            line["created_at"] = line["created_at"].isoformat()
        yield line | {"rows": line.pop("row_digests", None) or {}}  # nothing in an event that somebody has changed


def build_row_lines(
    session: Session, private: DerivedKey, table: SqlTable, written: Iterable[str]
) -> Iterator[ProofLine]:
    """A line for each row of a table that must have an event, or has one: ``written`` are the keys of these."""
    rows = session.connection().execute(select(table).execution_options(yield_per=_ROWS)).mappings()
    keys = frozenset(written)
    for row in rows:
        key = row_key(table, row)
        if key in keys or COVERED[table.name].covers(row):
            yield {"kind": "row", "table": table.name, "key": key, "columns": build_row_document(private, table, row)}


def build_case_lines(session: Session) -> Iterator[ProofLine]:
    """A line for each event that names cases."""
    changes = select(CaseChange.sequence, CaseChange.case_id).order_by(CaseChange.sequence)
    for sequence, pairs in groupby(session.execute(changes), key=lambda pair: pair[0]):
        yield {"kind": "cases", "sequence": sequence, "cases": sorted(str(case_id) for _, case_id in pairs)}
