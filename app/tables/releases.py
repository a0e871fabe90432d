"""Releases and the aliases that say which one is served."""

import uuid
from typing import Any

from sqlalchemy import JSON, CheckConstraint, ForeignKey, Integer, String
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table


class ReleaseRow(Identified, Table):
    """A release folder known to this service."""

    __tablename__ = "releases"

    name: Mapped[str] = mapped_column(String(200))
    card_sha256: Mapped[str] = mapped_column(String(64), unique=True)
    card: Mapped[dict[str, Any]] = mapped_column(JSON)


class Alias(Table):
    """``champion`` or ``challenger``; the revision counts every move."""

    __tablename__ = "aliases"
    __table_args__ = (CheckConstraint("name IN ('champion', 'challenger')", name="name"),)

    name: Mapped[str] = mapped_column(String(20), primary_key=True)
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"))
    revision: Mapped[int] = mapped_column(Integer)
