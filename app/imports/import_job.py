"""Import job: turn each row into a case or an error message, and resume where it stopped."""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypedDict

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from app.cases.service import CaseIn, NewCase, is_of_other_specimen, prepare_case, store_case
from app.context import ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.tables import Account, Case, ImportRow, Job, Specimen
from app.http.errors import Forbidden, Problem
from app.http.principal import Principal
from app.imports.archive_storage import ReceivedArchive, move_to_job, open_job_archive, stored_archives
from app.imports.label_import import (
    LabelCounts,
    label_counts_of,
    labels_of_archive,
    of_part,
    store_labels_of_job,
)
from app.imports.zip_contents import ArchiveError, ArchiveRow, ImportArchive, SkippedFile
from app.jobs import service
from app.jobs.service import OPEN, JobView, RunningJob, jobs_where
from app.triage.service import plan_specimen
from ml.messages import Message, joined

#: Scope of those who may import labels.
LABEL_SCOPE = "labels:write"
#: What a row that is about another patient than its case begins to say.
DIFFERS = Message("differs from the stored data")
#: Kind of the jobs that only say what an import would do, and how long their archives are kept: one that was found to
#: be right is imported without being sent again.
CHECK, KEPT_AFTER_CHECK = "check", timedelta(days=1)
#: Rows stored in one transaction.
BATCH = 32
_IGNORED_BATCH = 1000
#: How long the archive of a failed or cancelled import is kept: trying it again goes on where it stopped.
KEPT_FOR_RETRIES = timedelta(days=7)
# no request takes so long between storing an archive and committing its job
_ORPHANED_SECONDS = 86_400.0
# nor, by far, between moving it and committing
_COMMITTED_SECONDS = 600.0


@dataclass(frozen=True)
class _PreparedRow:
    """A row with its case ready to be stored, or why it cannot be."""

    row: ArchiveRow
    new: NewCase | None
    problem: str = ""


def begin_import(
    session: Session,
    context: ServiceContext,
    principal: Principal,
    archive: ReceivedArchive,
    part: tuple[int, int] | None = None,
    *,
    class_folders: bool = False,
    kind: str = "import",
) -> JobView:
    """Ask for the import of an archive that can be opened, or of the part i of n; it goes to where the job looks."""
    if archive.has_labels or class_folders:
        require_label_scope(principal)
    choices = {"labels": archive.has_labels, "class_folders": class_folders}
    parameters = {"sha256": archive.sha256, **{name: True for name, chosen in choices.items() if chosen}}
    parameters |= {} if part is None else {"part": list(part)}
    job = service.submit_job(session, context, kind, parameters, principal, archive.job_id)
    move_to_job(context, archive)
    return job


def require_label_scope(principal: Principal) -> None:
    """Refuse labels of an account that may not store any; admins may."""
    if not principal.scopes & {LABEL_SCOPE, "manage"}:
        raise Forbidden(
            "the archive has labels, which needs the scope {scope}; use another key, or leave the labels out",
            scope=LABEL_SCOPE,
        )


class RowCounts(TypedDict):
    """Rows of an import by what became of them."""

    created: int
    known: int
    failed: int
    ignored: int
    differs: int  # among those that are known


class ImportResult(RowCounts):
    """Result of an import."""

    n_rows: int
    labels: LabelCounts


