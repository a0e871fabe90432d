"""HTML routes of imports."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from app.auth.policy import GuardedRoute, Policy
from app.context import Parts
from app.imports.receiving import ReceivedArchive, receive_body
from app.imports.showing import show_import
from app.imports.work import begin_import
from app.jobs.queries import newest_jobs
from app.jobs.schemas import job_out
from app.pages.render import go, page
from app.platform.database import Reader, Writer
from app.platform.form_file import file_of_form
from app.platform.principal import Principal

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Importer = Annotated[Principal, Depends(Policy("cases:write"))]
_ROWS = 200


@router.get("/imports")
def imports(request: Request, principal: _Importer, session: Reader) -> Response:
    """Imports so far, and a form for another one."""
    jobs = [job_out(job) for job in newest_jobs(session, 50, "import")]
    return page(request, "imports.html", principal, jobs=jobs)


async def _received(request: Request, context: Parts) -> AsyncIterator[ReceivedArchive]:
    """The form's archive on disk; removed again unless the route keeps it."""
    chunks = file_of_form(request.stream(), request.headers.get("content-type", ""), "archive")
    async with receive_body(chunks, context.settings.home, context.settings.min_free_bytes) as archive:
        yield archive


@router.post("/imports")
def upload_archive(
    context: Parts,
    principal: _Importer,
    archive: Annotated[ReceivedArchive, Depends(_received)],
    session: Writer,
) -> Response:
    """Take an archive and import it in a job."""
    return go(f"/imports/{begin_import(session, context, principal, archive.path, archive.sha256).id}")


@router.get("/imports/{import_id}")
def import_page(
    import_id: uuid.UUID,
    request: Request,
    principal: _Importer,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    status: Annotated[Literal["", "created", "known", "failed"], Query()] = "",
) -> Response:
    """An import, row by row."""
    view = show_import(session, import_id, after=cursor or 0, limit=_ROWS, status=status or None)
    return page(request, "import.html", principal, view=view, chosen=status)
