"""HTTP routes of annotator models."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.annotators.models import schemas, service
from app.context import Call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    InvalidValue,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    list_problem_responses,
)
from app.jobs.service import JobOut

router = APIRouter(tags=["readers"], responses=list_problem_responses(), route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]
_Manager = Depends(RequireScope("manage"))


@router.get("/v1/reader-models", operation_id="list_reader_models", dependencies=[_Manager])
def list_reader_models(session: ReadSession) -> schemas.ReaderModelsOut:
    """Every model of the annotators, newest first, and which one weighs labels by who gave them."""
    return service.list_models(session)


@router.get("/v1/reader-models/in-use", operation_id="get_reader_model_in_use", dependencies=[_Manager])
def get_reader_model_in_use(session: ReadSession, response: Response) -> schemas.ReaderModelInUseOut:
    """Which version weighs labels; its ETag is what If-Match needs to move the switch."""
    result = service.switch_position(session)
    response.headers["ETag"] = f'"{result.revision}"'
    return result


@router.get(
    "/v1/reader-models/{version}",
    operation_id="get_reader_model",
    responses=list_problem_responses(Conflict, NotFound),
    dependencies=[_Manager],
)
def get_reader_model(
    version: Annotated[int, Path(ge=1, le=2**31 - 1)], session: ReadSession
) -> schemas.ReaderModelDetailOut:
    """A model with what it holds of each annotator."""
    return service.show_model_detail(session, version)


@router.post(
    "/v1/reader-models",
    operation_id="fit_reader_model",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(Conflict, KeyMissing, NotFound),
)
def fit_reader_model(body: schemas.ReaderFitIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Fit an annotator model on all labels so far, for the champion or a candidate, and test it."""
    return once(call.session, body, lambda: service.request_model_fit(call.session, call.context, call.principal, body))


@router.put(
    "/v1/reader-models/in-use",
    operation_id="switch_reader_model",
    responses=list_problem_responses(
        BadRequest, Conflict, InvalidValue, NotFound, PreconditionFailed, PreconditionRequired
    ),
)
def switch_reader_model(
    body: schemas.ReaderSwitchIn, revision: Revision, call: _ManagingWrite, response: Response
) -> schemas.ReaderModelInUseOut:
    """Weigh labels by a version from now on, or (``version`` null) take annotators as alike again."""
    result = service.switch_model(call.session, call.context, call.principal.name, body, revision)
    response.headers["ETag"] = f'"{result.revision}"'
    return result
