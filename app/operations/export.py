"""What was collected, as a folder that `secondread train --data`, `evaluate` and people can read."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.cohort import Partition, Question
from app.evaluations.queries import stored_images
from app.evaluations.service import collected_tables
from app.operations.audit_events import reasons_of
from app.operations.proof import write_proof
from app.releases.queries import reading_classes
from app.tables import AuditEvent
from ml.tables.files import write_table

#: Kinds of tables.
Kind = Literal["csv", "parquet"]


def export_dataset(
    session: Session,
    context: Context,
    out: Path,
    partition: Partition,
    *,
    kind: Kind = "csv",
    images: bool = True,
    proof: bool = False,
) -> dict[str, int]:
    """Write labels, predictions, classes and the audit as tables, and the images; all of it, or nothing.

    Args:
        session: for reading.
        context: parts of the service.
        out: folder to make; must be empty.
        partition: all, calibration or evaluation.
        kind: of the tables: csv or parquet.
        images: whether to write the images too.
        proof: whether to write the audit and every row as a proof too.

    Returns:
        Number of cases and of labels.

    Raises:
        ValueError: the folder is not empty, or a proof of one partition is asked for.
    """
    if proof and partition != "all":
        raise ValueError("a proof has every row: leave --partition out, or --proof")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out}: the folder is not empty; choose another --out")
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    try:
        aside.mkdir(parents=True)
        counts = _write(session, context, aside, partition, kind, images=images, proof=proof)
        aside.replace(out)  # an empty folder may be there
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return counts


def _write(
    session: Session, context: Context, out: Path, partition: Partition, kind: Kind, *, images: bool, proof: bool
) -> dict[str, int]:
    """Write the files of an export into an empty folder; the numbers of cases and labels."""
    data = collected_tables(session, Question(partition=partition, weighting="none"))
    (out / "images").mkdir()
    stored = stored_images(session, data.case_ids)
    names = [f"images/{case_id}.png" for case_id in data.case_ids]
    for name, case_id in zip(names, data.case_ids, strict=True):
        if images and stored[case_id] is not None:
            (out / name).write_bytes(context.images.get(str(stored[case_id])))
    files = [names[row] for row in data.labels.row]
    write_table(data.labels_table() | {"file": files}, out / f"labels.{kind}")
    write_table(data.predictions, out / f"predictions.{kind}")
    classes = reading_classes(session)
    columns = {key: [getattr(info, key) for info in classes] for key in ("code", "name", "shortcut", "group")}
    write_table(columns, out / "classes.csv")
    write_table(_audit_table(session), out / f"audit.{kind}")
    if proof:
        write_proof(session, context, out)
    return {"n_cases": len(data.case_ids), "n_labels": len(files)}


def _audit_table(session: Session) -> dict[str, list[Any]]:
    """The audit as a table; details are JSON."""
    names = ("sequence", "created_at", "actor", "action", "object", "details", "reason", "request_id", "digest")
    table: dict[str, list[Any]] = {name: [] for name in names}
    events = session.execute(select(AuditEvent).order_by(AuditEvent.sequence).execution_options(yield_per=1000))
    for chunk in events.scalars().partitions():
        reasons = reasons_of(session, chunk)
        for event in chunk:
            shown = {name: getattr(event, name) for name in names} | {"reason": reasons.get(event.sequence)}
            shown |= {"details": json.dumps(event.details, sort_keys=True), "created_at": event.created_at.isoformat()}
            for name in names:
                table[name].append("" if shown[name] is None else shown[name])
    return table
