"""Reports as the worker made them last, and the laboratory's own targets for them."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, Float, ForeignKey, Integer, String, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table, UtcDateTime


class ReportTargets(Identified, Table):
    """One version of the laboratory's own targets of the report; the highest version is in force."""

    __tablename__ = "report_targets"

    version: Mapped[int] = mapped_column(Integer, unique=True)
    # how far what is said may lie from what is seen: of disagreement, and of the leading class
    disagreement_gap: Mapped[float] = mapped_column(Float(53))
    leading_gap: Mapped[float] = mapped_column(Float(53))
    # at least: of all disagreements caught, and of pairs of annotators that agree
    caught: Mapped[float] = mapped_column(Float(53))
    agreement: Mapped[float] = mapped_column(Float(53))
    # hours within which nine of ten reads are answered
    hours: Mapped[float] = mapped_column(Float(53))
    reason: Mapped[str] = mapped_column(Text)
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))


class PublishedReportRow(Table):
    """The latest report on one question, and the job that makes the next one: made anew when somebody asks for it."""

    __tablename__ = "published_reports"

    # digest of the question
    key: Mapped[str] = mapped_column(String(64), primary_key=True)
    question: Mapped[dict[str, str | None]] = mapped_column(JSON)
    asked_at: Mapped[datetime] = mapped_column(UtcDateTime)
    job_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    # null until it has been made: the report, when, on which release, how long that took, and what from
    document: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True), deferred=True)
    as_of: Mapped[datetime | None] = mapped_column(UtcDateTime)
    release_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("releases.id"))
    seconds: Mapped[float | None] = mapped_column(Float(53))
    basis: Mapped[str | None] = mapped_column(String(200))
