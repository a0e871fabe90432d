"""Cells of a specimen, many at once: each is stored in its own transaction, or many of them by an import."""

import csv
import hashlib
import io
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from fastapi import Request, Response
from pydantic import ValidationError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException

from app.cases.service import CaseIn, InMemoryParser, prepare_case, store_given_case
from app.context import ServiceContext
from app.database.idempotency import Once
from app.database.tables import ImportRow, Specimen
from app.http import limiter
from app.http.errors import (
    BadRequest,
    InvalidValue,
    Problem,
    TooLarge,
    describe_named_fault,
)
from app.http.models import ResponseModel, Sentence
from app.http.principal import Principal
from app.imports.service import (
    MANIFEST,
    ZIP_TYPES,
    ArchiveError,
    ReceivedArchive,
    begin_import,
    is_of_system,
    is_row_problem,
    pack_files,
    read_archive,
    require_size,
)
from app.jobs.service import JobOut, job_out
from app.predictions.service import UnsupportedImage
from app.specimens.measuring import refresh_specimen
from app.specimens.schemas import SpecimenOut
from app.specimens.service import existing_specimen, show_specimen
from app.triage.service import plan_specimen
from ml.messages import Message

#: Cells of a request, bytes of each, and how many are stored before the answer; more are imported by a job.
MAX_CELLS, MAX_CELL, AT_ONCE = 500, 1024**2, 50
_COLUMNS = ("file", "external_id", "patient", "site", "specimen")


class SpecimenCellOut(ResponseModel):
    """Result of one cell; the same whether it was stored now or before."""

    external_id: str
    case: str | None = None
    status: Literal["stored", "refused"]
    detail: Sentence | None = None
    same_image_as: str | None = None


class SpecimenCellsOut(ResponseModel):
    """Results of the cells of a request, in its order."""

    specimen: str
    results: list[SpecimenCellOut]
    n_stored: int
    n_refused: int
    summary: SpecimenOut


@dataclass(frozen=True)
class SentCell:
    """A cell as it was sent."""

    # of its file, without folder: external id of the cell within its specimen
    name: str
    data: bytes
    # why it is refused without being decoded; empty if it is not
    problem: str = ""


