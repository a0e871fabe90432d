"""Whom a read was asked of: drawn at random, or preferred for what their label is worth; a row for each time."""

import uuid

from sqlalchemy import JSON, CheckConstraint, Float, ForeignKey, Integer, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table


class ReaderDraw(Identified, Table):
    """One annotator of whom a request was asked; the newest row of a request is in force."""

    __tablename__ = "reader_draws"
    __table_args__ = (
        UniqueConstraint("request_id", "position"),
        CheckConstraint("probability IS NULL OR (probability >= 0.1 AND probability <= 1)", name="probability"),
    )

    request_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("read_requests.id"))
    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"), index=True)
    # 0 when the read was planned, then one more each time the one before declined or may not read any more
    position: Mapped[int] = mapped_column(Integer)
    annotator_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("annotators.id"))
    # of this annotator among those who were left; None: not drawn but preferred
    probability: Mapped[float | None] = mapped_column(Float(53))
    # identifiers of those who were left, in the order from which the keyed number chose
    among: Mapped[list[str]] = mapped_column(JSON)
    # of the one who was preferred: expected gain of their label, and reads that waited for them
    gain: Mapped[float | None] = mapped_column(Float(53))
    load: Mapped[int | None] = mapped_column(Integer)
