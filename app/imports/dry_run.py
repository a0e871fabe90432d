"""Dry run of an import, and the job that does it."""

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.ingest import UploadDigests, look_at_case, refuse_other_image
from app.cases.schemas import CaseIn
from app.context import Context
from app.database.tables import ImportRow, Job
from app.http.errors import Conflict, NotFound, Problem
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive, hand_on, is_kept
from app.imports.import_job import CHECK, RowCounts, archive_of_job, differences, named, of_the_row, submit_with
from app.imports.zip_contents import Archive, Row
from app.jobs import service
from app.jobs.handle import RunningJob
from app.jobs.queries import JobView, jobs_where
from ml.messages import Message

_Status = Literal["created", "known", "failed"]


def same_image_as(external_id: str) -> str:
    """What is told of a row with the image of a case that is there; one of the same archive is told by its row."""
    return Message("same image as {external_id}", external_id=external_id)


class FailedRow(TypedDict):
    """A row that became no case, says something else than its case, or a file that no row is about; and why."""

    row: int
    external_id: str
    detail: str


class CheckCounts(RowCounts):
    """What would become of the rows; ``twins`` are created with the image of another case."""

    n_rows: int
    twins: int


class CheckReport(CheckCounts):
    """What would become of the rows, and the first of which something is to be told, those that would fail first."""

    failures: list[FailedRow]


@dataclass(frozen=True)
class _Known:
    """A case that is there, or would be by an earlier row."""

    image_sha256: str
    field_sha256: str | None
    patient: str | None
    site: str | None
    metadata: dict[str, str]


class _Check:
    """Goes through an archive and remembers what its rows would have stored."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._rows: dict[str, _Known] = {}
        self._images: dict[str, int] = {}

    def row(self, archive: Archive, row: Row) -> tuple[_Status, str]:
        """What would become of a row, and what is to be told of it.

        Raises:
            Problem: one that every row would have at this moment.
        """
        try:
            fields = row.case()
            files = archive.read(row), archive.read_field(row)
            return self._compared(row.number, fields, *look_at_case(self._context, fields, *files))
        except Problem as exc:
            if not of_the_row(exc):
                raise
            return "failed", exc.detail
        except ValueError as exc:
            return "failed", str(exc)

    def _compared(self, number: int, fields: CaseIn, sent: UploadDigests, pixels_sha256: str) -> tuple[_Status, str]:
        with self._context.database.read() as session:
            case, twin = queries.known_case_and_first_image(session, fields.external_id, pixels_sha256)
            known = self._rows.get(fields.external_id)
            if case is not None:
                said = case.patient, case.site, dict(case.case_metadata)
                known = _Known(case.image_sha256, case.field_sha256, *said)
            first = "" if twin is None else same_image_as(twin.external_id)
        refuse_other_image(known, sent)
        if known is not None:
            return "known", differences(fields, known.patient, known.site, known.metadata)
        earlier = self._images.setdefault(pixels_sha256, number)
        said = fields.patient, fields.site, dict(fields.metadata)
        self._rows[fields.external_id] = _Known(sent.image_sha256, sent.field_sha256, *said)
        return "created", first or (
            "" if earlier == number else Message("same image as row {earlier}", earlier=earlier)
        )


@dataclass(frozen=True)
class CheckedRow:
    """What would become of a row, or of a file that no row is about, and what is to be told of it.

    Attributes:
        number: of the row.
        external_id: of the case; of a file its name.
        patient: as the row says.
        status: created, known, failed or ignored.
        detail: empty where there is nothing to tell.
    """

    number: int
    external_id: str
    patient: str | None
    status: Literal["created", "known", "failed", "ignored"]
    detail: str


def checked_rows(context: Context, archive: Archive) -> Iterator[CheckedRow]:
    """Every row of an archive in its order, then every file that no row is about."""
    check = _Check(context)
    for row in archive.rows:
        status, detail = check.row(archive, row)
        yield CheckedRow(row.number, *named(row), status, detail)
    for file in archive.ignored:
        yield CheckedRow(file.number, file.file[-200:].replace("\x00", ""), None, "ignored", file.why)


class Counting:
    """Counts what would become of rows, one by one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, row: CheckedRow) -> None:
        """Count one more."""
        told = {"known": "differs", "created": "twins"}.get(row.status)
        self._counts.update([row.status, *([told] if told and row.detail else [])])

    def counts(self) -> CheckCounts:
        """So far."""
        n = self._counts
        return {
            "n_rows": n["created"] + n["known"] + n["failed"],
            "created": n["created"],
            "known": n["known"],
            "failed": n["failed"],
            "ignored": n["ignored"],
            "differs": n["differs"],
            "twins": n["twins"],
        }


