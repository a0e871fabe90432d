"""Predicts old cases with a release in bulk, from stored network outputs."""

import uuid
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self, TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image
from pydantic import BaseModel
from sqlalchemy import ColumnElement, exists, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.audit.chain import events
from app.context import ServiceContext
from app.database.engine import insert_new
from app.database.tables import Case, CasePrediction, NetworkOutput
from app.jobs import service
from app.jobs.service import PARTS, RunningJob
from app.metrics.service import refresh_snapshot
from app.predictions.service import output_values, prediction_values
from app.recalibration.training_data import decode_vectors, update_worklist_places
from app.releases.service import CaseFingerprint, class_codes, existing_release, find_training_uses, served_release_id
from ml.images.preprocess import decode_image
from ml.messages import Message
from ml.release.artifact import Release, read_release
from ml.release.predictor import BATCH, prediction_of, quality_features_for_release

CHUNK = 5_000
#: Cases of a part; of the last one at most as many, and those that come while it is done.
PART_CASES = 100_000
_BEGINNING = uuid.UUID(int=0)


class PredictionResult(TypedDict):
    """Result of predicting old cases: number of cases, new predictions and unreadable images."""

    # Of a part these are its own; ``parts`` are the other jobs that the job was divided into.

    release: str
    parts: list[str]
    n_cases: int
    n_predicted: int
    n_unreadable: int


@dataclass(frozen=True)
class _CaseRange:
    """Cases of a part: identifiers above ``after``, and not above ``up_to`` where there is such an end."""

    after: uuid.UUID = _BEGINNING
    up_to: uuid.UUID | None = None

    @classmethod
    def between(cls, after: str, up_to: str | None) -> Self:
        """From identifiers as parameters of a job have them."""
        return cls(uuid.UUID(after), None if up_to is None else uuid.UUID(up_to))

    def conditions(self, column: InstrumentedAttribute[uuid.UUID]) -> list[ColumnElement[bool]]:
        """That a case is of this part."""
        end = [] if self.up_to is None else [column <= self.up_to]
        return [column > self.after, *end]


def predict_stored_cases(job: RunningJob) -> PredictionResult:
    """Job: give every case whose image can be read a prediction by this release."""
    context, release_id = job.context, uuid.UUID(job.parameters["release"])
    release = read_release(context.folders.path(f"releases/{release_id}"))
    span, parts = _assign_case_range(job)
    unreadable = _run_network_on_images(job, release, span)
    with context.database.read() as session:
        of_part = span.conditions(NetworkOutput.case_id)
        total = session.execute(
            select(func.count()).where(NetworkOutput.network_sha256 == release.network_sha256, *of_part)
        ).scalar_one()
        classes = class_codes(existing_release(session, release_id))
    after, seen, predicted = span.after, 0, 0
    while True:
        with job.write() as session:
            rows = _read_outputs_after(session, release, _CaseRange(after, span.up_to))
            new = _insert_missing_predictions(session, job.context, release_id, release, rows) if rows else []
            if rows:
                _place_if_champion(session, release_id, rows[0][0], rows[-1][0])
            if new:
                _record_predictions(session, job, release_id, new)
        if not rows:
            break
        after, seen, predicted = rows[-1][0], seen + len(rows), predicted + len(new)
        job.report(0.7 + 0.2 * seen / max(total, 1), Message("{n:,} of {total:,} cells", n=seen, total=total))
    job.report(0.95, Message("writing the snapshot for evaluations"))
    refresh_snapshot(context, release_id, classes)
    return {
        "release": str(release_id),
        "parts": parts,
        "n_cases": total,
        "n_predicted": predicted,
        "n_unreadable": unreadable,
    }


def _assign_case_range(job: RunningJob) -> tuple[_CaseRange, list[str]]:
    """Assign this job its range of cases; submits the other parts once if there are many."""
    if "after" in job.parameters:
        return _CaseRange.between(job.parameters["after"], job.parameters["up_to"]), []
    division = _PartDivision.model_validate(
        job.batch(PARTS, lambda session: _submit_further_parts(session, job).model_dump(mode="json"))
    )
    return _CaseRange(up_to=division.up_to), division.parts


class _PartDivision(BaseModel):
    """End of the first part, None if it is the only one, and the jobs of the others."""

    up_to: uuid.UUID | None
    parts: list[str]


def _submit_further_parts(session: Session, job: RunningJob) -> _PartDivision:
    total = session.execute(select(func.count()).select_from(Case)).scalar_one()
    cases = select(Case.id, func.row_number().over(order_by=Case.id).label("number")).subquery()
    at_an_end = select(cases.c.id).where(cases.c.number % PART_CASES == 0, cases.c.number < total)
    ends: list[uuid.UUID] = [*session.execute(at_an_end.order_by(cases.c.number)).scalars()]
    parts = []
    for after, up_to in pairwise([*ends, None]):
        span = {"after": str(after), "up_to": None if up_to is None else str(up_to)}
        parameters = {"release": job.parameters["release"], **span}
        parts.append(str(service.submit_job(session, job.context, "prediction", parameters, None).id))
    return _PartDivision(up_to=ends[0] if ends else None, parts=parts)


