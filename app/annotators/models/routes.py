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
    """List annotator models. Newest first, with the version that weights labels."""
    return service.list_models(session)


@router.get("/v1/reader-models/in-use", operation_id="get_reader_model_in_use", dependencies=[_Manager])
def get_reader_model_in_use(session: ReadSession, response: Response) -> schemas.ReaderModelInUseOut:
    """Get the annotator model in use. Its ETag is the value for ``If-Match``."""
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
    """Get an annotator model. With the parameters of each annotator."""
    return service.show_model_detail(session, version)


@router.post(
    "/v1/reader-models",
    operation_id="fit_reader_model",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(Conflict, KeyMissing, NotFound),
)
def fit_reader_model(body: schemas.ReaderFitIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Fit an annotator model. A job fits all labels so far, for the champion or a candidate, and tests the model."""
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
    """Switch the annotator model. Null weights all annotators equally."""
    result = service.switch_model(call.session, call.context, call.principal.name, body, revision)
    response.headers["ETag"] = f'"{result.revision}"'
    return result
