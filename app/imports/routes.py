"""HTTP routes of imports."""

import hashlib
import os
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request, Response

from app.auth.policy import Policy
from app.context import Parts
from app.imports.schemas import ImportOut
from app.imports.showing import show_import
from app.imports.work import begin_import, check_archive
from app.jobs.schemas import JobOut, job_out
from app.platform.database import Reader, Writer
from app.platform.errors import KeyMissing, NotFound, StorageFull, TooLarge, UnsupportedImage, responses
from app.platform.idempotency import once, request_digest, required_key
from app.platform.principal import Principal

router = APIRouter(tags=["imports"])
_ZIP = {"application/zip", "application/x-zip-compressed", "application/octet-stream"}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}


@dataclass(frozen=True)
class _Received:
    """An archive that was received: where it lies, and its digest."""

    path: Path
    sha256: str


async def _received(
    request: Request, context: Parts, _principal: Annotated[Principal, Depends(Policy("cases:write"))]
) -> AsyncIterator[_Received]:
    """The body, streamed to disk; removed again unless the route keeps it.

    Raises:
        UnsupportedImage: not sent as a zip.
        StorageFull: the disk is full.
    """
    if request.headers.get("content-type", "").split(";")[0].strip().lower() not in _ZIP:
        raise UnsupportedImage("send a zip archive as the body, with Content-Type application/zip")
    folder = context.settings.home / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    path, digest = folder / f".{uuid.uuid4().hex}.part", hashlib.sha256()
    try:
        with path.open("wb") as stream:
            async for chunk in request.stream():
                digest.update(chunk)
                await anyio.to_thread.run_sync(stream.write, chunk)
            stream.flush()
            await anyio.to_thread.run_sync(os.fsync, stream.fileno())
        yield _Received(path, digest.hexdigest())
    except OSError as exc:
        raise StorageFull("the archive could not be stored") from exc
    finally:
        path.unlink(missing_ok=True)


@router.post(
    "/v1/imports",
    status_code=202,
    response_model=JobOut,
    responses=responses(KeyMissing, TooLarge, UnsupportedImage, StorageFull),
    openapi_extra=_BODY,
)
def start_import(
    context: Parts,
    principal: Annotated[Principal, Depends(Policy("cases:write"))],
    key: Annotated[str, Depends(required_key)],
    received: Annotated[_Received, Depends(_received)],
    session: Writer,
) -> Response:
    """Import a zip of images in a job, with or without ``manifest.csv`` (file, external_id, patient, site, metadata).

    Raises:
        Invalid: the archive cannot be imported at all.
    """
    check_archive(received.path)

    def start() -> tuple[int, JobOut]:
        return 202, job_out(begin_import(session, context, principal, received.path, received.sha256))

    return once(session, principal, key, request_digest("POST /v1/imports", received.sha256), start)


@router.get(
    "/v1/imports/{import_id}",
    responses=responses(NotFound),
    dependencies=[Depends(Policy("cases:read", "cases:write"))],
)
def get_import(
    import_id: uuid.UUID,
    session: Reader,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    status: Annotated[Literal["created", "known", "failed"] | None, Query()] = None,
) -> ImportOut:
    """An import with a page of its rows."""
    return show_import(session, import_id, after=cursor or 0, limit=limit, status=status)
