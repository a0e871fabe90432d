"""HTTP routes of labels and posteriors."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from app.auth.policy import Policy
from app.auth.principal import Principal
from app.blindness import ensure_revealed
from app.cases import queries
from app.context import Parts
from app.database import Reader, Writer
from app.errors import AlreadyLabelled, BlindReadPending, KeyMissing, NotFound, responses
from app.idempotency import once, request_digest, required_key
from app.reads import service
from app.reads.schemas import LabelIn, LabelsOut, SubmittedOut
from app.schemas import PosteriorOut

router = APIRouter(tags=["reads"])
_Reading = Annotated[Principal, Depends(Policy("cases:read", "reads:own"))]


@router.post(
    "/v1/cases/{case_id}/labels",
    status_code=201,
    response_model=SubmittedOut,
    responses=responses(KeyMissing, NotFound, AlreadyLabelled),
)
def submit_label(
    case_id: uuid.UUID,
    body: LabelIn,
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("reads:own", "labels:write"))],
    key: Annotated[str, Depends(required_key)],
    session: Writer,
) -> Response:
    """Commit a label; the answer reveals the posterior."""
    digest = request_digest("POST labels", case_id, body.model_dump())
    return once(
        session, principal, key, digest, lambda: service.submit_label(session, context, principal, case_id, body)
    )


@router.get("/v1/cases/{case_id}/labels", responses=responses(NotFound, BlindReadPending))
def list_labels(case_id: uuid.UUID, principal: _Reading, session: Reader) -> LabelsOut:
    """Active labels of a case; an annotator sees them after committing its own."""
    queries.case_by_id(session, case_id)
    ensure_revealed(session, principal, case_id)
    return LabelsOut(items=[service.label_out(active) for active in queries.labels_of_case(session, case_id)])


@router.get("/v1/cases/{case_id}/posterior", responses=responses(NotFound, BlindReadPending))
def get_posterior(
    case_id: uuid.UUID,
    context: Parts,
    principal: _Reading,
    session: Reader,
    exclude_annotator: Annotated[str | None, Query(max_length=100)] = None,
) -> PosteriorOut:
    """Posterior from the stored prior and all active blind labels."""
    queries.case_by_id(session, case_id)
    ensure_revealed(session, principal, case_id)
    return service.posterior(session, context, case_id, exclude_annotator)
