"""Cases and their immutable predictions."""

import uuid
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.database.tables.base import BaseTable, ForgettableRow, IdentifiedRow, UtcDateTime
from app.database.tables.values import Partition


class Case(IdentifiedRow, ForgettableRow, BaseTable):
    """One image to be read."""

    __tablename__ = "cases"
    __table_args__ = (
        sa.CheckConstraint("partition IN ('calibration', 'evaluation')", name="partition"),
        sa.Index("ix_cases_patient_id", "patient", "id"),
        sa.Index("ix_cases_site_id", "site", "id"),
        sa.Index("ix_cases_partition_id", "partition", "id"),
        sa.Index("ix_cases_worklist", "waiting", "need", "id"),
    )

    external_id: Mapped[str] = mapped_column(sa.String(200), unique=True)
    patient: Mapped[str | None] = mapped_column(sa.String(200))
    # whose cell it is, if it came with others of one specimen
    specimen_id: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("specimens.id"), index=True)
    site: Mapped[str | None] = mapped_column(sa.String(200))
    case_metadata: Mapped[dict[str, str]] = mapped_column(sa.JSON)
    # of the uploaded bytes, and of the stored PNG, which is its name in the store: of the same pixels it is another one
    # once something else encodes them
    image_sha256: Mapped[str] = mapped_column(sa.String(64), index=True)
    stored_sha256: Mapped[str] = mapped_column(sa.String(64), index=True)
    # the same of the wider field around the cell, where there is one: for people alone, never for a prediction
    field_sha256: Mapped[str | None] = mapped_column(sa.String(64))
    stored_field_sha256: Mapped[str | None] = mapped_column(sa.String(64), index=True)
    # of the decoded pixels, of image and field: what is the same picture, and what a release was trained on; null once
    # the patient is erased
    pixels_sha256: Mapped[str | None] = mapped_column(sa.String(64), index=True)
    field_pixels_sha256: Mapped[str | None] = mapped_column(sa.String(64), index=True)
    width: Mapped[int] = mapped_column(sa.Integer)
    height: Mapped[int] = mapped_column(sa.Integer)
    # an earlier case with the same image under another external id
    same_image_as: Mapped[uuid.UUID | None] = mapped_column(sa.ForeignKey("cases.id"))
    partition: Mapped[Partition] = mapped_column(sa.String(20))
    # of the coin that decides about a second planned read: tossed once, from the image's identity alone
    u: Mapped[float] = mapped_column(sa.Float(53))
    # probability of a second planned read, the largest of all looks, and what made it so
    pi: Mapped[float] = mapped_column(sa.Float(53))
    # place in the worklist: disagreement probability of the newest prediction, 1 without one; of near-duplicates of
    # a patient's cell less 1, so that they come after all others
    need: Mapped[float] = mapped_column(sa.Float(53), default=1.0, server_default="1")
    # a read is wanted that nobody has ended yet
    waiting: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.true())
    # when it was planned, an earlier near-duplicate of the same patient was selected for a second read
    twin_selected: Mapped[bool] = mapped_column(sa.Boolean, default=False, server_default=sa.false())
    # perceptual hash of the stored pixels, to find near-duplicates of a patient
    image_hash: Mapped[int | None] = mapped_column(sa.BigInteger)
    # mean optical density of red, green and blue, to notice a stain that drifts
    stain: Mapped[list[float] | None] = mapped_column(sa.JSON(none_as_null=True))
    erased_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    created_by: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("accounts.id"))


class CaseTwin(BaseTable):
    """Two cases that no annotator reads both: same pixels, or near-duplicates of a patient."""

    # A row per direction.

    __tablename__ = "case_twins"

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), primary_key=True)
    twin_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"), primary_key=True)


class CasePrediction(IdentifiedRow, BaseTable):
    """Prediction of one release for one case; never changed."""

    __tablename__ = "predictions"
    __table_args__ = (sa.UniqueConstraint("case_id", "release_id"),)

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    release_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("releases.id"), index=True)
    # in the order of the release's classes
    class_probs: Mapped[list[float]] = mapped_column(sa.JSON)
    log_concentration: Mapped[float | None] = mapped_column(sa.Float(53))
    disagreement_prob: Mapped[float] = mapped_column(sa.Float(53), index=True)
    # of an ensemble: what ``app.predictions.stored`` makes its posterior from
    members: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
    # farther from the training cells than held-out cells are; null if the release has no check
    out_of_distribution: Mapped[bool | None]
    # the release was trained on this image, or on others of its patient: network or calibration, null for neither
    trained_on: Mapped[str | None] = mapped_column(sa.String(11))
    # checks by which the image is unlike those that the release was made from, the strangest first; null for none
    unlike_reasons: Mapped[list[str] | None] = mapped_column(sa.JSON(none_as_null=True))
    # of the strangest check, 1 where images are flagged, and the percentile of the held-out images that are nearer
    unlike_distance: Mapped[float | None] = mapped_column(sa.Float(53))
    unlike_percentile: Mapped[float | None] = mapped_column(sa.Float(53))
    # from the training cells in the network's features, for noticing that images drift
    feature_distance: Mapped[float | None] = mapped_column(sa.Float(53))


class NetworkOutput(IdentifiedRow, ForgettableRow, BaseTable):
    """Output of one network for one image, kept for later calibrations."""

    __tablename__ = "network_outputs"
    __table_args__ = (sa.UniqueConstraint("case_id", "network_sha256"),)

    case_id: Mapped[uuid.UUID] = mapped_column(sa.ForeignKey("cases.id"))
    network_sha256: Mapped[str] = mapped_column(sa.String(64), index=True)
    # little-endian float32, (K,) and (D,)
    logits: Mapped[bytes] = mapped_column(sa.LargeBinary)
    features: Mapped[bytes] = mapped_column(sa.LargeBinary)
    # statistics of the pixels, little-endian float32 (F,), by which a release tells unlike images; null where unknown
    appearance: Mapped[bytes | None] = mapped_column(sa.LargeBinary)
