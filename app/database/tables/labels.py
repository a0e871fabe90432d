"""Tables of annotators and append-only labels, and of labels still open for correction."""

import uuid
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from app.database.tables.base import BaseTable, ForgettableRow, IdentifiedRow, UtcDateTime
from app.database.tables.values import LabelKind, Round


class Annotator(IdentifiedRow, BaseTable):
    """Annotator: the person of an account, or a name of an outside system."""

    __tablename__ = "annotators"

    name: Mapped[str] = mapped_column(sa.String(100), unique=True)
    account_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("accounts.id"), unique=True)


#: What a label answers: a read, or a hidden repeat of one, which measures consistency and never counts.
PURPOSES = ("read", "repeat")


class Label(IdentifiedRow, BaseTable):
    """One annotator's diagnosis of one case, its blind correction, its revision or its retraction."""

    # Only what must see repeats selects from this table; everything else selects ``CountedLabel``.

    __tablename__ = "labels"
    __table_args__ = (
        sa.CheckConstraint("kind IN ('label', 'correction', 'revision', 'retraction')", name="kind"),
        sa.CheckConstraint("round IN ('planned', 'adjudication')", name="round"),
        sa.CheckConstraint(f"purpose IN {PURPOSES}", name="purpose"),
        sa.CheckConstraint("(kind = 'label') = (supersedes_id IS NULL)", name="chain"),
        sa.CheckConstraint("(kind = 'retraction') = (class_code IS NULL)", name="class_code"),
        sa.Index(
            "uq_labels_first_of_annotator",
            "case_id",
            "annotator_id",
            "purpose",
            unique=True,
            sqlite_where=sa.text("supersedes_id IS NULL"),
            postgresql_where=sa.text("supersedes_id IS NULL"),
        ),
        sa.Index(
            "uq_labels_supersedes_id",
            "supersedes_id",
            unique=True,
        ),
    )

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"), index=True)
    purpose: Mapped[str] = mapped_column(sa.String(10), default="read")
    kind: Mapped[LabelKind] = mapped_column(sa.String(20))
    supersedes_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("labels.id"))
    # place in the chain of this annotator's labels of this case and purpose, whatever the clocks said
    position: Mapped[int] = mapped_column(sa.Integer, default=0, server_default="0")
    class_code: Mapped[str | None] = mapped_column(sa.String(100))
    confidence: Mapped[float | None] = mapped_column(sa.Float(53))
    # what it would be, were it not the class: counts nowhere
    second_choice: Mapped[str | None] = mapped_column(sa.String(100))
    # its annotator wants an admin to look at the case
    flagged: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())
    # made without knowing the prediction, other labels or the reason for asking
    blind: Mapped[bool] = mapped_column(sa.Boolean)
    round: Mapped[Round] = mapped_column(sa.String(20))
    # given to a read that had run out, after its request had gone to somebody else: in no evaluation and no fit
    late: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())
    # a change of mind after the prediction or other labels were shown
    post_reveal: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())
    # seconds from the display of the case, else from the lease, to the label
    reading_seconds: Mapped[float | None] = mapped_column(sa.Float(53))
    # when an outside annotator gave it; None: not known
    given_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))

    # gone with an erased patient
    remark: Mapped["Remark | None"] = relationship(
        primaryjoin=lambda: sa.and_(Label.id == foreign(Remark.id), Label.case_id == foreign(Remark.case_id)),
        lazy="joined",
        uselist=False,
    )


# not among the tables: nothing is stored through it
_COUNTED_LABELS = sa.Table(
    "counted_labels",
    sa.MetaData(),
    *(sa.Column(column.name, column.type, primary_key=column.primary_key) for column in Label.__table__.columns),
)


class CountedLabel(Label):
    """A label that counts: a row of the view of the labels that answer no repeat."""

    __table__ = _COUNTED_LABELS
    __mapper_args__ = {"concrete": True}  # noqa: RUF012  # as the declarative base has it

    remark: Mapped["Remark | None"] = relationship(
        primaryjoin=lambda: sa.and_(
            CountedLabel.id == foreign(Remark.id), CountedLabel.case_id == foreign(Remark.case_id)
        ),
        lazy="joined",
        uselist=False,
        viewonly=True,
    )


class Remark(ForgettableRow, BaseTable):
    """Free text about a case: next to a label, an outcome, or a read that was declined. They stay when it is erased."""

    __tablename__ = "remarks"

    # of the label, the outcome or the read
    id: Mapped[uuid.UUID] = mapped_column(sa.Uuid, primary_key=True)
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    note: Mapped[str | None] = mapped_column(sa.Text)
    # why a label was revised or retracted, or a case settled or reopened
    reason: Mapped[str | None] = mapped_column(sa.Text)


class Comment(IdentifiedRow, ForgettableRow, BaseTable):
    """A remark of a person on a case for everybody who may see it in full, with a place on its image or without."""

    __tablename__ = "comments"
    __table_args__ = (
        sa.CheckConstraint("(x IS NULL) = (y IS NULL)", name="place"),
        sa.CheckConstraint("x >= 0 AND x <= 1 AND y >= 0 AND y <= 1", name="inside"),
    )

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    account_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))
    text: Mapped[str] = mapped_column(sa.Text)
    # shares of the image's width and height, from its upper left corner
    x: Mapped[float | None] = mapped_column(sa.Float(53))
    y: Mapped[float | None] = mapped_column(sa.Float(53))


class ProvisionalLabel(BaseTable):
    """A label that its annotator may still correct: nothing follows from it until its row is gone."""

    __tablename__ = "provisional_labels"

    # the first of its chain
    label_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("labels.id"), primary_key=True)
    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), index=True)
    annotator_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("annotators.id"), index=True)
    purpose: Mapped[str] = mapped_column(sa.String(10), default="read")
    read_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("reads.id"), unique=True)
    # from then on it is not corrected; brought forward by whatever ends the time for corrections
    final_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    # cases that its annotator has answered or declined since
    n_since: Mapped[int] = mapped_column(sa.Integer, default=0)
