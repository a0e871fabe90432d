"""Dry run of an import, and the job that does it."""

import uuid
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Literal, TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases.service import (
    CaseIn,
    SpecimenFields,
    UploadDigests,
    find_case_and_first_twin,
    find_specimen,
    inspect_upload,
    is_of_other_specimen,
    refuse_other_image,
    require_place,
    with_fields_of_specimen,
)
from app.context import ServiceContext
from app.database.tables import ImportRow, Job
from app.database.tables.values import RowStatus
from app.http.errors import Conflict, NotFound, Problem
from app.http.principal import Principal
from app.imports import import_job
from app.imports.archive_storage import ReceivedArchive, is_kept, pass_to_import
from app.imports.label_import import LabelCounts, LabelStatus, labels_of_archive, number_before, review_labels
from app.imports.label_rows import ArchiveLabels
from app.imports.zip_contents import ArchiveRow, ImportArchive
from app.jobs import service
from app.jobs.service import JobView, RunningJob, jobs_where
from ml.messages import Message

_Status = Literal["created", "known", "failed"]


def same_image_as(external_id: str) -> str:
    """Return the remark on a row whose image an existing case has."""
    return Message("duplicate image of {external_id}", external_id=external_id)


class FailedRow(TypedDict):
    """A row that became no case, says something else than its case, or a file that no row is about; and why."""

    row: int
    external_id: str
    detail: str
    # file and row of a label; None of a cell or a file
    place: str | None


class CheckCounts(import_job.RowCounts):
    """Counts of rows by their would-be result; ``twins`` are created with another case's image."""

    n_rows: int
    twins: int
    labels: LabelCounts
    # whether every image is in a folder named like a class, which an import may take as its label
    class_folders: bool


class CheckReport(CheckCounts):
    """Counts of rows, and the first rows with a remark, failures first."""

    failures: list[FailedRow]


