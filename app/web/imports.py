"""Pages of imports: upload, dry run, progress."""

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Query, Request, Response
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext
from app.database.engine import ReadSession
from app.http.errors import BadRequest, InvalidValue
from app.imports import service as import_service
from app.jobs.service import job_out, newest_jobs
from app.web.filters import csv_file
from app.web.forms import back_to
from app.web.page import ImporterForm, ImporterPage
from app.web.render import redirect_to
from ml.messages import joined


class _FormFieldParser:
    """Collects the bytes of one field as a parser passes over the parts of a form."""

    def __init__(self, field: str) -> None:
        self._field = field.encode()
        self._header, self._value, self._wanted = b"", b"", False
        self.seen, self.ended, self.pieces = 0, False, list[bytes]()

    def on_part_begin(self) -> None:
        self._wanted = False

    def on_header_begin(self) -> None:
        self._header = self._value = b""

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            options = parse_options_header(self._value.decode("latin-1"))[1]
            self._wanted = options.get(b"name") == self._field and b"filename" in options
            self.seen += self._wanted

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._wanted:
            self.pieces.append(data[start:end])

    def on_end(self) -> None:
        self.ended = True

    def taken(self) -> bytes:
        """What has arrived since the last call."""
        pieces, self.pieces = self.pieces, []
        return b"".join(pieces)


async def stream_form_file(chunks: AsyncIterable[bytes], content_type: str, field: str) -> AsyncIterator[bytes]:
    """Bytes of the file in one field of a form, as they arrive; other fields are passed over."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InvalidValue("send a form, multipart/form-data, with a file in the field `{field}`", field=field)
    parts = _FormFieldParser(field)
    try:
        parser = MultipartParser(
            options[b"boundary"],
            {
                "on_part_begin": parts.on_part_begin,
                "on_header_begin": parts.on_header_begin,
                "on_header_field": parts.on_header_field,
                "on_header_value": parts.on_header_value,
                "on_header_end": parts.on_header_end,
                "on_part_data": parts.on_part_data,
                "on_end": parts.on_end,
            },
        )
        async for chunk in chunks:
            parser.write(chunk)
            yield parts.taken()
    except FormParserError as exc:
        raise BadRequest("the multipart body cannot be read") from exc
    if not parts.ended:
        raise BadRequest("the multipart body is incomplete")
    if parts.seen != 1:
        raise InvalidValue("the form must have one file in the field `{field}`", field=field)


router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Status = Annotated[Literal[""] | import_service.Status, Query()]
_ROWS = 200


@router.get("/imports")
def show_imports(page: ImporterPage) -> Response:
    """Imports so far, and a form for another one."""
    jobs = [job_out(job) for job in newest_jobs(page.session, 50, "import")]
    checks = [job_out(job) for job in newest_jobs(page.session, 20, import_service.CHECK)]
    return page.render("imports.html", jobs=jobs, checks=checks)


async def _receive_archive(request: Request, context: AppContext) -> AsyncIterator[import_service.ReceivedArchive]:
    """Store the form's archive on disk."""
    chunks = stream_form_file(request.stream(), request.headers.get("content-type", ""), "archive")
    async with import_service.receive_body(chunks, context) as archive:
        yield archive


_Archive = Annotated[import_service.ReceivedArchive, Depends(_receive_archive)]


@router.post("/imports")
@back_to(show_imports, {"": "archive"})
def upload_archive(archive: _Archive, page: ImporterForm) -> Response:
    """Take an archive and import it in a job; what is wrong with it stands beside the field."""
    return redirect_to(
        f"/imports/{import_service.begin_import(page.session, page.context, page.principal, archive).id}"
    )


@router.post("/imports/checks")
@back_to(show_imports, {"": "archive"})
def check_archive(archive: _Archive, page: ImporterForm) -> Response:
    """Take an archive and say in a job what its import would do; what is wrong with it stands beside the field."""
    return redirect_to(
        f"/imports/checks/{import_service.begin_check(page.session, page.context, page.principal, archive).id}"
    )


@router.get("/imports/checks/{check_id}")
def check_page(
    check_id: uuid.UUID,
    page: ImporterPage,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    status: _Status = "",
) -> Response:
    """What an import would do, row by row, and the button that does it."""
    check, begun = import_service.check_of(page.session, check_id), import_service.import_of(page.session, check_id)
    rows, next_cursor = import_service.page_of_rows(
        page.session, check_id, after=cursor or 0, limit=_ROWS, status=status or None
    )
    return page.render(
        "check.html",
        check=job_out(check),
        begun=begun,
        importable=import_service.can_be_imported(page.context, check),
        rows=rows,
        next_cursor=next_cursor,
        chosen=status,
    )


@router.get("/imports/checks/{check_id}/rows.csv", dependencies=[Depends(RequireScope("cases:write"))])
def check_rows(check_id: uuid.UUID, session: ReadSession, status: _Status = "") -> Response:
    """Rows of a check of which something is to be told, as a file."""
    import_service.check_of(session, check_id)
    rows, _ = import_service.page_of_rows(
        session, check_id, after=0, limit=import_service.MAX_ENTRIES + import_service.MAX_ROWS, status=status or None
    )
    return _rows_file(f"check-{status or 'all'}", rows)


@router.post("/imports/checks/{check_id}/import")
def import_checked_archive(
    check_id: uuid.UUID, page: ImporterForm, class_folders: Annotated[bool, Form()] = False
) -> Response:
    """Import an archive that was checked, with the names of its folders as labels if that is chosen."""
    job = import_service.import_checked(
        page.session, page.context, page.principal, check_id, class_folders=class_folders
    )
    return redirect_to(f"/imports/{job.id}")


@router.get("/imports/{import_id}")
def import_page(
    import_id: uuid.UUID,
    page: ImporterPage,
    cursor: Annotated[int | None, Query(ge=0, le=2**31 - 1)] = None,
    status: _Status = "",
) -> Response:
    """An import, row by row."""
    view = import_service.show_import(page.session, import_id, after=cursor or 0, limit=_ROWS, status=status or None)
    return page.render("import.html", view=view, chosen=status)


@router.get("/imports/{import_id}/rows.csv", dependencies=[Depends(RequireScope("cases:write"))])
def import_rows(import_id: uuid.UUID, session: ReadSession, status: _Status = "failed") -> Response:
    """Rows of an import as a file: those that failed, unless others are asked for."""
    view = import_service.show_import(
        session, import_id, after=0, limit=import_service.MAX_ENTRIES + import_service.MAX_ROWS, status=status or None
    )
    return _rows_file(f"import-{status or 'all'}", view.rows)


def _rows_file(name: str, rows: Sequence[import_service.ImportRowOut]) -> Response:
    whys = (row.detail if row.place is None else joined(": ", [row.place, row.detail]) for row in rows)
    cells = [(row.row, row.external_id, row.status, why) for row, why in zip(rows, whys, strict=True)]
    return csv_file(name, ("row", "external_id", "result", "why"), cells)
