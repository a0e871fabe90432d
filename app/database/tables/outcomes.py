"""Outcomes of cases: statements of a person or of a rule, which enter no estimate."""

import uuid
from typing import get_args

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, IdentifiedRow
from app.database.tables.values import OutcomeKind, OutcomeRule


class Outcome(IdentifiedRow, BaseTable):
    """What a case was settled as, or that it was reopened; of each case the highest number holds."""

    # why is in ``remarks``, which an erased patient leaves

    __tablename__ = "outcomes"
    __table_args__ = (
        sa.UniqueConstraint("case_id", "number"),
        sa.CheckConstraint(f"kind IN {get_args(OutcomeKind)}", name="kind"),
        sa.CheckConstraint(f"rule IN {get_args(OutcomeRule)}", name="rule"),
        sa.CheckConstraint("(kind = 'class') = (class_code IS NOT NULL)", name="class_code"),
        # none decides where a click in the gallery was taken back: the case is as it was before
        sa.CheckConstraint(
            "(rule IS NULL) <> (account_id IS NULL) OR (kind = 'reopened' AND rule IS NULL)", name="one_decides"
        ),
    )

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    # of this case, from 1
    number: Mapped[int] = mapped_column(sa.Integer)
    kind: Mapped[OutcomeKind] = mapped_column(sa.String(20))
    class_code: Mapped[str | None] = mapped_column(sa.String(100))
    # by which it was concluded, or the person who decided
    rule: Mapped[OutcomeRule | None] = mapped_column(sa.String(20))
    account_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("accounts.id"))
