"""HTTP routes of imports."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from app.accounts.permissions import GuardedRoute, Policy
from app.context import Parts
from app.database.engine import Reader, Writer
from app.database.idempotency import Idempotent
from app.http.errors import KeyMissing, NotFound, StorageFull, TooLarge, UnsupportedImage, responses
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive
from app.imports.import_job import begin_import
from app.imports.presenters import show_import
from app.imports.receiving import receive_body
from app.imports.schemas import ImportOut, Status
from app.jobs.schemas import JobOut, job_out

router = APIRouter(tags=["imports"], route_class=GuardedRoute)
_ZIP = {"application/zip", "application/x-zip-compressed", "application/octet-stream"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def _received(request: Request, context: Parts) -> AsyncIterator[ReceivedArchive]:
    """The body as an archive on disk; removed again unless the route keeps it.

    Raises:
        UnsupportedImage: not sent as a zip.
    """
    if request.headers.get("content-type", "").split(";")[0].strip().lower() not in _ZIP:
        raise UnsupportedImage("send a zip archive as the body, with Content-Type application/zip")
    async with receive_body(request.stream(), context) as archive:
        yield archive


@router.post(
    "/v1/imports",
    operation_id="start_import",
    status_code=202,
    response_model=JobOut,
    responses=responses(KeyMissing, TooLarge, UnsupportedImage, StorageFull),
    openapi_extra=_BODY,
)
def start_import(
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("cases:write"))],
    once: Idempotent,
    archive: Annotated[ReceivedArchive, Depends(_received)],  # after the guard: nobody else may fill the disk
    session: Writer,
) -> Response:
    """Import a zip of images in a job.

    ``manifest.csv``, which may be left out, has the columns file, external_id, patient, site, metadata, field.
    """
    return once(session, archive.sha256, lambda: (202, job_out(begin_import(session, context, principal, archive))))


@router.get(
    "/v1/imports/{import_id}",
    operation_id="get_import",
    responses=responses(NotFound),
    dependencies=[Depends(Policy("cases:read", "cases:write"))],
)
def get_import(
    import_id: uuid.UUID,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    status: Annotated[Status | None, Query()] = None,
) -> ImportOut:
    """An import with a page of its rows."""
    return show_import(session, import_id, after=cursor or 0, limit=limit, status=status)
