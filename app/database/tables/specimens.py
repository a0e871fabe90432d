"""Specimens, what was computed of their cells and signed, and what a laboratory's specimens taught."""

import uuid
from datetime import datetime
from typing import Any, get_args

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, ForgettableRow, IdentifiedRow, UtcDateTime, time_of_row
from app.database.tables.values import SignatureMeaning, SpecimenState


class Specimen(IdentifiedRow, ForgettableRow, BaseTable):
    """What was taken from a patient at one time; its cells are cases."""

    __tablename__ = "specimens"

    external_id: Mapped[str] = mapped_column(sa.String(200), unique=True)
    patient: Mapped[str | None] = mapped_column(sa.String(200), index=True)
    site: Mapped[str | None] = mapped_column(sa.String(200), index=True)
    # when it was taken, if that is known
    collected_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    erased_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


class SpecimenResult(BaseTable):
    """Shares of a specimen as they were computed last."""

    __tablename__ = "specimen_results"
    __table_args__ = (
        sa.CheckConstraint(f"state IN {get_args(SpecimenState)}", name="state"),
        sa.Index(
            "ix_specimen_results_differs",
            "specimen_id",
            sqlite_where=sa.text("differs = 1"),
            postgresql_where=sa.text("differs"),
        ),
    )

    specimen_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("specimens.id"), primary_key=True)
    state: Mapped[SpecimenState] = mapped_column(sa.String(20), default="open")
    # counts what was stored, from 1
    version: Mapped[int] = mapped_column(sa.Integer, default=0)
    computed_at: Mapped[datetime] = mapped_column(UtcDateTime, default=time_of_row)
    # digest of everything that the numbers follow from
    basis: Mapped[str] = mapped_column(sa.String(64))
    # whose predictions they follow from; null without cells
    release_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("releases.id"))
    # app.specimens.schemas.MeasuredShares
    document: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    # identifiers of the n cells, and class probabilities (n, K) of each in the specimen, little-endian float64
    cells: Mapped[list[str]] = mapped_column(sa.JSON)
    class_probs: Mapped[bytes] = mapped_column(sa.LargeBinary)
    # a decision at a threshold is another one than in the last signature
    differs: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())


class SpecimenSignature(IdentifiedRow, BaseTable):
    """What a person signed of a specimen; an amendment is a further row, and the highest number holds."""

    __tablename__ = "specimen_signatures"
    __table_args__ = (
        sa.UniqueConstraint("specimen_id", "number"),
        sa.CheckConstraint(f"meaning IN {get_args(SignatureMeaning)}", name="meaning"),
    )

    specimen_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("specimens.id"))
    # of this specimen, from 1
    number: Mapped[int] = mapped_column(sa.Integer)
    account_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))
    meaning: Mapped[SignatureMeaning] = mapped_column(sa.String(20))
    # what was shown: a result's document with specimen, version and policy; it names no patient and no external id
    document: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    # SHA-256 of its canonical JSON
    digest: Mapped[str] = mapped_column(sa.String(64))


class SpecimenRemark(ForgettableRow, BaseTable):
    """Free text of a signature, which stays when this goes with an erased patient."""

    __tablename__ = "specimen_remarks"

    # of the signature
    id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("specimen_signatures.id"), primary_key=True)
    specimen_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("specimens.id"), index=True)
    comment: Mapped[str | None] = mapped_column(sa.Text)
    # why an earlier signature was amended
    reason: Mapped[str | None] = mapped_column(sa.Text)


class SpecimenKnowledge(IdentifiedRow, BaseTable):
    """What the laboratory's specimens taught; the highest version is in use."""

    __tablename__ = "specimen_knowledge"

    version: Mapped[int] = mapped_column(sa.Integer, unique=True)
    release_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("releases.id"))
    # how strongly a specimen resembles the mix of the calibration cells, in cells
    kappa: Mapped[float] = mapped_column(sa.Float(53))
    # tilt, shift and number of completely read specimens of each reporting group, with how they were checked
    groups: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
