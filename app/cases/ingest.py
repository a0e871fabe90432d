"""Ingest of an image: upload, decoding, prediction and the plan for its reads."""

import hashlib
import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy import or_, select
from sqlalchemy.orm import Session
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from app.audit.chain import events
from app.audit.chain.keys import DerivedKey, InstallationKeys
from app.cases import queries
from app.cases.presenters import TriageContext, case_out, show_case, stored_prediction_out
from app.cases.schemas import CaseIn, CaseOut
from app.cases.specimen_rows import specimen_digest, specimen_for_cell, with_fields_of_specimen
from app.context import ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.tables import Case, CasePrediction, CaseTwin, NetworkOutput, new_id
from app.http.errors import BadRequest, Conflict, InvalidValue, ServiceUnavailable, TooLarge
from app.http.limiter import MAX_CELLS
from app.http.principal import Principal
from app.predictions.service import (
    BrokenImage,
    LoadedRelease,
    UnsupportedImage,
    output_values,
    prediction_values,
    read_published_sets,
)
from app.releases.service import CaseFingerprint, find_training_uses, get_champion_alias
from app.triage.service import bring_patient_forward, plan_case, policy_for_planning, uniform_draw
from ml.images.image_quality_features import optical_density
from ml.images.picture import Picture
from ml.messages import Message
from ml.release.predictor import Prediction


class ExternalIdTaken(Conflict):
    """An external id is taken by a cell with another image, patient or site."""

    code, title = "external-id-taken", "External id belongs to another cell"


def microns_per_pixel(metadata: dict[str, str]) -> float | None:
    """µm per pixel of a stored image by the metadata of its case; None where nobody said, or no length was said."""
    try:
        size = float(metadata.get("mpp", "").replace(",", "."))
    except ValueError:
        return None
    return size if math.isfinite(size) and size > 0 else None


def microns_per_pixel_of(session: Session, case_id: uuid.UUID) -> float | None:
    """µm per pixel of the image of a case."""
    case = session.get(Case, case_id)
    return None if case is None else microns_per_pixel(case.case_metadata)


@dataclass(frozen=True)
class ReplacementFile:
    """A file that takes the place of a damaged one, with the digest of its pixels."""

    stored_sha256: str
    pixels_sha256: str


