"""Face of the imports: dry runs, archives and import jobs."""

import uuid
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.database.tables import ImportRow, Job
from app.http.errors import NotFound
from app.imports.archive_storage import ReceivedArchive, open_job_archive
from app.imports.dry_run import begin_check, can_be_imported, check_of, import_checked, import_of, same_image_as
from app.imports.import_job import CHECK, begin_import, counts_of, delete_archives, differing_rows, is_row_problem
from app.imports.label_import import label_counts_of
from app.imports.label_rows import names_cell
from app.imports.receiving import pack_files, receive_body
from app.imports.schemas import ImportOut, ImportRowOut, Status
from app.imports.zip_contents import (
    MANIFEST,
    MAX_ENTRIES,
    MAX_ROWS,
    ZIP_TYPES,
    ArchiveError,
    is_of_system,
    read_archive,
    require_size,
)
from app.jobs.service import job_out, jobs_where


def show_import(session: Session, import_id: uuid.UUID, *, after: int, limit: int, status: str | None) -> ImportOut:
    """An import with a page of its rows."""
    jobs = jobs_where(session, Job.id == import_id, Job.kind == "import")
    if not jobs:
        raise NotFound("there is no such import")
    rows, next_cursor = page_of_rows(session, import_id, after=after, limit=limit, status=status)
    return ImportOut(
        job=job_out(jobs[0]),
        counts=dict(counts_of(session, import_id)),
        labels=dict(label_counts_of(session, import_id)),
        rows=rows,
        next_cursor=next_cursor,
    )


def count_failed_rows(session: Session, since: datetime) -> list[tuple[uuid.UUID, datetime, int]]:
    """Imports since a moment that have failed rows, newest first, when each was asked for, and its failed rows."""
    # the few jobs first: rows are found by their job
    n_failed = select(func.count()).where(ImportRow.job_id == Job.id, ImportRow.status == "failed").scalar_subquery()
    imports = select(Job.id, Job.created_at, n_failed).where(Job.kind == "import", Job.created_at >= since)
    return [(job_id, at, n) for job_id, at, n in session.execute(imports.order_by(Job.id.desc())) if n]


def page_of_rows(
    session: Session, job_id: uuid.UUID, *, after: int, limit: int, status: str | None
) -> tuple[list[ImportRowOut], str | None]:
    """Rows of an import, or of a check, and from where to go on."""
    rows = _select_rows(session, job_id, after, limit + 1, status)
    return [_row_out(row) for row in rows[:limit]], str(rows[limit - 1].row) if len(rows) > limit else None


def _row_out(row: ImportRow) -> ImportRowOut:
    return ImportRowOut(
        row=row.row,
        external_id=row.external_id,
        status=row.status,
        case_id=None if row.case_id is None else str(row.case_id),
        detail=row.detail,
        place=row.place,
    )


def _select_rows(session: Session, import_id: uuid.UUID, after: int, limit: int, status: str | None) -> list[ImportRow]:
    statement = select(ImportRow).where(ImportRow.job_id == import_id, ImportRow.row > after).order_by(ImportRow.row)
    if status == "differs":
        statement = statement.where(*differing_rows())
    elif status is not None:
        statement = statement.where(ImportRow.status == status)
    return list(session.execute(statement.limit(limit)).scalars())
