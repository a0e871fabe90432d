"""Uploading and showing cases."""

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
from app.cases.cursors import decode_cursor, decode_need_cursor, encode_cursor, encode_need_cursor
from app.cases.schemas import CaseIn, CaseOut, CasesOut, PredictionsOut, RequestOut, WorklistOut, WorkOut
from app.cases.stored import prediction_values, stored_prediction
from app.context import Context
from app.errors import BrokenImage, OtherImage, TooLarge, UnsupportedImage
from app.inference import Served
from app.planning import coin, judge, look
from app.policies.queries import current_rule
from app.releases.queries import class_codes, existing_release
from app.schemas import PredictionOut, TriageOut
from app.tables import Case, CasePrediction, NetworkOutput, ReadRequest
from app.triage import Rule, Triage, summarise, triage
from ml.distributions import PredictiveDistribution
from ml.image_statistics import difference_hash, optical_density
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
    distribution: PredictiveDistribution,
    release_id: uuid.UUID,
    classes: list[str],
    image_sha256: str,
    decision: Triage,
    target_error: float,
    *,
    out_of_distribution: bool,
) -> PredictionOut:
    """A prediction as the API shows it."""
    summary = summarise(distribution, target_error)
    intervals = summary.class_intervals
    return PredictionOut(
        release=str(release_id),
        classes=classes,
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        triage=TriageOut(**vars(decision)),
        out_of_distribution=out_of_distribution,
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
    with context.database.read() as session:
        rule = current_rule(session)
    unusual = bool(prediction.out_of_distribution[0])
    decision = triage(prediction.distribution, rule, out_of_distribution=unusual)
    return prediction_out(
        prediction.distribution,
        served.release_id,
        classes,
        upload.sha256,
        decision,
        rule.target_error,
        out_of_distribution=unusual,
    )


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
        return 200, show_case(session, known.id)
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
        u=coin(context.secret, new.fields.external_id),
        pi=0.0,
        image_hash=difference_hash(new.upload.image),
        stain=list(optical_density(new.served.predictor.release.preprocessing.pixels(new.upload.image))),
        created_by=principal.account_id,
    )
    session.add(case)
    session.flush()
    output = NetworkOutput(
        case_id=case.id,
        network_sha256=new.served.predictor.release.network_sha256,
        logits=np.asarray(new.prediction.logits[0], dtype="<f4").tobytes(),
        features=np.asarray(new.prediction.features[0], dtype="<f4").tobytes(),
    )
    prediction = CasePrediction(**prediction_values([case.id], new.served.release_id, new.prediction)[0])
    session.add_all([output, prediction])
    session.flush()
    look(session, case, prediction)
    details = {"image_sha256": case.image_sha256, "release": str(prediction.release_id)}
    audit.record(session, context.secret, actor=principal.name, action="case.add", object_id=case.id, details=details)
    return 201, case_out(session, case, prediction)


def stored_prediction_out(session: Session, case: Case, prediction: CasePrediction, rule: Rule) -> PredictionOut:
    """A stored prediction as the API shows it, judged by the rule that holds."""
    return prediction_out(
        stored_prediction(prediction),
        prediction.release_id,
        class_codes(existing_release(session, prediction.release_id)),
        case.image_sha256,
        judge(session, case, prediction, rule),
        rule.target_error,
        out_of_distribution=prediction.out_of_distribution,
    )


def case_out(session: Session, case: Case, prediction: CasePrediction | None, n_labels: int | None = None) -> CaseOut:
    """A case as the API shows it."""
    if n_labels is None:
        n_labels = len(queries.labels_of_case(session, case.id))
    shown = None if prediction is None else stored_prediction_out(session, case, prediction, current_rule(session))
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
        prediction=shown,
    )


def show_case(session: Session, case_id: uuid.UUID) -> CaseOut:
    """One case with its newest prediction.

    Raises:
        NotFound: there is no such case.
    """
    case = queries.case_by_id(session, case_id)
    return case_out(session, case, queries.predictions_of(session, [case_id]).get(case_id))


def list_predictions(session: Session, case_id: uuid.UUID) -> PredictionsOut:
    """Every prediction of a case, newest first."""
    case, rule = queries.case_by_id(session, case_id), current_rule(session)
    rows = queries.predictions_of_case(session, case_id)
    return PredictionsOut(items=[stored_prediction_out(session, case, row, rule) for row in rows])


def list_cases(session: Session, chosen: queries.CaseFilter, cursor: str | None, limit: int) -> CasesOut:
    """A page of cases, newest first."""
    after = None if cursor is None else decode_cursor(cursor)
    rows = queries.page_of_cases(session, chosen, after=after, limit=limit + 1)
    ids = [case.id for case in rows[:limit]]
    totals, predictions = queries.label_totals(session, ids), queries.predictions_of(session, ids)
    items = [case_out(session, case, predictions.get(case.id), totals.get(case.id, 0)) for case in rows[:limit]]
    return CasesOut(items=items, next_cursor=encode_cursor(rows[limit - 1].id) if len(rows) > limit else None)


def worklist(session: Session, cursor: str | None, limit: int) -> WorklistOut:
    """A page of the cases of which a read is wanted, those in most need first."""
    after = None if cursor is None else decode_need_cursor(cursor)
    rows = queries.page_by_need(session, after=after, limit=limit + 1)
    ids = [case.id for case in rows[:limit]]
    totals, predictions = queries.label_totals(session, ids), queries.predictions_of(session, ids)
    requests = queries.requests_of(session, ids)
    items = [
        WorkOut(
            case=case_out(session, case, predictions.get(case.id), totals.get(case.id, 0)),
            need=case.need + (1.0 if case.need < 0 else 0.0),
            near_duplicate=case.need < 0,
            requests=[request_out(*row) for row in requests.get(case.id, [])],
        )
        for case in rows[:limit]
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return WorklistOut(items=items, next_cursor=None if last is None else encode_need_cursor(last.need, last.id))


def request_out(request: ReadRequest, held_by: str | None) -> RequestOut:
    """A request as those see it who manage reads."""
    fields = ("ordinal", "round", "arm", "u", "pi", "policy_version", "state", "due_at", "closed_at")
    return RequestOut(held_by=held_by, **{name: getattr(request, name) for name in fields})