def lock_unerased_cases(session: Session, case_ids: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Lock the cases of a list that are not erased, so that none is erased before this transaction ends."""
    if not case_ids or session.get_bind().dialect.name != "postgresql":  # SQLite has one writer
        return list(case_ids)
    statement = select(Case.id).where(Case.id.in_(case_ids), Case.erased_at.is_(None)).order_by(Case.id)
    return list(session.execute(statement.with_for_update(read=True, key_share=True)).scalars())


def replace_damaged_files(session: Session, damaged: Mapping[str, ReplacementFile]) -> set[str]:
    """Replace the damaged file of every case by another encoding of the same picture."""
    # A picture with other pixels takes nobody's place: another version of a decoder may have made it of the same
    # upload.
    named = or_(Case.stored_sha256.in_(damaged), Case.stored_field_sha256.in_(damaged))
    statement = select(Case).where(named, Case.erased_at.is_(None)).order_by(Case.id)
    # an erasure locks cases in the same order; rows that refer to these may come meanwhile, since no key changes
    locking = statement.with_for_update(key_share=True).execution_options(populate_existing=True)
    cases = session.execute(locking).scalars().all()
    pixels_by_file: defaultdict[str | None, set[str | None]] = defaultdict(set)
    for case in cases:
        pixels_by_file[case.stored_sha256].add(case.pixels_sha256)
        pixels_by_file[case.stored_field_sha256].add(case.field_pixels_sha256)
    refused = {name for name, other in damaged.items() if pixels_by_file[name] - {other.pixels_sha256}}
    if refused:
        return refused
    for case in cases:
        image, around = damaged.get(case.stored_sha256), damaged.get(case.stored_field_sha256 or "")
        if image is not None:
            case.stored_sha256 = image.stored_sha256
        if around is not None:
            case.stored_field_sha256 = around.stored_sha256
    return set()


_MAX_FIELDS, _MAX_PART = 10, 64 * 1024
_IMAGE_TYPES = ["image/png", "image/jpeg", "image/tiff", "application/octet-stream"]


class InMemoryParser(MultiPartParser):
    """Keeps what is received in memory, whose bounds are counted, rather than in the folder for temporary files."""

    spool_max_size = MAX_CELLS


@dataclass(frozen=True)
class MultipartForm:
    """A parsed multipart body."""

    files: dict[str, bytes]
    fields: dict[str, str]


@dataclass(frozen=True)
class CaseForm:
    """Submitted fields, image and wider field of a case; the field is None without one."""

    fields: CaseIn
    image: bytes
    field: bytes | None = None


async def _parse_multipart(request: Request, *optional: str) -> MultipartForm:
    """A multipart body with the file ``image``, and perhaps others."""
    allowed_files = ("image", *optional)
    try:
        form = await InMemoryParser(
            request.headers,
            request.stream(),
            max_files=len(allowed_files),
            max_fields=_MAX_FIELDS,
            max_part_size=_MAX_PART,
        ).parse()
    except MultiPartException as exc:
        raise BadRequest("the multipart body cannot be read, or has too many or too large parts") from exc
    sent = {name: value for name, value in form.multi_items() if isinstance(value, UploadFile)}
    try:
        if "image" not in sent:
            raise InvalidValue("send the image as a file in the multipart field `image`")
        if not sent.keys() <= set(allowed_files):
            raise InvalidValue("an unknown multipart field contains a file")
        files = {name: await value.read() for name, value in sent.items()}
        return MultipartForm(files, {name: value for name, value in form.items() if isinstance(value, str)})
    finally:
        await form.close()


def _is_multipart(request: Request) -> bool:
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


async def image_bytes(request: Request) -> bytes:
    """The uploaded image, from a multipart field or the raw body."""
    if _is_multipart(request):
        return (await _parse_multipart(request)).files["image"]
    body = await request.body()
    if not body:
        raise InvalidValue("send the image as the body, or as a file in the multipart field `image`")
    return body


async def case_form(request: Request) -> CaseForm:
    """Fields and image of a case, and the field around the cell where it is sent."""
    if not _is_multipart(request):
        raise InvalidValue("send multipart/form-data with the fields image and external_id")
    form = await _parse_multipart(request, "field")
    try:
        return CaseForm(CaseIn.model_validate(form.fields), form.files["image"], form.files.get("field"))
    except ValidationError as exc:
        errors = [e | {"loc": ("body", *e["loc"])} for e in exc.errors(include_input=False, include_context=False)]
        raise RequestValidationError(errors) from exc


def upload_schema(*, case: bool) -> dict[str, Any]:
    """OpenAPI of the request body."""
    binary = {"type": "string", "format": "binary"}
    properties: dict[str, Any] = {"image": binary}
    required = ["image"]
    if case:
        text = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\u0000]*$"}
        metadata = {"type": "string", "description": "JSON object of at most 20 texts"}
        around = "Wider field around the cell, for people alone; shown on request, never used for a prediction."
        properties["field"] = binary | {"description": around}
        properties |= dict.fromkeys(("external_id", "patient", "site", "specimen"), text) | {"metadata": metadata}
        required.append("external_id")
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    multipart = {"schema": schema}
    content: dict[str, Any] = {"multipart/form-data": multipart}
    if not case:
        content |= {kind: {"schema": binary} for kind in _IMAGE_TYPES}
    return {"requestBody": {"required": True, "content": content}}


_FieldResult = TypeVar("_FieldResult")


def partition_of(key: DerivedKey, patient: str | None, external_id: str) -> str:
    """Half of the patients calibrate, half evaluate, by a keyed hash that never changes."""
    unit = f"patient:{patient}" if patient is not None else f"case:{external_id}"
    return "calibration" if key.digest(unit.encode())[0] < 128 else "evaluation"


@dataclass(frozen=True)
class NewCase:
    """Everything that a new case's rows are made of, computed before the transaction begins."""

    fields: CaseIn
    sha256: str
    picture: Picture
    stored_sha256: str
    served: LoadedRelease
    prediction: Prediction
    field_sha256: str | None = None
    stored_field_sha256: str | None = None
    field_pixels_sha256: str | None = None
    # files of the case of this external id that were damaged when it was prepared, and what takes their place
    damaged: Mapping[str, ReplacementFile] = field(default_factory=dict)
    # files that were there before, of others, who may be erased meanwhile
    reused: frozenset[str] = frozenset()

    def held(self) -> list[str]:
        """Digests of pixels and patient that others may not store while this case is stored, and files to be kept."""
        pixels = [self.picture.digest.hex(), *(other.pixels_sha256 for other in self.damaged.values())]
        # of two cells of a patient, the second one finds the reads of the first, which may have to be due sooner
        patient, specimen = self.fields.patient, self.fields.specimen
        of_patient = [] if patient is None else [hashlib.sha256(f"patient {patient}".encode()).hexdigest()]
        of_specimen = [] if specimen is None else [specimen_digest(specimen)]
        return [*pixels, *self.reused, *of_patient, *of_specimen]


def prepare_case(context: ServiceContext, fields: CaseIn, data: bytes, field: bytes | None = None) -> NewCase:
    """Decode, predict and put the image, and the field around the cell, into the store; the field is not predicted."""
    if fields.specimen is not None:
        with context.database.read() as session:
            fields = with_fields_of_specimen(session, fields)
    files = _IngestFiles(context)
    with _decode_upload(context, fields, data, field) as (digests, existing, served, picture):
        prediction = context.inference.predict(served, picture.pixels)
        stored = files.keep(picture, None if existing is None else existing.stored_sha256)
    stored_field, field_pixels = None, None
    if field is not None:
        there = None if existing is None else existing.stored_field_sha256
        stored_field, field_pixels = _read_field(
            context, served, field, lambda around: (files.keep(around, there), around.digest.hex())
        )
    picture_without_png = replace(picture, png=b"")
    of_field = (digests.field_sha256, stored_field, field_pixels)
    computed = (fields, digests.image_sha256, picture_without_png, stored, served, prediction)
    return NewCase(*computed, *of_field, files.damaged, frozenset(files.reused))


class _IngestFiles:
    """Files of a case that is prepared."""

    def __init__(self, context: ServiceContext) -> None:
        self._images = context.images
        # damaged files, and what takes the place of each; and files that others have stored
        self.damaged: dict[str, ReplacementFile] = {}
        self.reused: set[str] = set()

    def keep(self, picture: Picture, there: str | None) -> str:
        """Put a picture into the store; its name there."""
        if there is not None and self._images.intact(there):
            self.reused.add(there)
            return there
        stored, written = self._images.keep(picture.png)
        if not written:
            self.reused.add(stored)
        if there not in {None, stored}:
            self.damaged[str(there)] = ReplacementFile(stored, picture.digest.hex())
        return stored


def inspect_upload(
    context: ServiceContext, fields: CaseIn, data: bytes, field: bytes | None = None
) -> tuple["UploadDigests", str]:
    """Decode what would become a case, as ``prepare_case`` does; nothing is predicted, and nothing is stored."""
    with _decode_upload(context, fields, data, field) as (digests, _, served, picture):
        pixels = picture.digest.hex()
    if field is not None:
        _read_field(context, served, field, lambda _: None)
    return digests, pixels


@contextmanager
def _decode_upload(
    context: ServiceContext, fields: CaseIn, data: bytes, field: bytes | None
) -> Iterator[tuple["UploadDigests", Case | None, LoadedRelease, Picture]]:
    """Digests of the bytes, the case of this external id with the same image, what is served, and the picture."""
    of_field = None if field is None else hashlib.sha256(field).hexdigest()
    digests = UploadDigests(hashlib.sha256(data).hexdigest(), of_field)
    with context.database.read() as session:
        existing = queries.case_by_external_id(session, fields.external_id)
        refuse_other_image(existing, digests)
        served = context.inference.served(get_champion_alias(session))
    # no transaction is open meanwhile
    with context.pictures.opened(data, served.predictor.release.preprocessing, png=True) as picture:
        yield digests, existing, served, picture


def _read_field(
    context: ServiceContext, served: LoadedRelease, field: bytes, make: Callable[[Picture], _FieldResult]
) -> _FieldResult:
    """Decode a field's picture as PNG without metadata, within the image limits, and process it."""
    try:
        with context.pictures.opened(field, served.predictor.release.preprocessing, png=True) as picture:
            return make(picture)
    except (TooLarge, UnsupportedImage, BrokenImage) as exc:
        raise type(exc)(Message("field: {why}", why=exc.detail)) from exc


@dataclass(frozen=True)
class UploadDigests:
    """Digests of uploaded bytes: of an image, and of the field around its cell; None without one."""

    image_sha256: str
    field_sha256: str | None = None


class _HasUploadDigests(Protocol):
    @property
    def image_sha256(self) -> str: ...
    @property
    def field_sha256(self) -> str | None: ...


def refuse_other_image(known: _HasUploadDigests | None, sent: _HasUploadDigests) -> None:
    """Refuse another image or field for an external id that exists; a missing field is accepted."""
    # A case keeps having no field, too: else one annotator would have seen it and another not.
    if known is None:
        return
    if known.image_sha256 != sent.image_sha256:
        raise ExternalIdTaken("the cell with this external id has a different image; choose another external id")
    if sent.field_sha256 is None or sent.field_sha256 == known.field_sha256:
        return
    if known.field_sha256 is None:
        raise ExternalIdTaken("the cell with this external id was stored without a field; omit the field")
    raise ExternalIdTaken("the cell with this external id has a different field; omit the field or send the stored one")


def store_case(session: Session, context: ServiceContext, principal: Principal, new: NewCase) -> tuple[int, CaseOut]:
    """Make the rows of a case; the same external id with the same image gives the case that is there."""
    lock_digests(session, new.held())  # of two that come at once, the second one sees the first
    existing, twin = queries.find_case_and_first_twin(session, new.fields.external_id, new.picture.digest.hex())
    refuse_other_image(existing, UploadDigests(new.sha256, new.field_sha256))
    if existing is None or new.damaged:
        _require_files(context, new)
    if existing is not None:
        _replace_damaged(session, new)
        return 200, show_case(session, existing.id)
    at = context.clock()
    # of two new cells of a specimen that were prepared together, the second one finds it now
    new = replace(new, fields=with_fields_of_specimen(session, new.fields))
    case = _case_row(context.keys, principal, new, twin, at)
    specimen = specimen_for_cell(session, context.keys.audit, principal, new.fields)
    case.specimen_id = None if specimen is None else specimen.id
    release, prediction = new.served.predictor.release, new.prediction
    looked_up = CaseFingerprint(case.id, case.patient, case.pixels_sha256)
    trained_on = find_training_uses(release.training, context.keys.training, [looked_up])
    row = CasePrediction(**prediction_values([case.id], new.served.release_id, prediction, trained_on, at)[0])
    network_outputs = (prediction.logits, prediction.features, prediction.appearance)
    output = output_values([case.id], release.network_sha256, *network_outputs, at)[0]
    in_force = policy_for_planning(session)
    planned = plan_case(session, case, row, in_force, context.keys.draws)
    twins = lock_unerased_cases(session, planned.twins)
    session.add(case)
    session.flush()  # other rows refer to the case
    session.add_all([NetworkOutput(**output), row])
    planned.store(session)
    probs = dict(zip(release.classes, row.class_probs, strict=True))
    bring_patient_forward(session, context.keys.audit, principal.name, case, in_force.policy, probs)
    for first, other in [(case.id, other) for other in twins] + [(other, case.id) for other in twins]:
        session.add(CaseTwin(case_id=first, twin_id=other))
    details = {"release": str(row.release_id)}  # which image it is, its row's digest says
    events.record_event(
        session,
        context.keys.audit,
        actor=principal.name,
        action="case.add",
        object_id=case.id,
        details=details,
        cases=[case.id],
    )
    sets = read_published_sets(session, [row.release_id])
    judging = TriageContext(in_force.rule, {row.release_id: list(release.classes)}, sets)
    return 201, case_out(case, stored_prediction_out(case, row, judging, planned.decision), 0)


def _require_files(context: ServiceContext, new: NewCase) -> None:
    """See that files which were there before still are: from here on nobody removes them."""
    if not all(context.images.intact(name) for name in new.reused):
        raise ServiceUnavailable("this image was erased a moment ago; send it again")


def _replace_damaged(session: Session, new: NewCase) -> None:
    """Give a case whose files were damaged those that were sent again, which something else may have encoded."""
    refused = replace_damaged_files(session, new.damaged) if new.damaged else set()
    if not refused:
        return
    if any(new.damaged[name].stored_sha256 == new.stored_field_sha256 for name in refused):
        raise ExternalIdTaken(
            "the stored field of this cell is damaged, and the new one has different pixels; "
            "restore the file from a backup or omit the field"
        )
    raise ExternalIdTaken(
        "the stored image of this cell is damaged, and the new image has different pixels; "
        "restore the file from a backup"
    )


def _choose_partition(key: DerivedKey, fields: CaseIn, twin: Case | None) -> str:
    """Partition of a new case: that of the first case with the same pixels, where no patient says otherwise."""
    if twin is not None and fields.patient is None:
        return twin.partition
    return partition_of(key, fields.patient, fields.external_id)


def _case_row(keys: InstallationKeys, principal: Principal, new: NewCase, twin: Case | None, at: datetime) -> Case:
    fields, picture = new.fields, new.picture
    return Case(
        id=new_id(),
        created_at=at,
        external_id=fields.external_id,
        patient=fields.patient,
        site=fields.site,
        case_metadata=dict(fields.metadata),
        image_sha256=new.sha256,
        pixels_sha256=picture.digest.hex(),
        stored_sha256=new.stored_sha256,
        field_sha256=new.field_sha256,
        stored_field_sha256=new.stored_field_sha256,
        field_pixels_sha256=new.field_pixels_sha256,
        width=picture.width,
        height=picture.height,
        same_image_as=None if twin is None else twin.id,
        partition=_choose_partition(keys.partition, fields, twin),
        u=uniform_draw(keys.coin, fields.external_id),
        pi=0.0,
        image_hash=picture.image_hash,
        stain=list(optical_density(picture.pixels)),
        created_by=principal.account_id,
    )
