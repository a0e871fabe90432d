"""Releases and the aliases that say which one is served."""

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table, UtcDateTime
from ml.release.card import Card


class ReleaseRow(Identified, Table):
    """A release folder known to this service."""

    __tablename__ = "releases"
    __table_args__ = (CheckConstraint("gate IN ('passed', 'refused', 'not_judged')", name="gate"),)

    name: Mapped[str] = mapped_column(String(200))
    card_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    card: Mapped[Card] = mapped_column(JSON)
    # how the gate judged it when it was recalibrated; reasons and changes are on the card
    gate: Mapped[str] = mapped_column(String(20), server_default="not_judged")


class Alias(Table):
    """``champion`` or ``challenger``; the revision counts every move."""

    __tablename__ = "aliases"
    __table_args__ = (CheckConstraint("name IN ('champion', 'challenger')", name="name"),)

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    revision: Mapped[int] = mapped_column(Integer)


class AnswerSets(Table):
    """What calibrates the sets of a release for the next answer, and how they did; the worker computes it anew."""

    __tablename__ = "answer_sets"

    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    # app.predictions.answer_sets.PublishedSets
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # what it was computed from
    basis: Mapped[str] = mapped_column(String(200))


class PublishedEstimates(Table):
    """The worker's latest estimates of the champion, which ``GET /metrics`` shows; a former one's are deleted."""

    __tablename__ = "published_estimates"

    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), primary_key=True)
    estimates: Mapped[dict[str, float]] = mapped_column(JSON)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # what they were computed from: they stay as long as it does
    basis: Mapped[str | None] = mapped_column(String(200))
