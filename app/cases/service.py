"""Predict without storing, store cases, and list them."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.cases import queries
from app.cases.active_config import ActiveConfig, ActiveConfigCache
from app.cases.blindness import (
    BlindReadPending,
    CaseInPath,
    PathCase,
    ResolvedCase,
    blind_opinions,
    case_handle,
    ensure_revealed,
    exposures_of,
    has_committed,
    hidden_after_commit,
    hidden_because,
    hidden_before_final,
    hidden_of_repeat,
    note_exposure,
    policy_of_requests,
    record_exposure,
    was_exposed,
    was_exposed_to,
)
from app.cases.comments import add_comment, list_comments
from app.cases.correction_window import (
    CORRECTION_TIME,
    advance_other_windows,
    close_windows_of_account,
    has_provisional_label,
    is_provisional,
    is_window_over,
    open_correction_window,
    provisional_annotator_ids,
)
from app.cases.gallery import (
    MOST_TILES,
    SPLIT,
    GalleryIndexOut,
    TileOut,
    TilesOut,
    draw_tiles,
    gallery_index,
    newest_cells,
)
from app.cases.ingest import (
    CaseForm,
    ExternalIdTaken,
    InMemoryParser,
    NewCase,
    UploadDigests,
    inspect_upload,
    microns_per_pixel,
    microns_per_pixel_of,
    partition_of,
    prepare_case,
    refuse_other_image,
    store_case,
)
from app.cases.presenters import (
    OodAssessment,
    cases_out,
    image_response,
    outcome_columns,
    outcome_out,
    prediction_out,
    show_case,
    stored_prediction_out,
    thumbnail_response,
    triage_context_of,
)
from app.cases.queries import (
    CaseFilter,
    CaseSort,
    CaseState,
    Changes,
    NamedLabel,
    NamedOutcome,
    case_by_external_id,
    case_by_id,
    case_named,
    cases_with_images,
    cases_with_pixels,
    count_cases,
    count_changes,
    decode_cursor,
    decode_need_cursor,
    draw_random_unit,
    encode_cursor,
    encode_need_cursor,
    find_case_and_first_twin,
    flagged_labels,
    has_field,
    has_five_labels,
    images_in_use,
    is_empty,
    is_held_back,
    label_histories,
    label_history,
    labels_of_case,
    latest_prediction,
    list_sites,
    maybe_hold_back,
    neighbours_of,
    newest_label_at,
    overdue_cells,
    predictions_of,
    read_outcomes,
    requests_of,
    same_images,
    sorted_case_ids,
    standing_outcomes,
    stored_image_names,
    wants_repeats,
)
from app.cases.schemas import (
    CaseIn,
    CaseOut,
    CasesOut,
    CommentIn,
    OutcomeOut,
    PredictionsOut,
    RequestOut,
    WorklistOut,
    WorkOut,
)
from app.cases.specimen_rows import (
    SpecimenFields,
    SpecimenMismatch,
    add_specimen,
    find_same_specimen,
    find_specimen,
    is_of_other_specimen,
    require_place,
    specimen_digest,
    with_fields_of_specimen,
)
from app.context import ServiceContext
from app.database.idempotency import Once, request_digest
from app.database.tables import ReadRequest
from app.http.errors import ServiceUnavailable
from app.http.models import PredictionOut
from app.http.principal import Principal
from app.predictions.service import finite_or_none
from app.triage.service import decide_triage, plan_specimen
from ml.images.picture import DecodingCost, estimate_decoding_cost


async def predict_in_turn(
    context: ServiceContext, held: ActiveConfigCache, seen: Sequence[Any] | None, data: bytes
) -> str:
    """Predict an image without storing anything: a small one at the front, where nobody waits for large ones."""
    config = held.if_known(seen)
    if config is not None and config.served.is_small:
        answer = await context.front.run(lambda: _small_prediction(context, config, data))
        if answer is not None:
            return answer

    def predicted() -> str:
        in_force = held.now(context.database, seen)
        return stateless_prediction(context, in_force, data, estimate_decoding_cost(data)).model_dump_json()

    return await run_in_threadpool(predicted)


def _small_prediction(context: ServiceContext, in_force: ActiveConfig, data: bytes) -> str | None:
    """The answer, None where decoding would take longer than those who wait should."""
    cost = estimate_decoding_cost(data)
    return stateless_prediction(context, in_force, data, cost).model_dump_json() if cost.cheap else None


def stateless_prediction(
    context: ServiceContext, in_force: ActiveConfig, data: bytes, cost: DecodingCost
) -> PredictionOut:
    """Predict an image without storing anything."""
    served, release = in_force.served, in_force.served.predictor.release
    with context.pictures.opened(data, release.preprocessing, cost=cost) as picture:
        prediction = context.inference.predict(served, picture.pixels)
    classes = list(release.classes)
    unlike = prediction.unlikeness
    likeness = OodAssessment(
        unlike.flags[0],
        unlike.reasons[0],
        finite_or_none(unlike.distance[0]),
        finite_or_none(unlike.percentile[0]),
    )
    decision = decide_triage(prediction.distribution, in_force.rule, out_of_distribution=likeness.out_of_distribution)
    return prediction_out(
        prediction.distribution,
        served.release_id,
        classes,
        hashlib.sha256(data).hexdigest(),
        decision,
        likeness,
        in_force.sets,
    )


def upload_digest(form: CaseForm) -> str:
    """Digest of what is sent to store a case."""
    files = [form.image] if form.field is None else [form.image, form.field]
    digests = [hashlib.sha256(data).hexdigest() for data in files]
    return request_digest(form.fields, *digests)


def prepare_unless_answered(context: ServiceContext, once: Once, form: CaseForm) -> NewCase | None:
    """Decode, predict and store the image before the writing transaction begins; a retry costs none of that."""
    with context.database.read() as session:
        if once.answered(session):
            return None
    return prepare_case(context, form.fields, form.image, form.field)


def add_case(
    session: Session, context: ServiceContext, principal: Principal, new: NewCase | None
) -> tuple[int, CaseOut]:
    """Store a prepared case, and plan the reads of its specimen."""
    if new is None:
        raise ServiceUnavailable("the first answer to this key has expired; send the request again")
    status, case = store_given_case(session, context, principal, new)
    if case.specimen is not None and plan_specimen(session, context.keys, uuid.UUID(case.specimen)):
        case = show_case(session, uuid.UUID(case.id))
    return status, case


def store_given_case(
    session: Session, context: ServiceContext, principal: Principal, new: NewCase
) -> tuple[int, CaseOut]:
    """Store a prepared case, unless it is there with other fields."""
    status, case = store_case(session, context, principal, new)
    stored, sent = {"patient": case.patient, "site": case.site}, new.fields
    differing = [name for name, value in stored.items() if getattr(sent, name) not in (None, value)]
    if is_of_other_specimen(session, case.specimen, sent):
        differing.append("specimen")
    if differing:
        raise ExternalIdTaken(
            "the cell with this external id has a different {names}; choose another external id",
            names=" and ".join(differing),
        )
    return status, case


def list_predictions(session: Session, case_id: uuid.UUID) -> PredictionsOut:
    """Every prediction of a case, newest first."""
    case, predictions = queries.case_by_id(session, case_id), queries.predictions_of_case(session, case_id)
    judging = triage_context_of(session, predictions)
    return PredictionsOut(items=[stored_prediction_out(case, prediction, judging) for prediction in predictions])


def list_cases(session: Session, chosen: queries.CaseFilter, cursor: str | None, limit: int) -> CasesOut:
    """A page of cases, newest first."""
    after = None if cursor is None else decode_cursor(cursor)
    rows = queries.page_of_cases(session, chosen, after=after, limit=limit + 1)
    next_cursor = encode_cursor(rows[limit - 1].id) if len(rows) > limit else None
    return CasesOut(items=cases_out(session, rows[:limit]), next_cursor=next_cursor)


def list_cases_in_order(session: Session, case_ids: Sequence[uuid.UUID]) -> list[CaseOut]:
    """Some cases, in the order in which they are named."""
    return cases_out(session, queries.cases_in_order(session, case_ids))


def get_worklist_page(
    session: Session, cursor: str | None, limit: int, chosen: queries.CaseFilter | None = None
) -> WorklistOut:
    """A page of the cases of which a read is wanted, those in most need first."""
    after = None if cursor is None else decode_need_cursor(cursor)
    rows = queries.page_by_need(session, after=after, limit=limit + 1, chosen=chosen)
    requests = queries.requests_of(session, [case.id for case in rows[:limit]])
    items = [
        WorkOut(
            case=case_response,
            need=case.need + (1.0 if case.need < 0 else -1.0 if case.need > 1 else 0.0),
            near_duplicate=case.need < 0,
            deciding=case.need > 1,
            requests=[request_out(*row) for row in requests.get(case.id, [])],
        )
        for case, case_response in zip(rows[:limit], cases_out(session, rows[:limit]), strict=True)
    ]
    last = rows[limit - 1] if len(rows) > limit else None
    return WorklistOut(items=items, next_cursor=None if last is None else encode_need_cursor(last.need, last.id))


def next_open_reads(session: Session, case_ids: list[uuid.UUID]) -> dict[str, RequestOut]:
    """The read that each cell wants next, by case; none of a cell that wants no further one."""
    by_case = {}
    for case_id, rows in queries.requests_of(session, case_ids).items():
        open_rows = [row for row in rows if row[0].state in {"open", "leased"}]
        if open_rows:
            by_case[str(case_id)] = request_out(*open_rows[0])
    return by_case


def request_out(request: ReadRequest, people: queries.RequestPeople) -> RequestOut:
    """A request as those see it who manage reads."""
    fields = ("ordinal", "round", "arm", "u", "pi", "policy_version", "state", "due_at", "closed_at")
    return RequestOut(**asdict(people), **{name: getattr(request, name) for name in fields})
