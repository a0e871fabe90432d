"""HTTP routes of specimens."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from app.accounts.service import GuardedRoute, RequireScope, SignInTooOld
from app.cases.service import CasesOut, SpecimenMismatch
from app.context import AppContext, Call, writing_call
from app.database.engine import ReadSession, WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.database.tables.values import SpecimenState
from app.http.errors import Conflict, NotFound, PreconditionFailed, list_problem_responses
from app.http.models import Line, Moment
from app.http.principal import Principal
from app.specimens import service
from app.specimens.schemas import (
    SignatureIn,
    SignaturesOut,
    SignedVersionOut,
    SpecimenIn,
    SpecimenOut,
    SpecimensOut,
)

router = APIRouter(tags=["specimens"], route_class=GuardedRoute)
_Viewing = Depends(RequireScope("cases:read"))
_Cursor = Annotated[str | None, Query(max_length=100)]
_Limit = Annotated[int, Query(ge=1, le=200)]
_Text = Annotated[Line | None, Query()]


@router.post(
    "/v1/specimens",
    operation_id="add_specimen",
    status_code=201,
    response_model=SpecimenOut,
    responses={
        200: {"model": SpecimenOut, "description": "The specimen was there already."},
        **list_problem_responses(KeyMissing, SpecimenMismatch),
    },
)
def add_specimen(
    body: SpecimenIn,
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("cases:write"))],
    once: Idempotent,
    session: WriteSession,
) -> Response:
    """Create a specimen. Send its cells to it; the same specimen again returns the stored one."""
    return once(
        session,
        body,
        lambda: service.store_specimen(session, context, principal, body),
        case_id_of=lambda specimen: uuid.UUID(specimen.specimen),
    )


@router.get("/v1/specimens", operation_id="list_specimens", responses=list_problem_responses(), dependencies=[_Viewing])
def list_specimens(
    session: ReadSession,
    cursor: _Cursor = None,
    limit: _Limit = 50,
    state: Annotated[SpecimenState | None, Query()] = None,
    patient: _Text = None,
    site: _Text = None,
    after: Annotated[Moment | None, Query()] = None,
) -> SpecimensOut:
    """List specimens. Newest first; ``stale`` marks shares that are older than a label or a setting."""
    return service.list_specimens(session, cursor, limit, state=state, patient=patient, site=site, after=after)


@router.get(
    "/v1/specimens/{specimen_id}",
    operation_id="get_specimen",
    responses=list_problem_responses(NotFound),
    dependencies=[_Viewing, Depends(service.measure_if_stale)],
)
def get_specimen(specimen_id: uuid.UUID, session: ReadSession) -> SpecimenOut:
    """Get a specimen. With the shares of its reporting groups, their intervals and the cells that would settle them."""
    return service.show_specimen(session, specimen_id)


@router.get(
    "/v1/specimens/{specimen_id}/cells",
    operation_id="list_specimen_cells",
    responses=list_problem_responses(NotFound),
    dependencies=[_Viewing],
)
def list_specimen_cells(
    specimen_id: uuid.UUID, session: ReadSession, cursor: _Cursor = None, limit: _Limit = 50
) -> CasesOut:
    """List the cells of a specimen. Newest first."""
    return service.list_specimen_cells(session, specimen_id, cursor, limit)


@router.post(
    "/v1/specimens/{specimen_id}/signatures",
    operation_id="sign_specimen",
    status_code=201,
    response_model=SignedVersionOut,
    responses=list_problem_responses(Conflict, KeyMissing, NotFound, PreconditionFailed, SignInTooOld),
)
def sign_specimen(
    specimen_id: uuid.UUID, body: SignatureIn, once: Idempotent, call: Annotated[Call, writing_call("manage")]
) -> Response:
    """Sign a specimen. For signed-in admins, by password or a fresh single sign-on; API keys never sign."""
    service.prepare_signature(call, specimen_id, body.password)
    return once(
        call.session,
        body.model_dump(exclude={"password"}),
        lambda: service.sign_specimen(call, specimen_id, body),
        case_id_of=lambda _: specimen_id,
    )


@router.get(
    "/v1/specimens/{specimen_id}/signatures",
    operation_id="list_signatures",
    responses=list_problem_responses(NotFound),
    dependencies=[_Viewing],
)
def list_signatures(specimen_id: uuid.UUID, session: ReadSession) -> SignaturesOut:
    """List the signatures on a specimen. Newest first, each with what was shown."""
    return SignaturesOut(items=list(service.list_signatures(session, specimen_id)))
