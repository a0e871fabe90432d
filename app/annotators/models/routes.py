"""HTTP routes of models of annotators."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.annotators.models import service
from app.annotators.models.schemas import (
    ReaderFitIn,
    ReaderModelDetailOut,
    ReaderModelInUseOut,
    ReaderModelsOut,
    ReaderSwitchIn,
)
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.database.revisions import Revision
from app.http.errors import (
    BadRequest,
    Conflict,
    Invalid,
    KeyMissing,
    NotFound,
    PreconditionFailed,
    PreconditionRequired,
    responses,
)
from app.http.principal import Principal
from app.jobs.schemas import JobOut

router = APIRouter(tags=["readers"], route_class=GuardedRoute)
_Managing = Annotated[Principal, Depends(Policy("manage"))]
_Manager = Depends(Policy("manage"))


@router.get("/v1/reader-models", operation_id="list_reader_models", responses=responses(), dependencies=[_Manager])
def list_reader_models(session: Reader) -> ReaderModelsOut:
    """Every model of the annotators, newest first, and which one weighs labels by who gave them."""
    return service.list_models(session)


@router.get(
    "/v1/reader-models/in-use", operation_id="get_reader_model_in_use", responses=responses(), dependencies=[_Manager]
)
def get_reader_model_in_use(session: Reader, response: Response) -> ReaderModelInUseOut:
    """Which version weighs labels; its ETag is what If-Match needs to move the switch."""
    shown = service.switch_position(session)
    response.headers["ETag"] = f'"{shown.revision}"'
    return shown


@router.get(
    "/v1/reader-models/{version}",
    operation_id="get_reader_model",
    responses=responses(Conflict, NotFound),
    dependencies=[_Manager],
)
def get_reader_model(version: Annotated[int, Path(ge=1, le=2**31 - 1)], session: Reader) -> ReaderModelDetailOut:
    """A model with what it holds of each annotator."""
    return service.detail(session, version)


@router.post(
    "/v1/reader-models",
    operation_id="fit_reader_model",
    status_code=202,
    response_model=JobOut,
    responses=responses(Conflict, KeyMissing, NotFound),
)
def fit_reader_model(
    body: ReaderFitIn,
    context: Parts,
    principal: _Managing,
    once: Idempotent,
    session: Writer,
) -> Response:
    """Fit a model of the annotators on all labels so far, beside the champion or a candidate, and judge it."""
    return once(session, body, lambda: service.ask_fit(session, context, principal, body))


@router.put(
    "/v1/reader-models/in-use",
    operation_id="switch_reader_model",
    responses=responses(BadRequest, Conflict, Invalid, NotFound, PreconditionFailed, PreconditionRequired),
)
def switch_reader_model(
    body: ReaderSwitchIn,
    context: Parts,
    principal: _Managing,
    revision: Revision,
    session: Writer,
    response: Response,
) -> ReaderModelInUseOut:
    """Weigh labels by a version from now on, or (``version`` null) take annotators as alike again."""
    shown = service.switch(session, context, principal.name, body, revision)
    response.headers["ETag"] = f'"{shown.revision}"'
    return shown
