"""Releases, aliases, published estimates and reports."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Float, ForeignKey, Integer, String, Text, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime
from app.database.tables.values import AliasName
from ml.release.card import Card


class ReleaseRow(IdentifiedRow, BaseTable):
    """A release folder known to this service."""

    __tablename__ = "releases"
    __table_args__ = (CheckConstraint("gate IN ('passed', 'refused', 'not_judged')", name="gate"),)

    name: Mapped[str] = mapped_column(String(200))
    card_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    card: Mapped[Card] = mapped_column(JSON)
    # how the gate judged it when it was recalibrated; reasons and changes are on the card
    gate: Mapped[str] = mapped_column(String(20), server_default="not_judged")


class Alias(BaseTable):
    """``champion`` or ``challenger``; the revision counts every move."""

    __tablename__ = "aliases"
    __table_args__ = (CheckConstraint("name IN ('champion', 'challenger')", name="name"),)

    name: Mapped[AliasName] = mapped_column(String(20), primary_key=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    revision: Mapped[int] = mapped_column(Integer)


class AnswerSets(BaseTable):
    """Calibration of a release's prediction sets and their coverage, recomputed by the worker."""

    __tablename__ = "answer_sets"

    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    # app.predictions.stored.PublishedSets
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # what it was computed from
    basis: Mapped[str] = mapped_column(String(200))


class PublishedEstimates(BaseTable):
    """The worker's latest estimates of the champion, which ``GET /metrics`` shows; a former one's are deleted."""

    __tablename__ = "published_estimates"

    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    estimates: Mapped[dict[str, float]] = mapped_column(JSON)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # what they were computed from: they stay as long as it does
    basis: Mapped[str | None] = mapped_column(String(200))


class ReportTargets(IdentifiedRow, BaseTable):
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


class ClassSettings(IdentifiedRow, BaseTable):
    """One version of the names, order, groups and keys of the classes; the highest version is in force."""

    __tablename__ = "class_settings"

    version: Mapped[int] = mapped_column(Integer, unique=True)
    # app.releases.class_settings.ClassSetting of each class, in order; empty for those of the release
    classes: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))


class PublishedReportRow(BaseTable):
    """Latest report on one question, and the job that makes the next one."""

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
