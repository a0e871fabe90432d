"""Twins: cases with the same image, by pixel digest, or by perceptual hash within a patient.

Pixels are what stays the same of a picture that is encoded anew.
"""

import uuid
from typing import Protocol

from sqlalchemy import ColumnElement, String, and_, literal, or_

from app.database.tables import Case
from app.triage.rules import NEAR_DUPLICATE_BITS
from ml.images.image_statistics import hash_distance

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


def may_be_twin_of(case: ImageIdentity) -> ColumnElement[bool]:
    """Condition of the cases among which twins of a case are, the case itself included; a database cannot say more."""
    # a parameter in any case: an erased case has no pixels, and nothing is like it
    same = Case.pixels_sha256 == literal(case.pixels_sha256, String)
    of_patient = and_(Case.patient == case.patient, Case.image_hash.is_not(None))
    return and_(Case.erased_at.is_(None), same if case.patient is None else or_(same, of_patient))


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
