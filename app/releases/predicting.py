"""Predictions of a release for old cases, in bulk, from what its network made of them: no network runs."""

import uuid
from typing import Any

import numpy as np
from sqlalchemy import exists, func, insert, select, update
from sqlalchemy.orm import Session

from app import audit
from app.cases.stored import prediction_values
from app.evaluations.snapshots import refresh
from app.jobs import RunningJob
from app.releases.outputs import vectors
from app.releases.queries import class_codes, existing_release
from app.tables import Case, CasePrediction, NetworkOutput
from ml.artifact import Release, read_release
from ml.predictor import prediction_of

CHUNK = 5_000


def predict_again(job: RunningJob) -> dict[str, Any]:
    """Job: give every case that the release's network has seen a prediction by this release."""
    context, release_id = job.context, uuid.UUID(job.parameters["release"])
    release = read_release(context.settings.releases_folder / str(release_id))
    with context.database.read() as session:
        total = session.execute(
            select(func.count()).where(NetworkOutput.network_sha256 == release.network_sha256)
        ).scalar_one()
        classes = class_codes(existing_release(session, release_id))
    after, seen, made = uuid.UUID(int=0), 0, 0
    while True:
        with job.write() as session:
            rows = _outputs_after(session, release, after)
            new = _predict(session, release_id, release, rows) if rows else []
            if new:
                _tell(session, job, release_id, new)
        if not rows:
            break
        after, seen, made = rows[-1][0], seen + len(rows), made + len(new)
        job.report(0.9 * seen / max(total, 1), f"{seen:,} of {total:,} cases")
    job.report(0.95, "writing the snapshot for evaluations")
    refresh(context, release_id, classes)
    return {"release": str(release_id), "n_cases": total, "n_predicted": made}


def _tell(session: Session, job: RunningJob, release_id: uuid.UUID, case_ids: list[uuid.UUID]) -> None:
    audit.record(
        session,
        job.context.secret,
        actor="prediction",
        action="predictions.add",
        object_id=release_id,
        details={"job": str(job.job_id), "n_cases": len(case_ids)},
        cases=case_ids,
    )


def _outputs_after(session: Session, release: Release, after: uuid.UUID) -> list[Any]:
    found = (
        select(NetworkOutput.case_id, NetworkOutput.logits, NetworkOutput.features)
        .where(NetworkOutput.network_sha256 == release.network_sha256, NetworkOutput.case_id > after)
        .order_by(NetworkOutput.case_id)
        .limit(CHUNK)
    )
    return list(session.execute(found).all())


def _predict(session: Session, release_id: uuid.UUID, release: Release, rows: list[Any]) -> list[uuid.UUID]:
    """Insert the predictions that are missing, and set the places in the worklist by this release.

    Returns:
        Cases that got one.
    """
    first, last = rows[0][0], rows[-1][0]
    there = exists().where(CasePrediction.case_id == Case.id, CasePrediction.release_id == release_id)
    lacking = set(session.execute(select(Case.id).where(Case.id.between(first, last), ~there)).scalars())
    new = [row for row in rows if row[0] in lacking]
    if not new:
        return []
    prediction = prediction_of(release, vectors([row[1] for row in new]), vectors([row[2] for row in new]))
    values = prediction_values([row[0] for row in new], release_id, prediction)
    session.execute(insert(CasePrediction), values)
    waiting = set(session.execute(select(Case.id).where(Case.id.between(first, last), Case.waiting)).scalars())
    needs = np.asarray(prediction.distribution.disagreement_probs)
    places = [{"id": row[0], "need": float(need)} for row, need in zip(new, needs, strict=True) if row[0] in waiting]
    if places:
        session.execute(update(Case), places)
    return [row[0] for row in new]
