"""Frozen evaluations: the label snapshot as tables with digests, the document computed from those tables, a report.

Anybody who has the folder gets the same numbers with ``secondread evaluate --labels labels.parquet --predictions
predictions.parquet --weights weight --weights2 weight2 --cluster patient`` and ``secondread agreement --labels
labels.parquet --cluster patient``.
"""

import hashlib
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.evaluations.cohort import Cohort, Question
from app.evaluations.report import csv_report, html_report
from app.evaluations.service import agreement_of, cohort_for, metrics_document
from app.evaluations.tables import CohortTables, cohort_tables
from app.jobs.running import RunningJob
from app.releases.queries import existing_release
from app.tables import Evaluation
from ml.files import file_sha256, write_bytes_atomically
from ml.tables.evaluate import evaluate_tables
from ml.tables.files import write_table

LABELS, PREDICTIONS = "labels.parquet", "predictions.parquet"


def folder_of(home: Path, evaluation_id: uuid.UUID) -> Path:
    """Folder of an evaluation's tables and reports."""
    return home / "evaluations" / str(evaluation_id)


def question_of(parameters: dict[str, Any]) -> Question:
    """Question of a job's parameters."""
    times = {name: parameters.get(name) for name in ("since", "until")}
    moments = {name: None if text is None else datetime.fromisoformat(text) for name, text in times.items()}
    return Question(parameters["partition"], parameters["weighting"], site=parameters.get("site"), **moments)


def freeze_evaluation(job: RunningJob) -> dict[str, Any]:
    """Job: freeze labels and predictions, evaluate them from the frozen tables, draw the report."""
    with job.context.database.read() as session:
        done = session.execute(select(Evaluation).where(Evaluation.job_id == job.job_id)).scalar_one_or_none()
        if done is not None:
            return {"evaluation": str(done.id)}
    question = question_of(job.parameters)
    release = job.parameters.get("release")
    job.report(0.05, "reading labels and predictions")
    with job.context.database.read() as session:
        release_id, cohort = cohort_for(session, None if release is None else uuid.UUID(release), question)
        tables = cohort_tables(session, cohort, identified=False)
        reference = existing_release(session, release_id).card.get("reference")
    folder = folder_of(job.context.settings.home, job.job_id)
    folder.mkdir(parents=True, exist_ok=True)
    _write_tables(tables, folder)
    job.report(0.4, "computing every metric")
    document = metrics_document(cohort, "site", reference)
    if tables.labels["case_id"]:
        document |= evaluate_frozen(folder, cohort)
    document |= {"release": str(release_id), "question": job.parameters, "agreement": agreement_of(tables)}
    job.report(0.7, "drawing the report")
    write_bytes_atomically(folder / "report.html", html_report(document, str(job.job_id)).encode())
    write_bytes_atomically(folder / "report.csv", csv_report(document).encode())
    with job.write() as session:
        session.add(
            Evaluation(
                id=job.job_id,
                job_id=job.job_id,
                release_id=release_id,
                snapshot_sha256=snapshot_sha256(folder),
                document=document,
            )
        )
    return {"evaluation": str(job.job_id)}


def _write_tables(tables: CohortTables, folder: Path) -> None:
    labels = {name: values for name, values in tables.labels.items() if name != "row"}
    write_table(labels, folder / LABELS)
    write_table(tables.predictions, folder / PREDICTIONS)


def evaluate_frozen(folder: Path, cohort: Cohort | None = None) -> dict[str, Any]:
    """Metrics and reliability tables of frozen tables, whoever computes them.

    Args:
        folder: of an evaluation.
        cohort: where it is known whether the question was weighted; weighted where left out.
    """
    weighted = cohort is None or cohort.first is not None
    document = evaluate_tables(
        folder / LABELS,
        folder / PREDICTIONS,
        weights="weight" if weighted else None,
        weights2="weight2" if weighted else None,
        cluster="patient",
    )
    return {name: document[name] for name in ("metrics", "classes", "class_bins", "disagreement_bins")}


def snapshot_sha256(folder: Path) -> str:
    """Digest of the frozen tables."""
    digests = "".join(file_sha256(folder / name) for name in (LABELS, PREDICTIONS))
    return hashlib.sha256(digests.encode()).hexdigest()