def check_archive(context: Context, archive: Archive, shown: int) -> CheckReport:
    """What importing an archive would do.

    Args:
        context: parts of the service.
        archive: opened.
        shown: of how many rows something is told at most.
    """
    counting, told = Counting(), []
    for row in checked_rows(context, archive):
        counting.add(row)
        if row.detail:
            said = FailedRow(row=row.number, external_id=row.external_id, detail=row.detail)
            told.append((row.status != "failed", said))
    told.sort(key=lambda one: (one[0], one[1]["row"]))
    return {**counting.counts(), "failures": [row for _, row in told[:shown]]}


#: Rows looked at before what is to be told of them is stored.
_BATCH = 32


def begin_check(session: Session, context: Context, principal: Principal, archive: ReceivedArchive) -> JobView:
    """Ask what the import of an archive would do; the archive goes to where the job looks for it."""
    return submit_with(session, context, principal, CHECK, archive)


def check_import(job: RunningJob) -> CheckCounts:
    """Job: look at every row of an archive, and keep those of which something is to be told; no case is stored.

    Which rows are alike depends on all that come before, so an attempt that follows another looks at all again.

    Raises:
        ArchiveError: the archive cannot be imported at all.
    """
    counting, n_done = Counting(), 0
    with job.context.database.read() as session:
        stored = set(session.execute(select(ImportRow.row).where(ImportRow.job_id == job.job_id)).scalars())
    with archive_of_job(job) as archive:
        rows, n_rows = checked_rows(job.context, archive), len(archive.rows)
        while batch := list(islice(rows, _BATCH)):
            for row in batch:
                counting.add(row)
            n_done += len(batch)
            with job.write() as session:
                session.add_all(_kept(job, row) for row in batch if row.detail and row.number not in stored)
                shown = min(n_done, n_rows)
                job.report_in(session, shown / n_rows, Message("{count:,} of {rows:,} rows", count=shown, rows=n_rows))
    return counting.counts()


def _kept(job: RunningJob, row: CheckedRow) -> ImportRow:
    return ImportRow(
        job_id=job.job_id,
        row=row.number,
        external_id=row.external_id,
        patient=row.patient,
        status=row.status,
        detail=row.detail,
    )


def import_checked(session: Session, context: Context, principal: Principal, check_id: uuid.UUID) -> JobView:
    """Import what was checked; asked for twice, it is the same import.

    Raises:
        NotFound: there is no such check.
        Conflict: it has not ended well, or its archive is not kept any more.
    """
    if session.get(Job, check_id, with_for_update=True) is None:
        raise NotFound("there is no such check")
    check, begun = check_of(session, check_id), import_of(session, check_id)
    if begun is not None:
        return begun
    if check.state != "succeeded":
        raise Conflict("the check has not ended; wait for it, then import")
    if not is_kept(context, check_id):
        raise Conflict("the archive is not kept any more; send it again")
    asked = {"sha256": check.parameters["sha256"], "check": str(check_id)}
    job = service.submit(session, context, "import", asked, principal)
    hand_on(context, check_id, job.id)
    return job


def check_of(session: Session, check_id: uuid.UUID) -> JobView:
    """A check.

    Raises:
        NotFound: there is no such check.
    """
    found = jobs_where(session, Job.id == check_id, Job.kind == CHECK)
    if not found:
        raise NotFound("there is no such check")
    return found[0]


def import_of(session: Session, check_id: uuid.UUID) -> JobView | None:
    """The import that followed a check."""
    followed = Job.parameters["check"].as_string() == str(check_id)
    found = jobs_where(session, Job.kind == "import", followed, limit=1)
    return found[0] if found else None


def can_be_imported(context: Context, check: JobView) -> bool:
    """Whether a check has ended well, and its archive is still there."""
    return check.state == "succeeded" and is_kept(context, check.id)
