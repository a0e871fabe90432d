"""Uploading and showing cases."""

import base64
import binascii
import hashlib
import hmac
import uuid
from dataclasses import dataclass

import numpy as np
from PIL import Image
from sqlalchemy.orm import Session

from app import audit
from app.auth.principal import Principal
from app.cases import queries
from app.cases.schemas import CaseIn, CaseOut, CasesOut
from app.cases.stored import members_bytes, stored_prediction
from app.context import Context
from app.errors import BrokenImage, Invalid, OtherImage, TooLarge, UnsupportedImage
from app.inference import Served
from app.releases.queries import class_codes, existing_release
from app.schemas import PredictionOut, TriageOut
from app.tables import Case, CasePrediction
from app.triage import Policy, summarise, triage
from ml.distributions import DirichletCpe, PredictiveDistribution
from ml.predictor import Prediction
from ml.preprocess import ImageRejectedError, decode_image, encode_png


@dataclass(frozen=True)
class Upload:
    """An uploaded image: its digest and its decoded pixels."""

    sha256: str
    image: Image.Image


def read_upload(data: bytes) -> Upload:
    """Decode uploaded bytes.

    Raises:
        TooLarge: too many pixels.
        UnsupportedImage: not a format that is read.
        BrokenImage: empty, damaged, too small or with several frames.
    """
    try:
        return Upload(hashlib.sha256(data).hexdigest(), decode_image(data))
    except ImageRejectedError as exc:
        kinds = {"too-large": TooLarge, "format": UnsupportedImage}
        raise kinds.get(exc.reason, BrokenImage)(str(exc)) from exc


def prediction_out(
    distribution: PredictiveDistribution, release_id: uuid.UUID, classes: list[str], image_sha256: str, policy: Policy
) -> PredictionOut:
    """A prediction as the API shows it."""
    summary = summarise(distribution, policy.target_error)
    intervals = summary.class_intervals
    return PredictionOut(
        release=str(release_id),
        classes=classes,
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        triage=TriageOut(**vars(triage(distribution, policy))),
        image_sha256=image_sha256,
    )


def predict_upload(context: Context, upload: Upload) -> tuple[Served, Prediction]:
    """Predict with the champion; holds no transaction while the network runs."""
    with context.database.read() as session:
        served = context.inference.served(session)
    return served, context.inference.predict(served, upload.image)


def stateless_prediction(context: Context, data: bytes) -> PredictionOut:
    """Predict an image without storing anything."""
    upload = read_upload(data)
    served, prediction = predict_upload(context, upload)
    classes = list(served.predictor.release.classes)
    return prediction_out(prediction.distribution, served.release_id, classes, upload.sha256, context.policy)


def partition_of(secret: bytes, patient: str | None, external_id: str) -> str:
    """Half of the patients calibrate, half evaluate, by a keyed hash that never changes."""
    unit = f"patient:{patient}" if patient is not None else f"case:{external_id}"
    digest = hmac.new(secret, b"partition:" + unit.encode(), hashlib.sha256).digest()
    return "calibration" if digest[0] < 128 else "evaluation"


@dataclass(frozen=True)
class NewCase:
    """Everything that a new case's rows are made of, computed before the transaction begins."""

    fields: CaseIn
    upload: Upload
    stored_sha256: str
    served: Served
    prediction: Prediction


def prepare_case(context: Context, fields: CaseIn, data: bytes) -> NewCase:
    """Decode, predict and put the image into the store."""
    upload = read_upload(data)
    served, prediction = predict_upload(context, upload)
    return NewCase(fields, upload, context.images.put(encode_png(upload.image)), served, prediction)


def store_case(session: Session, context: Context, principal: Principal, new: NewCase) -> tuple[int, CaseOut]:
    """Make the rows of a case; the same external id with the same image gives the case that is there.

    Returns:
        201 and the new case, or 200 and the one that was there.

    Raises:
        OtherImage: the external id belongs to another image.
    """
    known = queries.case_by_external_id(session, new.fields.external_id)
    if known is not None:
        if known.image_sha256 != new.upload.sha256:
            raise OtherImage("a case of this external id has another image; choose another external id")
        return 200, case_out(session, context, known, queries.latest_prediction(session, known.id))
    twin = queries.first_with_image(session, new.upload.sha256)
    case = Case(
        external_id=new.fields.external_id,
        patient=new.fields.patient,
        site=new.fields.site,
        case_metadata=dict(new.fields.metadata),
        image_sha256=new.upload.sha256,
        stored_sha256=new.stored_sha256,
        width=new.upload.image.width,
        height=new.upload.image.height,
        same_image_as=None if twin is None else twin.id,
        partition=partition_of(context.secret, new.fields.patient, new.fields.external_id),
        created_by=principal.account_id,
    )
    session.add(case)
    session.flush()
    prediction = _prediction_row(case.id, new)
    session.add(prediction)
    session.flush()
    details = {"image_sha256": case.image_sha256, "release": str(prediction.release_id)}
    audit.record(session, context.secret, actor=principal.name, action="case.add", object_id=case.id, details=details)
    return 201, case_out(session, context, case, prediction)


def _prediction_row(case_id: uuid.UUID, new: NewCase) -> CasePrediction:
    distribution = new.prediction.distribution
    a = float(distribution.log_concentration[0]) if isinstance(distribution, DirichletCpe) else None
    return CasePrediction(
        case_id=case_id,
        release_id=new.served.release_id,
        logits=np.asarray(new.prediction.logits[0], dtype="<f4").tobytes(),
        features=np.asarray(new.prediction.features[0], dtype="<f4").tobytes(),
        class_probs=[float(p) for p in distribution.class_probs[0]],
        log_concentration=a,
        disagreement_prob=float(distribution.disagreement_probs[0]),
        members=members_bytes(distribution),
    )


def case_out(
    session: Session, context: Context, case: Case, prediction: CasePrediction, n_labels: int | None = None
) -> CaseOut:
    """A case as the API shows it."""
    release = existing_release(session, prediction.release_id)
    if n_labels is None:
        n_labels = len(queries.labels_of_case(session, case.id))
    classes = class_codes(release)
    return CaseOut(
        id=str(case.id),
        external_id=case.external_id,
        patient=case.patient,
        site=case.site,
        metadata=case.case_metadata,
        width=case.width,
        height=case.height,
        partition=case.partition,
        same_image_as=None if case.same_image_as is None else str(case.same_image_as),
        created_at=case.created_at,
        n_labels=n_labels,
        prediction=prediction_out(
            stored_prediction(prediction), prediction.release_id, classes, case.image_sha256, context.policy
        ),
    )


def encode_cursor(case_id: uuid.UUID) -> str:
    """Opaque cursor that continues after a case."""
    return base64.urlsafe_b64encode(case_id.bytes).decode().rstrip("=")


def decode_cursor(cursor: str) -> uuid.UUID:
    """Case that a cursor continues after.

    Raises:
        Invalid: not a cursor that this service gave out.
    """
    try:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error) as exc:
        raise Invalid("the cursor is not one that this service gave out") from exc


def list_cases(session: Session, context: Context, cursor: str | None, limit: int) -> CasesOut:
    """A page of cases, newest first."""
    after = None if cursor is None else decode_cursor(cursor)
    rows = queries.page_of_cases(session, after=after, limit=limit + 1)
    totals = queries.label_totals(session, [case.id for case, _ in rows])
    items = [case_out(session, context, case, one, totals.get(case.id, 0)) for case, one in rows[:limit]]
    return CasesOut(items=items, next_cursor=encode_cursor(rows[limit - 1][0].id) if len(rows) > limit else None)