def _run_network_on_images(job: RunningJob, release: Release, span: _CaseRange) -> int:
    context, sha256 = job.context, release.network_sha256
    seen = exists().where(NetworkOutput.case_id == Case.id, NetworkOutput.network_sha256 == sha256)
    lacking = [Case.erased_at.is_(None), ~seen, *span.conditions(Case.id)]
    with context.database.read() as session:
        total = session.execute(select(func.count()).select_from(Case).where(*lacking)).scalar_one()
    if not total:
        return 0
    predictor = context.inference.predictor(release)
    after, done, unreadable = span.after, 0, 0
    while True:
        query = select(Case.id, Case.stored_sha256).where(*lacking, Case.id > after).order_by(Case.id).limit(BATCH)
        with context.database.read() as session:
            rows = session.execute(query).all()
        if not rows:
            return unreadable
        images = {row[0]: image for row in rows if (image := _read_stored_image(context, row[1])) is not None}
        if images:
            pixels = predictor.pixels(list(images.values()))
            appearance = quality_features_for_release(release, np.stack(pixels))
            outputs = output_values(list(images), sha256, *predictor.outputs(pixels), appearance, context.clock())
            with job.write() as session:
                # a patient may have been erased, and another job may have been quicker, while the network ran
                still = select(Case.id).where(Case.id.in_(images), *lacking).order_by(Case.id).with_for_update()
                still_missing = set(session.execute(still).scalars())
                values = [row for row in outputs if row["case_id"] in still_missing]
                if values:
                    insert_new(session, NetworkOutput, values)
        after, done, unreadable = rows[-1][0], done + len(rows), unreadable + len(rows) - len(images)
        job.report(0.7 * done / total, Message("network: {n:,} of {total:,} images", n=done, total=total))


def _read_stored_image(context: ServiceContext, stored_sha256: str) -> Image.Image | None:
    """A stored image, None where it is damaged or gone: that is reported, and stops no other prediction."""
    data = context.images.find(stored_sha256)
    return None if data is None else decode_image(data)


def _record_predictions(session: Session, job: RunningJob, release_id: uuid.UUID, case_ids: list[uuid.UUID]) -> None:
    events.record_event(
        session,
        job.context.keys.audit,
        actor="prediction",
        action="predictions.add",
        object_id=release_id,
        details={"job": str(job.job_id), "n_cases": len(case_ids)},
        cases=case_ids,
    )


def _read_outputs_after(session: Session, release: Release, span: _CaseRange) -> list[Any]:
    statement = (
        select(NetworkOutput.case_id, NetworkOutput.logits, NetworkOutput.features, NetworkOutput.appearance)
        .where(NetworkOutput.network_sha256 == release.network_sha256, *span.conditions(NetworkOutput.case_id))
        .order_by(NetworkOutput.case_id)
        .limit(CHUNK)
    )
    return list(session.execute(statement).all())


def _insert_missing_predictions(
    session: Session, context: ServiceContext, release_id: uuid.UUID, release: Release, rows: list[Any]
) -> list[uuid.UUID]:
    first, last = rows[0][0], rows[-1][0]
    there = exists().where(CasePrediction.case_id == Case.id, CasePrediction.release_id == release_id)
    lacking = set(session.execute(select(Case.id).where(Case.id.between(first, last), ~there)).scalars())
    new = [row for row in rows if row[0] in lacking]
    if not new:
        return []
    logits, features = (decode_vectors([row[column] for row in new]) for column in (1, 2))
    prediction = prediction_of(release, logits, features, _decode_appearances([row[3] for row in new]))
    trained_on = _find_training_uses(session, context, release, [row[0] for row in new])
    values = prediction_values([row[0] for row in new], release_id, prediction, trained_on, context.clock())
    # another job for the same release may have been quicker with some of them
    inserted = insert_new(session, CasePrediction, values)
    return [row["case_id"] for row in values if row["id"] in inserted]


def _place_if_champion(session: Session, release_id: uuid.UUID, first: uuid.UUID, last: uuid.UUID) -> None:
    """Set the places of cases in the worklist by the predictions of this release, where it is the champion."""
    if served_release_id(session) != release_id:
        return
    update_worklist_places(session, release_id, first, last)


def _decode_appearances(blobs: list[bytes | None]) -> npt.NDArray[np.float32] | None:
    """Stored statistics of pixels (N, F), rows of NaN where they are unknown; None where all are."""
    stored_blobs = [blob for blob in blobs if blob is not None]
    if not stored_blobs:
        return None
    unknown = np.full(len(stored_blobs[0]) // 4, np.nan, dtype="<f4").tobytes()
    return decode_vectors([unknown if blob is None else blob for blob in blobs])


def _find_training_uses(
    session: Session, context: ServiceContext, release: Release, case_ids: list[uuid.UUID]
) -> list[str | None]:
    """Find how the release used each case; decodes the image if its pixel digest was not kept."""
    if release.training is None:
        return [None] * len(case_ids)
    query = select(Case.id, Case.patient, Case.pixels_sha256)
    # in order: they lie between the first and the last, and to name each would take longer than to read it
    rows = {row[0]: row for row in session.execute(query.where(Case.id.between(case_ids[0], case_ids[-1])))}
    fingerprints = [CaseFingerprint(*rows[case_id]) for case_id in case_ids]
    return find_training_uses(release.training, context.keys.training, fingerprints)
