"""HTTP routes of predictions and cases."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import Json, TypeAdapter, ValidationError

from app.accounts.service import GuardedRoute, RequireScope
from app.cases import comments, queries, service
from app.cases.active_config import REVISION, ActiveConfigCache
from app.cases.blindness import BlindReadPending, CaseInPath, case_handle, ensure_revealed, note_exposure
from app.cases.ingest import CaseForm, ExternalIdTaken, case_form, image_bytes, upload_schema
from app.cases.presenters import image_response, show_case
from app.cases.schemas import (
    CaseOut,
    CasesOut,
    CommentIn,
    CommentOut,
    CommentsOut,
    Metadata,
    PredictionsOut,
    WorklistOut,
)
from app.cases.specimen_rows import SpecimenMismatch
from app.context import AppContext, Call, reading_call, writing_call
from app.database.engine import ReadSession, WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import BadRequest, Conflict, NotFound, StorageFull, TooLarge, list_problem_responses
from app.http.models import Line, Moment, PredictionOut
from app.http.principal import Principal
from app.predictions.service import UnsupportedImage

router = APIRouter(tags=["cases"], route_class=GuardedRoute)
_Reading = Annotated[Call, reading_call("cases:read", "reads:own")]
_Discussing = Annotated[Call, writing_call("manage", "reads:own")]
_UPLOAD_ERRORS = (BadRequest, TooLarge, UnsupportedImage)


@router.post(
    "/v1/predictions",
    operation_id="predict",
    response_model=PredictionOut,
    responses=list_problem_responses(*_UPLOAD_ERRORS),
    openapi_extra=upload_schema(case=False),
    dependencies=[Depends(RequireScope("predict", also=REVISION))],
)
async def predict_image(
    request: Request, context: AppContext, data: Annotated[bytes, Depends(image_bytes)]
) -> Response:
    """Predict an image. Nothing is stored; send the multipart field ``image``, or the file as the body."""
    held: ActiveConfigCache = request.app.state.in_force
    answer = await service.predict_in_turn(context, held, getattr(request.state, "seen", None), data)
    # as FastAPI writes it, which would take another thread to check it once more
    return Response(answer, media_type="application/json")


@router.post(
    "/v1/cases",
    operation_id="add_case",
    status_code=201,
    response_model=CaseOut,
    responses={
        200: {"model": CaseOut, "description": "The case was there already."},
        **list_problem_responses(*_UPLOAD_ERRORS, ExternalIdTaken, SpecimenMismatch, Conflict, StorageFull),
    },
    openapi_extra=upload_schema(case=True),
)
def add_case(
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("cases:write"))],
    once: Idempotent,
    form: Annotated[CaseForm, Depends(case_form)],
    session: WriteSession,
) -> Response:
    """Upload a cell. The response has its prediction; the same upload again returns the stored cell."""
    new = service.prepare_unless_answered(context, once, form)  # before the session's transaction begins
    return once(
        session,
        service.upload_digest(form),
        lambda: service.add_case(session, context, principal, new),
        case_id_of=lambda case: uuid.UUID(case.id),
    )


_Viewing = Depends(RequireScope("cases:read"))
_Cursor = Annotated[str | None, Query(max_length=100)]
_Limit = Annotated[int, Query(ge=1, le=200)]
_Text = Annotated[Line | None, Query()]


_JsonObject = TypeAdapter[dict[str, str]](Json[Metadata])


def _sought_metadata(metadata: Annotated[str | None, Query(max_length=10_000)] = None) -> dict[str, str]:
    try:
        return {} if metadata is None else _JsonObject.validate_python(metadata)
    except ValidationError as exc:
        errors = [error | {"loc": ("query", "metadata", *error["loc"])} for error in exc.errors(include_input=False)]
        raise RequestValidationError(errors) from exc


@router.get("/v1/cases", operation_id="list_cases", responses=list_problem_responses(), dependencies=[_Viewing])
def list_cases(
    session: ReadSession,
    metadata: Annotated[dict[str, str], Depends(_sought_metadata)],
    cursor: _Cursor = None,
    limit: _Limit = 50,
    external_id: _Text = None,
    patient: _Text = None,
    site: _Text = None,
    specimen: _Text = None,
    partition: Annotated[Literal["evaluation", "calibration"] | None, Query()] = None,
    since: Annotated[Moment | None, Query()] = None,
    until: Annotated[Moment | None, Query()] = None,
) -> CasesOut:
    """List cells. Newest first; to follow what changes, poll the changes."""
    chosen = queries.CaseFilter(external_id, patient, site, partition, since, until, specimen, metadata)
    return service.list_cases(session, chosen, cursor, limit)


@router.get("/v1/worklist", operation_id="list_worklist", responses=list_problem_responses(), dependencies=[_Viewing])
def list_worklist(session: ReadSession, cursor: _Cursor = None, limit: _Limit = 50) -> WorklistOut:
    """List cells that need another read. Highest need first, with the reason."""
    return service.get_worklist_page(session, cursor, limit)


@router.get(
    "/v1/cases/{case_id}", operation_id="get_case", responses=list_problem_responses(NotFound, BlindReadPending)
)
def get_case(asked: CaseInPath, call: _Reading) -> CaseOut:
    """Get a cell and its prediction. Annotators see it once they have labelled it."""
    case = asked.found(call.session)
    queries.case_by_id(call.session, case.id)
    ensure_revealed(call.session, call.principal, case)
    result = show_case(call.session, case.id)
    note_exposure(call.context.database, call.session, call.principal, case.id)
    twin = None if result.same_image_as is None else uuid.UUID(result.same_image_as)
    names = {"id": case.id, "same_image_as": twin}
    known_as = {
        name: None if named is None else str(case_handle(call.keys, call.principal, named))
        for name, named in names.items()
    }
    if "cases:read" not in call.principal.scopes:  # both tell of other cells
        known_as |= {"specimen": None, "class_probs_in_specimen": None}
    return result.model_copy(update=known_as)


@router.get(
    "/v1/cases/{case_id}/predictions",
    operation_id="list_predictions",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def list_predictions(asked: CaseInPath, call: _Reading) -> PredictionsOut:
    """List the predictions of a cell. Newest first, each with its model release."""
    case = asked.found(call.session)
    queries.case_by_id(call.session, case.id)
    ensure_revealed(call.session, call.principal, case)
    result = service.list_predictions(call.session, case.id)
    note_exposure(call.context.database, call.session, call.principal, case.id)
    return result


_PNG = list_problem_responses(NotFound) | {
    200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}
}
_Pixels = Depends(RequireScope("cases:read", "reads:own"))


@router.get(
    "/v1/cases/{case_id}/image",
    operation_id="get_image",
    response_class=Response,
    responses=_PNG,
    dependencies=[_Pixels],
)
def get_image(asked: CaseInPath, context: AppContext, session: ReadSession) -> Response:
    """Get the image of a cell. PNG without metadata."""
    case = asked.found(session)
    stored = queries.case_by_id(session, case.id)
    return image_response(context, stored.stored_sha256)


@router.get(
    "/v1/cases/{case_id}/field",
    operation_id="get_field",
    response_class=Response,
    responses=_PNG,
    dependencies=[_Pixels],
)
def get_field(asked: CaseInPath, context: AppContext, session: ReadSession) -> Response:
    """Get the surroundings of a cell. A wider image as PNG without metadata; 404 without one."""
    case = asked.found(session)
    return image_response(context, queries.stored_field(session, case.id))


@router.post(
    "/v1/cases/{case_id}/comments",
    operation_id="add_comment",
    status_code=201,
    response_model=CommentOut,
    responses=list_problem_responses(KeyMissing, NotFound, BlindReadPending, Conflict),
)
def add_comment(asked: CaseInPath, body: CommentIn, once: Idempotent, call: _Discussing) -> Response:
    """Submit a comment. Annotators may once the cell is shown to them in full."""
    case = asked.found(call.session)
    return once(
        call.session,
        body,
        lambda: comments.add_comment(call, case, body),
        case_id_of=lambda _: case.id,
    )


@router.get(
    "/v1/cases/{case_id}/comments",
    operation_id="list_comments",
    responses=list_problem_responses(NotFound, BlindReadPending),
)
def list_comments(asked: CaseInPath, call: _Reading) -> CommentsOut:
    """List the comments on a cell. Oldest first; annotators see them once the cell is shown to them in full."""
    case = asked.found(call.session)
    result = CommentsOut(items=comments.list_comments(call, case))
    note_exposure(call.context.database, call.session, call.principal, case.id)
    return result
