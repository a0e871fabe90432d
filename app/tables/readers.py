"""Models of named annotators, and which of them weighs labels by who gave them."""

import uuid
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table


class ReaderModelRow(Identified, Table):
    """A fitted model of the annotators of one release, with what it was judged by; never changed."""

    __tablename__ = "reader_models"

    # from 1, over all releases
    version: Mapped[int] = mapped_column(Integer, unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), index=True)
    # ml.readers.confusions.ReaderModel: names annotators
    document: Mapped[dict[str, Any]] = mapped_column(JSON)
    # app.readers.schemas.ReaderFitOut
    report: Mapped[dict[str, Any]] = mapped_column(JSON)


class ReaderModelInUse(Table):
    """The version in use, one row once somebody has switched; null: annotators are taken as alike."""

    __tablename__ = "reader_model_in_use"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    version: Mapped[int | None] = mapped_column(ForeignKey("reader_models.version"))
    # counts every switch
    revision: Mapped[int] = mapped_column(Integer)
