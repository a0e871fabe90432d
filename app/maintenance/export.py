"""Exports labels, predictions and images as a folder for `secondread train --data` and `evaluate`."""

import json
import shutil
import uuid
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.events import read_event_reasons
from app.audit.proof import write_proof
from app.cases.service import NamedOutcome, outcome_columns, outcome_out, read_outcomes
from app.context import ServiceContext
from app.database.tables import AuditEvent
from app.maintenance.export_documents import write_croissant, write_label_studio
from app.metrics import service as metric_service
from app.releases.service import existing_release, named_release_classes, patient_hmac, patient_unit
from app.specimens.service import tables_of_specimens
from ml.tables.evaluate import TRAINED_ON
from ml.tables.reading import Column, write_table
from ml.util.splits import stratified_partitions

# cases whose outcomes are read in one statement
_TOGETHER = 1000
#: Kinds of tables, or of a document next to tables in CSV.
Kind = Literal["csv", "parquet", "label-studio", "croissant"]


def export_dataset(
    session: Session,
    context: ServiceContext,
    out: Path,
    partition: metric_service.Partition,
    *,
    kind: Kind = "csv",
    images: bool = True,
    proof: bool = False,
) -> dict[str, int]:
    """Write labels, predictions, classes and the audit as tables, and the images; all of it, or nothing."""
    # Cases of the evaluation partition get the partition ``test``, of which no training sees anything; so do those of
    # the calibration partition whose patients are kept for answer sets, which are left out where that partition alone
    # is asked for. The others of it are shared out, by patient and alike in each class, to what a training uses.
    if proof and partition != "all":
        raise ValueError("a proof has every row: leave --partition out, or --proof")
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out}: the folder is not empty; choose another --out")
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex}.part")
    try:
        aside.mkdir(parents=True)
        counts = _write_export_files(session, context, aside, partition, kind, images=images, proof=proof)
        aside.replace(out)  # an empty folder may be there
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return counts


def _write_export_files(
    session: Session,
    context: ServiceContext,
    out: Path,
    partition: metric_service.Partition,
    kind: Kind,
    *,
    images: bool,
    proof: bool,
) -> dict[str, int]:
    """Write the files of an export into an empty folder; the numbers of cases, labels and cases left out."""
    question = metric_service.CohortQuery(partition=partition, weighting="none")
    release_id, whole = metric_service.load_cohort(session, question)
    kept = _kept_for_sets(session, context, whole)
    cohort = whole.take(~kept) if partition == "calibration" else whole
    data = metric_service.cohort_tables(session, cohort)
    (out / "images").mkdir()
    names = [f"images/{case_id}.png" for case_id in data.case_ids]
    for case_id, stored in metric_service.stored_images(session, data.case_ids).items() if images else ():
        for folder, digest in zip(("images", "fields"), stored, strict=True):
            if digest is not None:
                (out / folder).mkdir(exist_ok=True)
                (out / folder / f"{case_id}.png").write_bytes(context.images.get(digest))
    files = [names[row] for row in data.labels.row]
    end = "parquet" if kind == "parquet" else "csv"
    write_table(
        data.labels_table()
        | _make_training_columns(session, context, cohort, data)
        | {"file": files, "at": data.labels.at},
        out / f"labels.{end}",
    )
    has_training_data = "training" in existing_release(session, release_id).card
    further_columns = _make_prediction_columns(cohort, known=has_training_data)
    further_columns |= _make_outcome_columns(session, cohort.columns.ids())
    further_columns["specimen"], of_specimens = tables_of_specimens(session, cohort.columns.ids())
    write_table(data.predictions | further_columns, out / f"predictions.{end}")
    if of_specimens["specimen"]:
        write_table(of_specimens, out / f"specimens.{end}")
    classes = named_release_classes(session, release_id)
    columns = {key: [getattr(info, key) for info in classes] for key in ("code", "name", "shortcut", "group")}
    write_table(columns, out / "classes.csv")
    write_table(_audit_table(session), out / f"audit.{end}")
    if kind == "label-studio":
        case_ids = [str(case_id) for case_id in data.predictions["case_id"]]
        write_label_studio(out, [info.code for info in classes], names, case_ids, data.labels)
    elif kind == "croissant":
        write_croissant(out, context.clock())
    if proof:
        write_proof(session, context, out)
    return {"n_cases": len(data.case_ids), "n_labels": len(files), "n_kept_for_sets": len(whole.columns) - len(names)}


