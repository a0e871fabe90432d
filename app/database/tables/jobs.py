"""Tables of jobs and their batches, import rows and frozen evaluations.

What becomes of a job is not here: its workflow has state, result and error (``app.jobs.service`` joins the two).
"""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Float, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import (
    BaseTable,
    ForgettableRow,
    IdentifiedRow,
    MessageLine,
    MessageText,
    UtcDateTime,
    time_of_row,
)

#: Of what is being done, as it is stored.
MESSAGE_LENGTH = 500


class Job(IdentifiedRow, BaseTable):
    """Requested job, its requester and its progress."""

    __tablename__ = "jobs"

    kind: Mapped[str] = mapped_column(String(30))
    # workflow that does it; a retry gets a new one
    workflow_id: Mapped[str] = mapped_column(String(100), unique=True)
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    # share done, 0 to 1, and what is being done
    progress: Mapped[float] = mapped_column(Float(53), default=0.0)
    message: Mapped[str] = mapped_column(MessageLine(MESSAGE_LENGTH), default="")
    # by the first attempt
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("accounts.id"))


class JobCancellation(BaseTable):
    """A request to cancel, in a row of its own: the workflow's and the job's are locked while a batch is written."""

    __tablename__ = "job_cancellations"

    workflow_id: Mapped[str] = mapped_column(String(100), primary_key=True)
    requested_by: Mapped[str] = mapped_column(String(200))
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)


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
    status: Mapped[str] = mapped_column(String(20))
    case_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("cases.id"))
    detail: Mapped[str] = mapped_column(MessageText)


class Evaluation(IdentifiedRow, BaseTable):
    """A frozen evaluation: its tables lie in a file whose digest is kept, its document here."""

    __tablename__ = "evaluations"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    snapshot_sha256: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
