"""HTTP route of the cells of a specimen."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext
from app.database.engine import WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import BadRequest, NotFound, StorageFull, TooLarge, list_problem_responses
from app.http.principal import Principal
from app.jobs.service import JobOut
from app.predictions.service import UnsupportedImage
from app.specimens import upload
from app.specimens.upload import SentCell, SpecimenCellsOut, sent_cells

router = APIRouter(tags=["specimens"], route_class=GuardedRoute)
_BINARY = {"type": "string", "format": "binary"}
_PARTS = {
    "type": "object",
    "properties": {"image": {"type": "array", "items": _BINARY, "minItems": 1}},
    "required": ["image"],
    "additionalProperties": False,
}
_BODY = {
    "required": True,
    "content": {"multipart/form-data": {"schema": _PARTS}, "application/zip": {"schema": _BINARY}},
}


@router.post(
    "/v1/specimens/{specimen_id}/cells",
    operation_id="add_specimen_cells",
    status_code=207,
    response_model=SpecimenCellsOut,
    responses={
        202: {"model": JobOut, "description": "An import stores the cells; `/v1/imports/{id}` has a row for each."},
        **list_problem_responses(KeyMissing, BadRequest, NotFound, TooLarge, UnsupportedImage, StorageFull),
    },
    openapi_extra={"requestBody": _BODY},
)
def add_specimen_cells(
    specimen_id: uuid.UUID,
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("cases:write"))],
    once: Idempotent,
    cells: Annotated[list[SentCell], Depends(sent_cells)],  # after the guard: nobody else may fill the memory
    session: WriteSession,
) -> Response:
    """Upload cells of a specimen.

    Send up to 500 at once, each of at most 1 MiB and 64 MiB in all, as parts ``image`` or as a zip. The file name,
    without folder, is the external id of a cell within its specimen; the stored one begins with that of the specimen.
    Up to 50 cells are stored before the response, which has one result per cell, in the order of the parts or of the
    names in the zip; more are stored by an import. The same request again with the same key continues where it
    stopped.
    """
    return upload.add_cells(session, context, principal, once, specimen_id, cells)
