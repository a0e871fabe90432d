"""HTML routes of imports."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response, UploadFile

from app.auth.policy import Policy
from app.context import Context, Parts
from app.imports.receiving import receive
from app.imports.showing import show_import
from app.imports.work import begin_import
from app.jobs.queries import newest_jobs
from app.jobs.schemas import job_out
from app.pages.render import go, page
from app.platform.database import Reader
from app.platform.principal import Principal

router = APIRouter(include_in_schema=False)
_Importer = Annotated[Principal, Depends(Policy("cases:write"))]
_CHUNK = 1 << 20
_ROWS = 200


@router.get("/imports")
def imports(request: Request, principal: _Importer, session: Reader) -> Response:
    """Imports so far, and a form for another one."""
    jobs = [job_out(job) for job in newest_jobs(session, 50, "import")]
    return page(request, "imports.html", principal, jobs=jobs)


@router.post("/imports")
def upload_archive(context: Parts, principal: _Importer, archive: UploadFile) -> Response:
    """Take an archive and import it in a job."""
    return go(f"/imports/{_take(context, principal, archive)}")


def _take(context: Context, principal: Principal, upload: UploadFile) -> uuid.UUID:
    chunks = iter(lambda: upload.file.read(_CHUNK), b"")
    with receive(chunks, context.settings.home) as archive, context.database.write() as session:
        return begin_import(session, context, principal, archive.path, archive.sha256).id


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
