"""Writes the audit and every covered row as one file that can be checked with the public key."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit import verify_proof
from app.audit.chain import events, genesis
from app.audit.chain.coverage import COVERED
from app.audit.chain.row_digests import Json, build_row_document, covered_tables, row_key
from app.context import ServiceContext

_ROWS = 1000


def write_proof(session: Session, context: ServiceContext, out: Path) -> int:
    """Write ``proof.jsonl``, and next to it the program that checks it."""
    n_lines = 0
    with (out / "proof.jsonl").open("w", encoding="utf-8") as stream:
        for line in _build_proof_lines(session, context):
            stream.write(json.dumps(line) + "\n")
            n_lines += 1
    shutil.copyfile(verify_proof.__file__, out / "verify_proof.py")
    return n_lines


def _build_proof_lines(session: Session, context: ServiceContext) -> Iterator[dict[str, Json]]:
    public_key = context.keys.audit.public_key
    yield {
        "kind": "proof",
        "version": 3,
        "public_key": public_key,
        "first_key": context.keys.audit.signers[0].public,
        "head": events.read_head_text(session),
    }
    for event in events.read_all_events(session):
        rows: Json = {table: {**digests} for table, digests in (event.row_digests or {}).items()}
        signed: dict[str, Json] = {
            "stamp": event.stamp,
            "sequence": event.sequence,
            "rows": rows,
            "signature": event.signature,
            "digest": event.digest,
            "link_signature": event.link_signature,
        }
        yield {"kind": "event"} | events.build_event_document(event) | signed
    for table in covered_tables():
        stored = session.connection().execute(select(table).execution_options(yield_per=_ROWS)).mappings()
        for row in stored:
            if COVERED[table.name].covers(row):
                columns: Json = {**build_row_document(context.keys.audit.rows, table, row)}
                yield {"kind": "row", "table": table.name, "key": row_key(table, row), "columns": columns}
    for stamp, cases in genesis.case_changes(session):
        yield {"kind": "cases", "stamp": stamp, "cases": [*sorted(map(str, cases))]}
