"""HTTP routes of invitations."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from app.accounts.service import GuardedRoute
from app.context import Call, writing_call
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import Conflict, NotFound, list_problem_responses
from app.invitations import service
from app.invitations.schemas import InvitationIn, InvitationOut

router = APIRouter(tags=["reads"], route_class=GuardedRoute)
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.post(
    "/v1/invitations",
    operation_id="invite_annotator",
    status_code=201,
    response_model=InvitationOut,
    responses=list_problem_responses(KeyMissing, NotFound, Conflict),
)
def invite_annotator(request: Request, body: InvitationIn, once: Idempotent, call: _ManagingWrite) -> Response:
    """Create an invitation. Its link signs an annotator in once, within 72 hours, to read some cells."""

    def invite() -> tuple[int, InvitationOut]:
        invitation, name = service.invite_annotator(call, body.annotator, body.cases)
        return 201, InvitationOut(url=str(invitation.id), expires_at=invitation.expires_at, annotator=name)

    # the answer is kept for retries with the identifier alone: who reads the database finds no link that works
    kept = once(call.session, body, invite)
    answer = InvitationOut.model_validate_json(bytes(kept.body))
    answer = answer.model_copy(update={"url": service.link_of(request, call, uuid.UUID(answer.url))})
    replayed = {name: value for name, value in kept.headers.items() if name == "idempotent-replayed"}
    return JSONResponse(answer.model_dump(mode="json"), kept.status_code, replayed)
