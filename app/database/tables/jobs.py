"""Tables of jobs and their batches, of workers, import rows and frozen evaluations."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Float, ForeignKey, Index, Integer, String, text
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import (
    BaseTable,
    ForgettableRow,
    IdentifiedRow,
    MessageLine,
    MessageText,
    UtcDateTime,
)
from app.database.tables.values import JobKind, JobState, RowStatus

#: Of what is being done, as it is stored.
MESSAGE_LENGTH = 500


class Job(IdentifiedRow, BaseTable):
    """Requested job: what was asked for, and what becomes of it."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint("state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')", name="state"),
        # the few that workers look for every second
        Index(
            "ix_jobs_open",
            "state",
            postgresql_where=text("state IN ('queued', 'running')"),
            sqlite_where=text("state IN ('queued', 'running')"),
        ),
    )

    kind: Mapped[JobKind] = mapped_column(String(30))
    state: Mapped[JobState] = mapped_column(String(10), default="queued")
    # number of its workflow, which runs once: what is queued again has another one
    attempt: Mapped[int] = mapped_column(Integer, default=1)
    # how often it was begun since somebody asked for it
    begun: Mapped[int] = mapped_column(Integer, default=0)
    # process that runs it
    executor_id: Mapped[str | None] = mapped_column(String(100))
    # of the request, where that was traced
    traceparent: Mapped[str] = mapped_column(String(100), default="")
    cancel_requested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancel_requested_by: Mapped[str | None] = mapped_column(String(200))
    # of one that succeeded, and of one that failed
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    error: Mapped[str | None] = mapped_column(MessageText)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    # share done, 0 to 1, and what is being done
    progress: Mapped[float] = mapped_column(Float(53), default=0.0)
    message: Mapped[str] = mapped_column(MessageLine(MESSAGE_LENGTH), default="")
    # by the first attempt
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("accounts.id"))


class WorkerRow(BaseTable):
    """A worker that has begun and not ended, and when it was there last."""

    __tablename__ = "workers"

    executor_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime)


class JobBatch(BaseTable):
    """A part of a job that was written, in the transaction that wrote it: it is never written again."""

    __tablename__ = "job_batches"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    result: Mapped[dict[str, Any]] = mapped_column(JSON)


class ImportRow(ForgettableRow, BaseTable):
    """Result of one row of an import, or of a file without a row."""

    __tablename__ = "import_rows"
    __table_args__ = (CheckConstraint("status IN ('created', 'known', 'failed', 'ignored')", name="status"),)

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    row: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    external_id: Mapped[str] = mapped_column(String(200))
    # as the manifest says, of rows that became no case too
    patient: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[RowStatus] = mapped_column(String(20))
    case_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("cases.id"))
    detail: Mapped[str] = mapped_column(MessageText)
    # file and row of a label that failed; None of a cell or a file
    place: Mapped[str | None] = mapped_column(MessageText)


class Evaluation(IdentifiedRow, BaseTable):
    """A frozen evaluation: its tables lie in a file whose digest is kept, its document here."""

    __tablename__ = "evaluations"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    snapshot_sha256: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