async def sent_cells(request: Request) -> list[SentCell]:
    """Cells of a body: its parts in their order, or the files of a zip by name."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "multipart/form-data":
        cells = await _read_parts(request)
    elif kind in ZIP_TYPES:
        cells = await run_in_threadpool(_read_zip, await request.body())
    else:
        raise UnsupportedImage(
            "send multipart/form-data with a part `image` for each cell, or a zip as application/zip"
        )
    if not cells:
        raise InvalidValue("send each cell as a multipart part `image` with a file name, or as a file of a zip")
    _require_few(len(cells))
    repeated = [name for name, n in Counter(cell.name for cell in cells).items() if n > 1]
    if repeated:
        raise InvalidValue("more than one file is named {name}; give each cell another name", name=repr(repeated[0]))
    return cells


def _require_few(n: int) -> None:
    if n > MAX_CELLS:
        raise TooLarge("more than {n} cells; send them in several requests", n=MAX_CELLS)


async def _read_parts(request: Request) -> list[SentCell]:
    limits = {"max_files": MAX_CELLS, "max_fields": MAX_CELLS, "max_part_size": MAX_CELL}
    try:
        form = await InMemoryParser(request.headers, request.stream(), **limits).parse()
    except MultiPartException as exc:
        if exc.message.startswith("Too many files"):
            _require_few(MAX_CELLS + 1)
        raise BadRequest(
            "the multipart body cannot be read; send each cell as a part `image` with a file name"
        ) from exc
    cells = []
    try:
        for number, (field, value) in enumerate(form.multi_items(), 1):
            if field != "image":
                raise InvalidValue("unknown multipart field {field}; send each cell as `image`", field=repr(field))
            name = PurePosixPath(value.filename or "").name if isinstance(value, UploadFile) else ""
            if not name or not isinstance(value, UploadFile):
                raise InvalidValue("part {n} has no file name, which is the external id of its cell", n=number)
            cells.append(_checked(name, await value.read()))
        return cells
    finally:
        await form.close()


def _checked(name: str, data: bytes) -> SentCell:
    try:
        require_size(data, MAX_CELL)
    except ValueError as exc:
        return SentCell(name, data, str(exc))
    return SentCell(name, data)


def _read_zip(body: bytes) -> list[SentCell]:
    """Images of a zip, and files that are none; what an operating system wrote for itself is left out."""
    try:
        with read_archive(io.BytesIO(body), "the zip") as archive:
            if archive.has_manifest:
                raise InvalidValue(
                    "a zip of cells has no {manifest}; leave it out, or send the zip to /v1/imports", manifest=MANIFEST
                )
            others = [(file.file, file.why) for file in archive.ignored if not is_of_system(file.file)]
            others += [(file, Message("send labels to /v1/imports")) for file in archive.label_files]
            _require_few(len(archive.rows) + len(others))
            cells, room = [], limiter.MAX_CELLS
            for row in archive.rows:
                try:
                    cells.append(SentCell(PurePosixPath(row.file).name, archive.read(row, MAX_CELL)))
                except ValueError as exc:
                    cells.append(SentCell(PurePosixPath(row.file).name, b"", str(exc)))
                room -= len(cells[-1].data)
                if room < 0:
                    raise TooLarge(
                        "the zip unpacks to more than {n} MiB; send its cells in several requests",
                        n=limiter.MAX_CELLS // 1024**2,
                    )
            return [*cells, *(SentCell(PurePosixPath(file).name, b"", why) for file, why in others)]
    except ArchiveError as exc:
        raise InvalidValue(str(exc)) from exc


@dataclass(frozen=True)
class _Upload:
    """Cells of one specimen, sent by somebody."""

    context: ServiceContext
    principal: Principal
    specimen: Specimen
    cells: Sequence[SentCell]

    def external_id(self, cell: SentCell) -> str:
        """External id of a case: cells of two specimens may have one name."""
        return f"{self.specimen.external_id}/{cell.name}"

    def store(self, cell: SentCell) -> SpecimenCellOut:
        """Store a cell, unless it is there; a problem that only this cell has is its result."""
        refused = SpecimenCellOut(external_id=cell.name, status="refused", detail=cell.problem)
        if cell.problem:
            return refused
        about = {"specimen": self.specimen.external_id, "patient": self.specimen.patient, "site": self.specimen.site}
        try:
            fields = CaseIn.model_validate(about | {"external_id": self.external_id(cell)})
            new = prepare_case(self.context, fields, cell.data)
            with self.context.database.write() as session:
                existing_specimen(session, self.specimen.id)
                case = store_given_case(session, self.context, self.principal, new)[1]
        except ValidationError as exc:
            return refused.model_copy(update={"detail": describe_named_fault(exc.errors(include_input=False)[0])})
        except Problem as exc:
            if not is_row_problem(exc):
                raise  # the same request again goes on here
            return refused.model_copy(update={"detail": exc.detail})
        return SpecimenCellOut(external_id=cell.name, case=case.id, status="stored", same_image_as=case.same_image_as)

    def finish(self) -> None:
        """Plan reads of the specimen from all of its cells so far, and measure it."""
        with self.context.database.write() as session:
            existing_specimen(session, self.specimen.id)
            plan_specimen(session, self.context.keys, self.specimen.id)
        refresh_specimen(self.context, self.specimen.id)

    def answer(self, session: Session, results: list[SpecimenCellOut]) -> tuple[int, SpecimenCellsOut]:
        """Results and summary."""
        n_stored = sum(result.status == "stored" for result in results)
        return 207, SpecimenCellsOut(
            specimen=str(self.specimen.id),
            results=results,
            n_stored=n_stored,
            n_refused=len(results) - n_stored,
            summary=show_specimen(session, self.specimen.id),
        )

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Files of an archive: a manifest with a row for each cell, and those that are to be decoded."""
        manifest = io.StringIO()
        writer = csv.writer(manifest)
        writer.writerow(_COLUMNS)
        specimen = self.specimen
        for number, cell in enumerate(self.cells, 1):
            about = (specimen.patient, specimen.site, specimen.external_id)
            writer.writerow((number, self.external_id(cell), *about))
        yield MANIFEST, manifest.getvalue().encode()
        yield from ((str(number), cell.data) for number, cell in enumerate(self.cells, 1) if not cell.problem)

    def begin_import(self, session: Session, archive: ReceivedArchive) -> tuple[int, JobOut]:
        """Let a job store the cells; rows of those that are refused already have their result."""
        existing_specimen(session, self.specimen.id)
        job = begin_import(session, self.context, self.principal, archive)
        for number, cell in enumerate(self.cells, 1):
            if cell.problem:
                named = {
                    "external_id": self.external_id(cell)[:200].replace("\x00", ""),
                    "patient": self.specimen.patient,
                }
                session.add(ImportRow(job_id=job.id, row=number, status="failed", detail=cell.problem, **named))
        return 202, job_out(job)


def add_cells(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    once: Once,
    specimen_id: uuid.UUID,
    cells: Sequence[SentCell],
) -> Response:
    """Store some cells and answer their results, or begin the import of many; a retry goes on where it stopped."""
    with context.database.read() as reading:
        upload = _Upload(context, principal, existing_specimen(reading, specimen_id), cells)
        answered = once.answered(reading)
    digest = [(cell.name, hashlib.sha256(cell.data).hexdigest(), cell.problem) for cell in cells]
    if answered:
        return once.replay(session, digest)
    if len(cells) > AT_ONCE:
        with pack_files(upload.files(), context) as archive:
            return once(session, digest, lambda: upload.begin_import(session, archive))
    results = [upload.store(cell) for cell in cells]  # before the session's transaction begins
    upload.finish()
    return once(session, digest, lambda: upload.answer(session, results), case_id_of=lambda _: specimen_id)
