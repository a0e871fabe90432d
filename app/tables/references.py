"""Reference cells: settled cases that stand for a class, and what the guidelines say of it. Rows are only added.

A case that was ever shown as a reference cell is given to nobody to be read any more, nor is a twin of it: everybody
may have seen how it was read.
"""

import uuid

from sqlalchemy import CheckConstraint, ForeignKey, Integer, String, Text, UniqueConstraint, Uuid
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table

#: What may become of a cell; the first two are shown.
REFERENCE_KINDS = ("chosen", "pinned", "dropped", "excluded")
SHOWN_KINDS = REFERENCE_KINDS[:2]


class ReferenceCell(Identified, Table):
    """A decision on a case as a reference cell of a class; of each class and case the newest one holds.

    ``dropped``: others took its place; ``excluded``: not to be chosen again.
    """

    __tablename__ = "reference_cells"
    __table_args__ = (
        UniqueConstraint("class_code", "case_id", "number"),
        CheckConstraint(f"kind IN {REFERENCE_KINDS}", name="kind"),
    )

    # random: the address of its image is made of it
    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True, default=uuid.uuid4)
    class_code: Mapped[str] = mapped_column(String(100))
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), index=True)
    # of this class and case, from 1
    number: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(20))
    # final blind readers when it was decided, and how many of them said this class
    n_readers: Mapped[int] = mapped_column(Integer)
    n_same: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str | None] = mapped_column(Text)
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))


class ClassDefinition(Identified, Table):
    """What the study's guidelines say of a class; of each class the highest number holds."""

    __tablename__ = "class_definitions"
    __table_args__ = (UniqueConstraint("class_code", "number"),)

    class_code: Mapped[str] = mapped_column(String(100))
    number: Mapped[int] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text)
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))
