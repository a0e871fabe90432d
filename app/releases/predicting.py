"""Predictions of a release for old cases, in bulk, from what its network made of them: no network runs."""

import uuid
from typing import Any

import numpy as np
from sqlalchemy import exists, func, insert, select, update
from sqlalchemy.orm import Session

from app.cases.stored import prediction_values
from app.jobs import RunningJob
from app.releases.outputs import vectors
from app.tables import Case, CasePrediction, NetworkOutput
from ml.artifact import Release, read_release
from ml.predictor import prediction_of

CHUNK = 5_000


def predict_again(job: RunningJob) -> dict[str, Any]:
    """Job: give every case that the release's network has seen a prediction by this release."""
    release_id = uuid.UUID(job.parameters["release"])
    release = read_release(job.context.settings.releases_folder / str(release_id))
    with job.context.database.read() as session:
        total = session.execute(
            select(func.count()).where(NetworkOutput.network_sha256 == release.network_sha256)
        ).scalar_one()
    after, seen, made = uuid.UUID(int=0), 0, 0
    while True:
        with job.write() as session:
            rows = _outputs_after(session, release, after)
            if not rows:
                return {"release": str(release_id), "n_cases": total, "n_predicted": made}
            made += _predict(session, release_id, release, rows)
        after, seen = rows[-1][0], seen + len(rows)
        job.report(min(seen / max(total, 1), 0.99), f"{seen:,} of {total:,} cases")


def _outputs_after(session: Session, release: Release, after: uuid.UUID) -> list[Any]:
    found = (
        select(NetworkOutput.case_id, NetworkOutput.logits, NetworkOutput.features)
        .where(NetworkOutput.network_sha256 == release.network_sha256, NetworkOutput.case_id > after)
        .order_by(NetworkOutput.case_id)
        .limit(CHUNK)
    )
    return list(session.execute(found).all())


def _predict(session: Session, release_id: uuid.UUID, release: Release, rows: list[Any]) -> int:
    """Insert the predictions that are missing, and set the places in the worklist by this release."""
    first, last = rows[0][0], rows[-1][0]
    there = exists().where(CasePrediction.case_id == Case.id, CasePrediction.release_id == release_id)
    lacking = set(session.execute(select(Case.id).where(Case.id.between(first, last), ~there)).scalars())
    new = [row for row in rows if row[0] in lacking]
    if not new:
        return 0
    prediction = prediction_of(release, vectors([row[1] for row in new]), vectors([row[2] for row in new]))
    values = prediction_values([row[0] for row in new], release_id, prediction)
    session.execute(insert(CasePrediction), values)
    waiting = set(session.execute(select(Case.id).where(Case.id.between(first, last), Case.waiting)).scalars())
    needs = np.asarray(prediction.distribution.disagreement_probs)
    places = [{"id": row[0], "need": float(need)} for row, need in zip(new, needs, strict=True) if row[0] in waiting]
    if places:
        session.execute(update(Case), places)
    return len(new)