class _ArchiveCheck:
    """Goes through an archive and remembers what its rows would have stored."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._rows: dict[str, tuple[CaseIn, UploadDigests]] = {}
        self._images: dict[str, int] = {}
        # specimens by their first cell, and cells of each
        self._specimens: dict[str, SpecimenFields] = {}
        self._cells = Counter[str]()

    def row(self, archive: ImportArchive, row: ArchiveRow) -> tuple[_Status, str]:
        """Return the would-be result of a row, and a remark."""
        try:
            fields = row.case()
            files = archive.read(row), archive.read_field(row)
            return self._compared(row.number, fields, *inspect_upload(self._context, fields, *files))
        except Problem as exc:
            if not import_job.is_row_problem(exc):
                raise
            return "failed", exc.detail
        except ValueError as exc:
            return "failed", str(exc)

    def would_create(self) -> Container[str]:
        """External ids of the cells that the rows so far would have stored."""
        return self._rows.keys()

    def _compared(self, number: int, fields: CaseIn, sent: UploadDigests, pixels_sha256: str) -> tuple[_Status, str]:
        with self._context.database.read() as session:
            case, twin = find_case_and_first_twin(session, fields.external_id, pixels_sha256)
            fields = with_fields_of_specimen(session, fields, self._specimens.get(fields.specimen or ""))
            if case is not None:
                refuse_other_image(case, sent)
                other = is_of_other_specimen(session, str(case.specimen_id), fields)
                stored = case.patient, case.site, case.case_metadata
                return "known", import_job.describe_differences(fields, *stored, other_specimen=other)
            if fields.external_id in self._rows:
                first, digests = self._rows[fields.external_id]
                refuse_other_image(digests, sent)
                other = fields.specimen not in (None, first.specimen)
                stored = first.patient, first.site, first.metadata
                return "known", import_job.describe_differences(fields, *stored, other_specimen=other)
            if fields.specimen is not None:
                planned = SpecimenFields(fields.specimen, fields.patient, fields.site)
                planned = self._specimens.setdefault(fields.specimen, planned)
                specimen = find_specimen(session, fields.specimen) or planned
                require_place(session, specimen, fields, self._cells[fields.specimen])
                self._cells[fields.specimen] += 1
        earlier = self._images.setdefault(pixels_sha256, number)
        self._rows[fields.external_id] = fields, sent
        if twin is not None:
            return "created", same_image_as(twin.external_id)
        return "created", "" if earlier == number else Message("duplicate image of row {earlier}", earlier=earlier)


@dataclass(frozen=True)
class CheckedRow:
    """Would-be result of a row, or of a file without a row, with a remark."""

    row: int
    # of the case; of a file its name
    external_id: str
    # of the row or its specimen
    patient: str | None
    # created, known, failed or ignored
    status: RowStatus
    # empty where there is nothing to tell
    detail: str
    # file and row of a label, which is created where it would be stored; None of a cell or a file
    place: str | None = None


def checked_rows(context: ServiceContext, archive: ImportArchive, labels: ArchiveLabels) -> Iterator[CheckedRow]:
    """Every row of an archive in its order, then every file that no row is about, then every label."""
    check = _ArchiveCheck(context)
    for row in archive.rows:
        status, detail = check.row(archive, row)
        with context.database.read() as session:
            identity = import_job.get_row_identity(session, row)
        yield CheckedRow(row.number, *identity, status, detail)
    for file in archive.ignored:
        yield CheckedRow(file.number, file.file[-200:].replace("\x00", ""), None, "ignored", file.why)
    for one in review_labels(context, labels, check.would_create()):
        number, would_be = number_before(archive) + one.label.number, _STATUSES[one.status]
        yield CheckedRow(number, one.external_id, None, would_be, one.detail, one.label.place)


_STATUSES: dict[LabelStatus, RowStatus] = {"stored": "created", "known": "known", "failed": "failed"}


class RowCounter:
    """Counts what would become of rows, one by one."""

    def __init__(self, labels: ArchiveLabels) -> None:
        self._counts: Counter[str] = Counter()
        self._labels: Counter[str] = Counter()
        self._class_folders = labels.has_class_folders()

    def add(self, row: CheckedRow) -> None:
        """Count one more."""
        if row.place is not None:
            self._labels.update([row.status])
            return
        extra_status = {"known": "differs", "created": "twins"}.get(row.status)
        self._counts.update([row.status, *([extra_status] if extra_status and row.detail else [])])

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
            "labels": {
                "stored": self._labels["created"],
                "known": self._labels["known"],
                "failed": self._labels["failed"],
            },
            "class_folders": self._class_folders,
        }


def check_archive(
    context: ServiceContext, archive: ImportArchive, shown: int, *, class_folders: bool = False
) -> CheckReport:
    """Report what importing an archive would do."""
    labels = labels_of_archive(context, archive, class_folders=class_folders)
    counting, failures = RowCounter(labels), []
    for row in checked_rows(context, archive, labels):
        counting.add(row)
        if row.detail:
            failure = FailedRow(row=row.row, external_id=row.external_id, detail=row.detail, place=row.place)
            failures.append((row.status != "failed", failure))
    failures.sort(key=lambda one: (one[0], one[1]["row"]))
    return {**counting.counts(), "failures": [row for _, row in failures[:shown]]}


#: Rows looked at before what is to be told of them is stored.
_BATCH = 32


def begin_check(session: Session, context: ServiceContext, principal: Principal, archive: ReceivedArchive) -> JobView:
    """Ask what the import of an archive would do; the archive goes to where the job looks for it."""
    return import_job.begin_import(session, context, principal, archive, kind=import_job.CHECK)


def check_import(job: RunningJob) -> CheckCounts:
    """Job: look at every row of an archive, and keep those with a remark; no case is stored."""
    # Which rows are alike depends on all that come before, so an attempt that follows another looks at all again.
    n_done = 0
    with job.context.database.read() as session:
        stored = set(session.execute(select(ImportRow.row).where(ImportRow.job_id == job.job_id)).scalars())
    with import_job.archive_of_job(job) as archive:
        labels = labels_of_archive(job.context, archive)
        counting, rows = RowCounter(labels), checked_rows(job.context, archive, labels)
        n_rows = max(len(archive.rows) + len(labels), 1)
        while batch := list(islice(rows, _BATCH)):
            for row in batch:
                counting.add(row)
            n_done += len(batch)
            with job.write() as session:
                remarked = (row for row in batch if row.detail and row.row not in stored)
                session.add_all(ImportRow(job_id=job.job_id, **asdict(row)) for row in remarked)
                n_reported = min(n_done, n_rows)
                job.report_in(
                    session, n_reported / n_rows, Message("{count:,} of {rows:,} rows", count=n_reported, rows=n_rows)
                )
    return counting.counts()


def import_checked(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    check_id: uuid.UUID,
    *,
    class_folders: bool = False,
) -> JobView:
    """Import what was checked, with the names of its folders as labels if so chosen; asked twice, it is one import."""
    if session.get(Job, check_id, with_for_update=True) is None:
        raise NotFound("there is no such check")
    check, begun = check_of(session, check_id), import_of(session, check_id)
    if begun is not None:
        return begun
    if check.state != "succeeded":
        raise Conflict("the check is still running; import when it has finished")
    if not is_kept(context, check_id):
        raise Conflict("the archive has been deleted; upload it again")
    if class_folders or "labels" in check.parameters:
        import_job.require_label_scope(principal)
    parameters = {**check.parameters, "check": str(check_id)} | ({"class_folders": True} if class_folders else {})
    job = service.submit_job(session, context, "import", parameters, principal)
    pass_to_import(context, check_id, job.id)
    return job


def check_of(session: Session, check_id: uuid.UUID) -> JobView:
    """A check."""
    jobs = jobs_where(session, Job.id == check_id, Job.kind == import_job.CHECK)
    if not jobs:
        raise NotFound("there is no such check")
    return jobs[0]


def import_of(session: Session, check_id: uuid.UUID) -> JobView | None:
    """The import that followed a check."""
    followed = Job.parameters["check"].as_string() == str(check_id)
    jobs = jobs_where(session, Job.kind == "import", followed, limit=1)
    return jobs[0] if jobs else None


def can_be_imported(context: ServiceContext, check: JobView) -> bool:
    """Whether a check has ended well, and its archive is still there."""
    return check.state == "succeeded" and is_kept(context, check.id)
