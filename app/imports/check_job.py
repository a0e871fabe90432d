"""A check of an archive as a job: what its import would do, row by row; then the import, without sending it again."""

import uuid
from itertools import islice

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.context import Context
from app.database.tables import ImportRow, Job
from app.http.errors import Conflict, NotFound
from app.http.principal import Principal
from app.imports.archives import ReceivedArchive, hand_on, is_kept
from app.imports.checking import CheckCounts, CheckedRow, Counting, checked_rows
from app.imports.work import CHECK, archive_of_job, submit_with
from app.jobs import engine
from app.jobs.queries import JobView, jobs_where
from app.jobs.running import RunningJob
from ml.messages import Message

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
    job = engine.submit(session, context, "import", asked, principal)
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
