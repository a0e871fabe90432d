"""Frozen tables of earlier versions name patients by a digest of their pseudonym: they get numbers of nobody, once."""

import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations.frozen_files import LABELS, PREDICTIONS, folder_of, snapshot_sha256
from app.platform import audit_chain
from app.tables import Evaluation
from ml.files import sync_file, sync_folder, write_bytes_atomically

#: Action of the event that names an evaluation's new digest.
ACTION = "evaluation.renumber"
_PATIENT, _PREFIX = "patient", "patient:"
# where the new tables lie until the database knows their digest
_ASIDE = ".renumbered"


def renumber(context: Context) -> int:
    """Number the patients of every frozen evaluation that an earlier version wrote; what was interrupted is finished.

    Every number of an evaluation stays as it is, since a patient's name is only a cluster there.

    Returns:
        Number of evaluations.
    """
    with context.database.read() as session:
        evaluations = session.execute(select(Evaluation.id, Evaluation.snapshot_sha256)).all()
    n_renumbered = 0
    for evaluation_id, digest in evaluations:
        folder = folder_of(context.settings.home, evaluation_id)
        if _is_whole(folder / _ASIDE, digest):
            _put_in_place(folder)
        if not _is_whole(folder, digest) or not _has_digests(folder):
            continue  # a damaged one stays as it is, and is named by `db verify`
        _write_aside(folder)
        with context.database.write() as session:
            _record(session, context, session.get_one(Evaluation, evaluation_id), snapshot_sha256(folder / _ASIDE))
        _put_in_place(folder)
        n_renumbered += 1
    return n_renumbered


def _is_whole(folder: Path, digest: str) -> bool:
    try:
        return snapshot_sha256(folder) == digest
    except OSError:
        return False


def _has_digests(folder: Path) -> bool:
    """Whether a table names patients by more than their place among the patients of the table."""
    names = parquet.read_table(folder / PREDICTIONS, columns=[_PATIENT])[_PATIENT].to_pylist()
    return any(name.startswith(_PREFIX) and int(name.removeprefix(_PREFIX)) >= len(names) for name in names)


def _write_aside(folder: Path) -> None:
    aside = folder / _ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    tables = {name: parquet.read_table(folder / name) for name in (PREDICTIONS, LABELS)}
    new_names = _numbered(tables[PREDICTIONS][_PATIENT].to_pylist())
    for name, table in tables.items():
        place = table.column_names.index(_PATIENT)
        column = pa.array([new_names.get(patient, patient) for patient in table[_PATIENT].to_pylist()], pa.string())
        parquet.write_table(table.set_column(place, _PATIENT, column), aside / name)
        sync_file(aside / name)
    sync_folder(aside)


def _numbered(names: Iterable[str]) -> dict[str, str]:
    """A number from 0 for each patient, in the order of their former numbers; a case without one is its own cluster."""
    former = {name for name in names if name.startswith(_PREFIX)}
    ordered = sorted(former, key=lambda name: int(name.removeprefix(_PREFIX)))
    return {name: f"{_PREFIX}{number}" for number, name in enumerate(ordered)}


def _record(session: Session, context: Context, evaluation: Evaluation, digest: str) -> None:
    details = {"before": evaluation.snapshot_sha256, "after": digest}
    evaluation.snapshot_sha256 = digest
    audit_chain.record(
        session,
        context.keys.audit,
        actor="service",
        action=ACTION,
        object_id=evaluation.id,
        details=details,
        reason="patients were named by a digest of their pseudonym",
    )


def _put_in_place(folder: Path) -> None:
    for name in (PREDICTIONS, LABELS):
        write_bytes_atomically(folder / name, (folder / _ASIDE / name).read_bytes())  # aside stays whole until the end
    sync_folder(folder)
    shutil.rmtree(folder / _ASIDE)
