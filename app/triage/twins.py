"""Twins: cases with the same image, by pixel digest, or by perceptual hash within a patient.

Pixels are what stays the same of a picture that is encoded anew.
"""

import uuid
from typing import Protocol

from sqlalchemy import ColumnElement, and_, bindparam, or_

from app.database.tables import Case
from app.triage.rules import NEAR_DUPLICATE_BITS
from ml.images.picture import hash_distance

# featureless images share the hash 0 and say nothing about likeness
_NO_HASH = 0


class ImageIdentity(Protocol):
    """Columns of a case, or of a row, that decide whether it is a twin of another one."""

    @property
    def id(self) -> uuid.UUID:
        """Identifier of the case."""

    @property
    def pixels_sha256(self) -> str | None:
        """SHA-256 of the pixels."""

    @property
    def patient(self) -> str | None:
        """Patient of the case."""

    @property
    def image_hash(self) -> int | None:
        """Perceptual hash of the pixels."""


def may_be_twin() -> ColumnElement[bool]:
    """Condition of the cases among which twins are, the case itself included; its parameters: ``identity_values``."""
    # an erased case has no pixels, and a case may have no patient: nothing is equal to a null
    same = Case.pixels_sha256 == bindparam("pixels_sha256")
    of_patient = and_(Case.patient == bindparam("patient"), Case.image_hash.is_not(None))
    return and_(Case.erased_at.is_(None), or_(same, of_patient))


def identity_values(case: ImageIdentity) -> dict[str, str | None]:
    """Values of the parameters of ``may_be_twin``."""
    return {"pixels_sha256": case.pixels_sha256, "patient": case.patient}


def are_near(case: ImageIdentity, other: ImageIdentity) -> bool:
    """Whether two cases of one patient have nearly the same image."""
    if case.patient is None or case.patient != other.patient:
        return False
    if case.image_hash in {None, _NO_HASH} or other.image_hash is None or case.image_hash is None:
        return False
    return hash_distance(case.image_hash, other.image_hash) <= NEAR_DUPLICATE_BITS


def are_twins(case: ImageIdentity, other: ImageIdentity) -> bool:
    """Whether two cases show the same image, or are one case."""
    same = case.pixels_sha256 is not None and case.pixels_sha256 == other.pixels_sha256
    return case.id == other.id or same or are_near(case, other)