def import_cases(job: RunningJob) -> ImportResult:
    """Job: import every row of an archive that was not imported yet."""
    with job.context.database.read() as session:
        done = set(session.execute(select(ImportRow.row).where(ImportRow.job_id == job.job_id)).scalars())
        account_id = session.get_one(Job, job.job_id).created_by
        account = None if account_id is None else session.get(Account, account_id)
    if account is None:
        raise ValueError(Message("the account that requested the import no longer exists"))
    principal = Principal(account.id, account.name, account.role, frozenset({"cases:write", LABEL_SCOPE}))
    part = job.parameters.get("part")
    with archive_of_job(job) as archive:
        # first: what is wrong with all of them stops the import
        labels = labels_of_archive(job.context, archive, class_folders="class_folders" in job.parameters)
        rows, files = of_part(archive.rows, part), of_part(archive.ignored, part)
        waiting = [row for row in rows if row.number not in done]
        for start in range(0, len(waiting), BATCH):
            prepared = [_prepare_row(job, archive, row) for row in waiting[start : start + BATCH]]
            count = len(done) + start + len(prepared)
            with job.write() as session:  # only this worker writes, so a row is either done or not
                lock_digests(session, [digest for item in prepared if item.new for digest in item.new.held()])
                for item in prepared:
                    session.add(_store_row(session, job, principal, item))
                    session.flush()
                job.report_in(
                    session,
                    min(count / (len(rows) + len(labels)), 1.0),
                    Message("{count:,} of {rows:,} rows", count=count, rows=len(rows)),
                )
        waiting_files = [file for file in files if file.number not in done]
        for start in range(0, len(waiting_files), _IGNORED_BATCH):
            with job.write() as session:
                session.add_all(_make_skipped_row(job, file) for file in waiting_files[start : start + _IGNORED_BATCH])
        _plan_specimens_of_job(job)
        store_labels_of_job(job, principal, archive, labels, part)
    with job.context.database.read() as session:
        labelled = label_counts_of(session, job.job_id)
        return {"n_rows": len(rows), **counts_of(session, job.job_id), "labels": labelled}


def _plan_specimens_of_job(job: RunningJob) -> None:
    """Plan the reads of every specimen that cells of the rows belong to."""
    of_rows = select(Case.specimen_id).join(ImportRow, ImportRow.case_id == Case.id)
    with job.context.database.read() as session:
        named = of_rows.where(ImportRow.job_id == job.job_id, Case.specimen_id.is_not(None)).distinct()
        specimens = [specimen_id for specimen_id in session.execute(named).scalars() if specimen_id is not None]
    for specimen_id in specimens:
        with job.write() as session:
            plan_specimen(session, job.context.keys, specimen_id)


@contextmanager
def archive_of_job(job: RunningJob) -> Iterator[ImportArchive]:
    """The archive of an import, or of a check."""
    try:
        with open_job_archive(job.context, job.job_id, job.parameters.get("check")) as archive:
            if "labels" not in job.parameters:  # asked for before labels were imported, without their scope
                archive.label_files.clear()
            yield archive
    except FileNotFoundError as exc:
        when = Message("{days} days after the import ended, or when a patient was erased", days=KEPT_FOR_RETRIES.days)
        raise ArchiveError(
            "the archive was deleted {when}; upload it again (stored cells are not duplicated)", when=when
        ) from exc


def delete_archives(context: ServiceContext, kept: timedelta | None = KEPT_FOR_RETRIES) -> int:
    """Delete archives that nobody needs any more: images of patients are kept in one place only."""
    archives = list(stored_archives(context))
    if not archives:
        return 0
    ids = [archive.job_id for archive in archives]
    followed = Job.parameters["check"].as_string().in_(map(str, ids))
    with context.database.read() as session:
        jobs = {job.id: job for job in jobs_where(session, Job.id.in_(ids))}
        # what was checked and is imported is the import's
        jobs |= {uuid.UUID(job.parameters["check"]): job for job in jobs_where(session, Job.kind == "import", followed)}
    time = context.clock()
    unneeded = [archive for archive in archives if not _is_needed(jobs.get(archive.job_id), archive.age, kept, time)]
    for archive in unneeded:
        archive.remove()
    return len(unneeded)


def _is_needed(job: JobView | None, age: float, kept: timedelta | None, at: datetime) -> bool:
    if job is None:
        return age < (_ORPHANED_SECONDS if kept else _COMMITTED_SECONDS)
    if job.state in OPEN:
        return True
    if job.kind == CHECK and job.state == "succeeded":
        return kept is not None and (job.ended_at is None or at - job.ended_at < KEPT_AFTER_CHECK)
    return job.state != "succeeded" and kept is not None and (job.ended_at is None or at - job.ended_at < kept)


