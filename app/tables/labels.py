"""Labels: append-only, chained by what they supersede."""

import uuid

from sqlalchemy import Boolean, CheckConstraint, Float, ForeignKey, Index, Integer, String, Text, false, text
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table


class Annotator(Identified, Table):
    """Who labels: an account's person, or somebody known to an outside system by name."""

    __tablename__ = "annotators"

    name: Mapped[str] = mapped_column(String(100), unique=True)
    account_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("accounts.id"), unique=True)


class Label(Identified, Table):
    """One annotator's diagnosis of one case, or its revision or retraction."""

    __tablename__ = "labels"
    __table_args__ = (
        CheckConstraint("kind IN ('label', 'revision', 'retraction')", name="kind"),
        CheckConstraint("round IN ('planned', 'adjudication')", name="round"),
        CheckConstraint("(kind = 'label') = (supersedes_id IS NULL)", name="chain"),
        CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name="class_code"),
        Index(
            "uq_labels_first_of_annotator",
            "case_id",
            "annotator_id",
            unique=True,
            sqlite_where=text("supersedes_id IS NULL"),
            postgresql_where=text("supersedes_id IS NULL"),
        ),
        Index(
            "uq_labels_supersedes_id",
            "supersedes_id",
            unique=True,
        ),
    )

    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), index=True)
    annotator_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("annotators.id"), index=True)
    kind: Mapped[str] = mapped_column(String(20))
    supersedes_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("labels.id"))
    # place in the chain of this annotator's labels of this case, whatever the clocks said
    position: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    class_code: Mapped[str | None] = mapped_column(String(100))
    confidence: Mapped[float | None] = mapped_column(Float(53))
    note: Mapped[str | None] = mapped_column(Text)
    # made without knowing the prediction, other labels or the reason for asking
    blind: Mapped[bool] = mapped_column(Boolean)
    round: Mapped[str] = mapped_column(String(20))
    # given to a read that had run out, after its request had gone to somebody else: in no evaluation and no fit
    late: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # a change of mind after the prediction or other labels were shown
    post_reveal: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    # why it was revised or retracted
    reason: Mapped[str | None] = mapped_column(Text)
    # seconds from the display of the case, else from the lease, to the label
    reading_seconds: Mapped[float | None] = mapped_column(Float(53))
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))
