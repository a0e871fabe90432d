"""Tables of hidden repeats: cases read a second time, which never count as labels.

No label and no request: none counts.

Tables of their own, so that evaluations, posteriors, plans and the states of cases cannot see them by accident.
"""

import uuid
from datetime import datetime

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
    Uuid,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime
from app.database.tables.reads import READ_STATES, REQUEST_STATES


class HeldBack(IdentifiedRow, BaseTable):
    """A case that stays hidden from an annotator who has read it, so that it may come to them a second time."""

    __tablename__ = "held_back"
    __table_args__ = (UniqueConstraint("annotator_id", "case_id"),)

    annotator_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("annotators.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"))


class Repeat(IdentifiedRow, BaseTable):
    """A second visit of an annotator to a case that they have read: to them a case like any other, not known before."""

    # It takes the seat of a case that waits for them, which is kept from them until some hours later: so the number of
    # waiting cases falls as it always does when a case is leased.

    __tablename__ = "repeats"
    __table_args__ = (
        UniqueConstraint("annotator_id", "case_id"),
        CheckConstraint(f"state IN {REQUEST_STATES}", name="state"),
    )

    # random: their annotator's handle of the case is made from it
    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=uuid.uuid4)
    annotator_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("annotators.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), index=True)
    # the blind answer that it is compared with
    label_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("labels.id"))
    policy_version: Mapped[int] = mapped_column(ForeignKey("policies.version"))
    # the case whose seat in the annotator's queue it takes, and until when that one is kept from them; None: not leased
    in_place_of: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"))
    back_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    due_on: Mapped[str] = mapped_column(String(10))
    shuffle: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20), default="open")
    lease_expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime, index=True)
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # as in provisional_labels: from then on the answer is not corrected; cases that were left behind since
    final_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    n_since: Mapped[int] = mapped_column(Integer, default=0)

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.id


class RepeatRead(IdentifiedRow, BaseTable):
    """A lease of a repeat; the columns are those of ``reads``."""

    __tablename__ = "repeat_reads"
    __table_args__ = (
        CheckConstraint(f"state IN {READ_STATES}", name="state"),
        Index("ix_repeat_reads_annotator_id_state", "annotator_id", "state"),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=uuid.uuid4)
    request_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("repeats.id"), index=True)
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"))
    annotator_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("annotators.id"))
    state: Mapped[str] = mapped_column(String(20), default="leased")
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    displayed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    decline_reason: Mapped[str | None] = mapped_column(String(20))

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.request_id


class RepeatAnswer(IdentifiedRow, BaseTable):
    """An answer to a repeat, its correction, revision or retraction: never a label."""

    __tablename__ = "repeat_answers"
    __table_args__ = (
        UniqueConstraint("repeat_id", "position"),
        CheckConstraint("kind IN ('label', 'correction', 'revision', 'retraction')", name="kind"),
        CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name="class_code"),
    )

    repeat_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("repeats.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"))
    kind: Mapped[str] = mapped_column(String(20))
    supersedes_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("repeat_answers.id"))
    position: Mapped[int] = mapped_column(Integer)
    class_code: Mapped[str | None] = mapped_column(String(100))
    confidence: Mapped[float | None] = mapped_column(Float(53))
    second_choice: Mapped[str | None] = mapped_column(String(100))
    flagged: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # given while nothing of the image beyond its pixels had been shown to the annotator
    unexposed: Mapped[bool] = mapped_column(Boolean)
    # as the annotator is told of it
    blind: Mapped[bool] = mapped_column(Boolean)
    reading_seconds: Mapped[float | None] = mapped_column(Float(53))
