"""Cases and their immutable predictions."""

import uuid

from sqlalchemy import JSON, CheckConstraint, Float, ForeignKey, Integer, LargeBinary, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.tables.base import Identified, Table


class Case(Identified, Table):
    """One image to be read."""

    __tablename__ = "cases"
    __table_args__ = (CheckConstraint("partition IN ('calibration', 'evaluation')", name="partition"),)

    external_id: Mapped[str] = mapped_column(String(200), unique=True)
    patient: Mapped[str | None] = mapped_column(String(200), index=True)
    site: Mapped[str | None] = mapped_column(String(200))
    case_metadata: Mapped[dict[str, str]] = mapped_column(JSON)
    # of the uploaded bytes, and of the stored PNG, which is its name in the store
    image_sha256: Mapped[str] = mapped_column(String(64), index=True)
    stored_sha256: Mapped[str] = mapped_column(String(64))
    width: Mapped[int] = mapped_column(Integer)
    height: Mapped[int] = mapped_column(Integer)
    # an earlier case with the same image under another external id
    same_image_as: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("cases.id"))
    partition: Mapped[str] = mapped_column(String(20))
    created_by: Mapped[uuid.UUID] = mapped_column(ForeignKey("accounts.id"))


class CasePrediction(Identified, Table):
    """What one release says about one case; never changed."""

    __tablename__ = "predictions"
    __table_args__ = (UniqueConstraint("case_id", "release_id"),)

    case_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("cases.id"))
    release_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("releases.id"), index=True)
    # little-endian float32, so that a later calibration needs no network run
    logits: Mapped[bytes] = mapped_column(LargeBinary)
    features: Mapped[bytes] = mapped_column(LargeBinary)
    # in the order of the release's classes
    class_probs: Mapped[list[float]] = mapped_column(JSON)
    log_concentration: Mapped[float | None] = mapped_column(Float(53))
    disagreement_prob: Mapped[float] = mapped_column(Float(53), index=True)
    # of an ensemble: what ``app.cases.stored`` makes its posterior from
    members: Mapped[bytes | None] = mapped_column(LargeBinary)
