"""HTML routes of imports."""

import hashlib
import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request, Response, UploadFile

from app.auth.policy import Policy
from app.context import Context, Parts
from app.imports.showing import show_import
from app.imports.work import begin_import, check_archive
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


def _take(context: Context, principal: Principal, archive: UploadFile) -> uuid.UUID:
    folder = context.settings.home / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{uuid.uuid4().hex}.part"
    digest = hashlib.sha256()
    try:
        with path.open("wb") as stream:
            while chunk := archive.file.read(_CHUNK):
                digest.update(chunk)
                stream.write(chunk)
        check_archive(path)
        with context.database.write() as session:
            return begin_import(session, context, principal, path, digest.hexdigest()).id
    finally:
        path.unlink(missing_ok=True)


@router.get("/imports/{import_id}")
def one_import(
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
