"""From uploaded bytes to a stored case."""

import hashlib
import hmac
from dataclasses import dataclass

from PIL import Image
from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.schemas import CaseIn, CaseOut
from app.cases.showing import case_out, show_case
from app.context import Context
from app.platform import audit_chain
from app.platform.errors import BrokenImage, OtherImage, TooLarge, UnsupportedImage
from app.platform.principal import Principal
from app.predictions.inference import Served
from app.predictions.stored import output_values, prediction_values
from app.releases.queries import champion
from app.tables import Case, CasePrediction, NetworkOutput
from app.triage.planning import coin, look
from app.triage.queries import current_rule
from ml.images.image_statistics import difference_hash, optical_density
from ml.images.preprocess import ImageRejectedError, decode_image, encode_png
from ml.release.predictor import Prediction


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


def predict_upload(context: Context, upload: Upload) -> tuple[Served, Prediction]:
    """Predict with the champion; holds no transaction while the network runs."""
    with context.database.read() as session:
        served = context.inference.served(champion(session))
    return served, context.inference.predict(served, upload.image)


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
    prediction = _store_prediction(session, case, new)
    look(session, case, prediction)
    details = {"image_sha256": case.image_sha256, "release": str(prediction.release_id)}
    audit_chain.record(
        session,
        context.secret,
        actor=principal.name,
        action="case.add",
        object_id=case.id,
        details=details,
        cases=[case.id],
    )
    return 201, case_out(session, case, prediction, 0, current_rule(session))


def _store_prediction(session: Session, case: Case, new: NewCase) -> CasePrediction:
    """Store what the network made of the image, and the prediction that follows."""
    network, made = new.served.predictor.release.network_sha256, new.prediction
    output = NetworkOutput(**output_values([case.id], network, made.logits, made.features)[0])
    prediction = CasePrediction(**prediction_values([case.id], new.served.release_id, new.prediction)[0])
    session.add_all([output, prediction])
    session.flush()
    return prediction