def _kept_for_sets(session: Session, context: ServiceContext, cohort: metric_service.Cohort) -> npt.NDArray[np.bool_]:
    """Cases (N,) of the calibration partition whose patients are kept for answer sets."""
    ids = cohort.columns.ids()
    names = metric_service.case_names(session, ids)
    kept = [metric_service.is_kept_for_sets(context.keys.sets, names[case_id].cluster) for case_id in ids]
    return np.array(kept, dtype=bool) & ~cohort.columns.evaluation


#: Shares of the calibration cases, by patient: without ``test`` where the evaluation cases come along as that.
SHARES = {"train": 0.6, "valid": 0.1, "calibration": 0.1, "test": 0.2}
SHARES_BESIDE_EVALUATION = {"train": 0.7, "valid": 0.15, "calibration": 0.15}


def _make_training_columns(
    session: Session, context: ServiceContext, cohort: metric_service.Cohort, data: metric_service.CohortTables
) -> dict[str, Column]:
    """Columns of LABELS that a training goes by: partition, and the digest of each case's patient."""
    columns, rows = cohort.columns, data.labels.row
    partition = np.full(len(columns), "test", dtype="U12")
    fitting = np.flatnonzero(~columns.evaluation & ~_kept_for_sets(session, context, cohort) & (columns.n_labels > 0))
    if fitting.size:
        shares = SHARES_BESIDE_EVALUATION if columns.evaluation.any() else SHARES
        patients = [str(number) for number in columns.cluster[fitting]]
        partition[fitting] = stratified_partitions(patients, columns.label_counts[fitting], shares, seed=0)
    ids = columns.ids()
    names = metric_service.case_names(session, ids)
    hmacs = [patient_hmac(context.keys.training, patient_unit(names[case_id].patient, case_id)) for case_id in ids]
    return {"partition": [str(partition[row]) for row in rows], "patient_hmac": [hmacs[row] for row in rows]}


def _make_prediction_columns(cohort: metric_service.Cohort, *, known: bool) -> dict[str, Column]:
    """Columns of PREDICTIONS: whether a case is out of distribution, empty if nothing checked, or was trained on."""
    answers = ["yes" if trained else "no" if known else "unknown" for trained in cohort.columns.trained_on]
    flags = cohort.columns.out_of_distribution
    return {"out_of_distribution": np.ma.masked_array(flags > 0, flags < 0), TRAINED_ON: answers}


def _make_outcome_columns(session: Session, case_ids: list[uuid.UUID]) -> dict[str, Column]:
    """What each case was settled as, and by whom; empty if it was not."""
    settled: dict[uuid.UUID, NamedOutcome] = {}
    for start in range(0, len(case_ids), _TOGETHER):
        settled |= read_outcomes(session, case_ids[start : start + _TOGETHER])
    shown = {case_id: outcome_columns(outcome_out(row)) for case_id, row in settled.items()}
    columns = [shown.get(case_id, ("", "")) for case_id in case_ids]
    return {"outcome": [outcome for outcome, _ in columns], "outcome_by": [by for _, by in columns]}


def _audit_table(session: Session) -> dict[str, list[Any]]:
    names = ("sequence", "created_at", "actor", "action", "object", "details", "reason", "request_id", "digest")
    table: dict[str, list[Any]] = {name: [] for name in names}
    events = session.execute(select(AuditEvent).order_by(AuditEvent.sequence).execution_options(yield_per=1000))
    for chunk in events.scalars().partitions():
        reasons = read_event_reasons(session, chunk)
        for event in chunk:
            values = {name: getattr(event, name) for name in names} | {"reason": reasons.get(event.sequence)}
            values |= {"details": json.dumps(event.details, sort_keys=True), "created_at": event.created_at.isoformat()}
            for name in names:
                table[name].append("" if values[name] is None else values[name])
    return table