def counts_of(session: Session, job_id: uuid.UUID) -> RowCounts:
    """Rows by what became of them."""
    of_job = and_(ImportRow.job_id == job_id, ImportRow.place.is_(None))
    statement = select(ImportRow.status, func.count()).where(of_job).group_by(ImportRow.status)
    counts = {row[0]: row[1] for row in session.execute(statement)}
    differing = select(func.count()).select_from(ImportRow).where(of_job, *differing_rows())
    return {
        "created": counts.get("created", 0),
        "known": counts.get("known", 0),
        "failed": counts.get("failed", 0),
        "ignored": counts.get("ignored", 0),
        "differs": session.execute(differing).scalar_one(),
    }


def differing_rows() -> tuple[ColumnElement[bool], ...]:
    """Conditions on rows whose case was there with another patient, site or metadata."""
    return ImportRow.status == "known", ImportRow.detail != ""


def _prepare_row(job: RunningJob, archive: ImportArchive, row: ArchiveRow) -> _PreparedRow:
    try:
        return _PreparedRow(row, prepare_case(job.context, row.case(), archive.read(row), archive.read_field(row)))
    except Problem as exc:
        if not is_row_problem(exc):
            raise  # the import waits and is tried again
        return _PreparedRow(row, None, exc.detail)
    except ValueError as exc:
        return _PreparedRow(row, None, str(exc))


def is_row_problem(problem: Problem) -> bool:
    """Return whether only this row has the problem, and not every row at this moment."""
    return problem.status < 500 and problem.retry_after is None


def get_row_identity(session: Session, row: ArchiveRow) -> tuple[str, str | None]:
    """Return the external id of a row and its patient, or that of its specimen, made safe to store."""
    # an erasure finds a row that became no case by its patient
    patient: str | None = _storable(row, "patient") or None
    if patient is None and (specimen := _storable(row, "specimen")):
        patient = session.scalar(select(Specimen.patient).where(Specimen.external_id == specimen))
    return _storable(row, "external_id"), patient


def _storable(row: ArchiveRow, name: str) -> str:
    return str(row.fields.get(name, ""))[:200].replace("\x00", "")


def _store_row(session: Session, job: RunningJob, principal: Principal, item: _PreparedRow) -> ImportRow:
    external_id, patient = get_row_identity(session, item.row)
    result = ImportRow(
        job_id=job.job_id,
        row=item.row.number,
        external_id=external_id,
        patient=patient,
        status="failed",
        detail=item.problem,
    )
    if item.new is None:
        return result
    try:
        status, case = store_case(session, job.context, principal, item.new)
    except Problem as exc:
        result.detail = exc.detail
        return result
    result.status, result.case_id = "created" if status == 201 else "known", uuid.UUID(case.id)
    if status != 201:
        fields, other = item.new.fields, is_of_other_specimen(session, case.specimen, item.new.fields)
        result.detail = describe_differences(fields, case.patient, case.site, case.metadata, other_specimen=other)
    return result


def describe_differences(
    said: CaseIn, patient: str | None, site: str | None, metadata: Mapping[str, str], *, other_specimen: bool
) -> str:
    """Describe how a row differs from the existing case, which stays unchanged; empty for nothing."""
    stored = {"patient": patient, "site": site}
    names = [name for name, value in stored.items() if getattr(said, name) not in (None, value)]
    if other_specimen:
        names.append("specimen")
    if any(metadata.get(key) != value for key, value in said.metadata.items()):
        names.append("metadata")
    return joined(": ", [DIFFERS, ", ".join(names)]) if names else ""


def _make_skipped_row(job: RunningJob, file: SkippedFile) -> ImportRow:
    return ImportRow(
        job_id=job.job_id,
        row=file.number,
        external_id=file.file[-200:].replace("\x00", ""),
        status="ignored",
        detail=file.why,
    )
