"""Tables of hidden repeats: what asks an annotator to read a case a second time, and which cases may be repeated.

A repeat is no request of its case, so that plans and the states of cases cannot see one by accident. Its leases are
reads, and its answers are labels that do not count.
"""

import uuid
from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Integer, String, UniqueConstraint, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow, UtcDateTime
from app.database.tables.reads import REQUEST_STATES


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
    # the blind label that its answer is compared with
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

    @property
    def round(self) -> str:
        """The round of its labels, as of the first read."""
        return "planned"

    @property
    def named(self) -> uuid.UUID:
        """What the annotator's handle of the case is made from."""
        return self.id
