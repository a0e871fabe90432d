"""HTTP routes of imports."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext
from app.database.engine import ReadSession, WriteSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import NotFound, StorageFull, TooLarge, list_problem_responses
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive
from app.imports.import_job import begin_import
from app.imports.receiving import receive_body
from app.imports.schemas import ImportOut, Status
from app.imports.service import show_import
from app.imports.zip_contents import ZIP_TYPES
from app.jobs.service import JobOut, job_out
from app.predictions.service import UnsupportedImage

router = APIRouter(tags=["imports"], route_class=GuardedRoute)
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


async def _receive_request_body(request: Request, context: AppContext) -> AsyncIterator[ReceivedArchive]:
    """The body as an archive on disk; removed again unless the route keeps it."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() not in ZIP_TYPES:
        raise UnsupportedImage("send a zip archive as the body, with Content-Type application/zip")
    async with receive_body(request.stream(), context) as archive:
        yield archive


@router.post(
    "/v1/imports",
    operation_id="start_import",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(KeyMissing, TooLarge, UnsupportedImage, StorageFull),
    openapi_extra=_BODY,
)
def start_import(
    context: AppContext,
    principal: Annotated[Principal, Depends(RequireScope("cases:write"))],
    once: Idempotent,
    archive: Annotated[
        ReceivedArchive, Depends(_receive_request_body)
    ],  # after the guard: nobody else may fill the disk
    session: WriteSession,
    class_folders: Annotated[bool, Query()] = False,
) -> Response:
    """Import images and labels. As a zip.

    A job stores them; an optional ``manifest.csv`` has the columns file, external_id, patient, site, specimen,
    metadata, field. Files of labels need the scope ``labels:write``, too.
    """

    def begin() -> tuple[int, JobOut]:
        return 202, job_out(begin_import(session, context, principal, archive, class_folders=class_folders))

    return once(session, [archive.sha256, "class folders"] if class_folders else archive.sha256, begin)


@router.get(
    "/v1/imports/{import_id}",
    operation_id="get_import",
    responses=list_problem_responses(NotFound),
    dependencies=[Depends(RequireScope("cases:read", "cases:write"))],
)
def get_import(
    import_id: uuid.UUID,
    session: ReadSession,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    status: Annotated[Status | None, Query()] = None,
) -> ImportOut:
    """Get an import. With a page of its rows."""
    return show_import(session, import_id, after=cursor or 0, limit=limit, status=status)
