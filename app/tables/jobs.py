"""Long work: jobs, imports row by row, frozen evaluations."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Boolean, CheckConstraint, Float, ForeignKey, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table, UtcDateTime

JOB_STATES = ("queued", "running", "succeeded", "failed", "cancelled")


class Job(Identified, Table):
    """Work that outlives a request; the worker process does it."""

    __tablename__ = "jobs"
    __table_args__ = (CheckConstraint(f"state IN {JOB_STATES}", name="state"),)

    kind: Mapped[str] = mapped_column(String(30))
    state: Mapped[str] = mapped_column(String(20), default="queued", index=True)
    parameters: Mapped[dict[str, Any]] = mapped_column(JSON)
    # share done, 0 to 1, and what is being done
    progress: Mapped[float] = mapped_column(Float(53), default=0.0)
    message: Mapped[str] = mapped_column(String(500), default="")
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    cancel_requested: Mapped[bool] = mapped_column(Boolean, default=False)
    result: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    error: Mapped[str | None] = mapped_column(Text)
    # last sign of life of the process that does it
    seen_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    started_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("accounts.id"))


class ImportRow(Table):
    """What became of one row of an import."""

    __tablename__ = "import_rows"
    __table_args__ = (CheckConstraint("status IN ('created', 'known', 'failed')", name="status"),)

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    row: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    external_id: Mapped[str] = mapped_column(String(200))
    status: Mapped[str] = mapped_column(String(20))
    case_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("cases.id"))
    detail: Mapped[str] = mapped_column(Text)


class Evaluation(Identified, Table):
    """A frozen evaluation: its tables lie in a file whose digest is kept, its document here."""

    __tablename__ = "evaluations"

    job_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("jobs.id"), unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    snapshot_sha256: Mapped[str] = mapped_column(String(64))
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
