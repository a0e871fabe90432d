"""Finds stored cases that a release was trained on, by pixel digest and by patient."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain.keys import DerivedKey
from app.database.tables import Case
from app.http.models import ResponseModel
from ml.messages import Message, joined
from ml.release.card import CardContents
from ml.release.training_index import TrainingIndex, as_digests

_BLOCK = 10_000
_KEY_NAME = 16


@dataclass(frozen=True)
class CaseFingerprint:
    """Fingerprint of a case: identifier, patient or None, pixel digest or None if it was not kept."""

    case_id: UUID
    patient: str | None
    pixels_sha256: str | None


def patient_key(key: DerivedKey) -> str:
    """Name of this installation's key for patients, from which the key cannot be computed."""
    return key.digest(b"").hex()[:_KEY_NAME]


def patient_hmac(key: DerivedKey, unit: str) -> str:
    """HMAC of a patient in an export: ``key:hexadecimal``."""
    return f"{patient_key(key)}:{key.digest(unit.encode()).hex()}"


def find_training_uses(
    index: TrainingIndex | None, key: DerivedKey, cases: Sequence[CaseFingerprint]
) -> list[str | None]:
    """Find how a release used each case: ``network``, ``calibration``, or None if unused or unknown."""
    if index is None or not cases:
        return [None] * len(cases)
    images = as_digests(bytes.fromhex(case.pixels_sha256 or "00" * 32) for case in cases)
    patients = None
    if patient_key(key) in index.patient_keys:
        units = {
            unit: key.digest(unit.encode()) for unit in {patient_unit(case.patient, case.case_id) for case in cases}
        }
        patients = as_digests(units[patient_unit(case.patient, case.case_id)] for case in cases)
    return [str(use) or None for use in index.uses(images, patients)]


def patient_unit(patient: str | None, case_id: UUID) -> str:
    """Key of a patient: all cases of a name, or one case without a patient."""
    return f"case:{case_id}" if patient is None else f"patient:{patient}"


class OverlapOut(ResponseModel):
    """Stored cases that a release was trained on, which are left out wherever it is judged.

    ``unknown`` where the release carries no digests: of its images, or of patients of this service.
    """

    n_cases: int
    n_trained_on: int
    images: Literal["known", "unknown"]
    patients: Literal["known", "unknown"]

    def sentence(self) -> str:
        """The same for people."""
        if self.images == "unknown":
            return Message("its training cells are unknown because it has no digests of them")
        of = Message("{n_trained_on:,} of {n_cases:,}", n_trained_on=self.n_trained_on, n_cases=self.n_cases)
        parts = [Message("{of} stored cells were used for training and are excluded from evaluation", of=of)]
        if self.patients == "unknown":
            parts.append(Message("; training may include other cells of the same patients"))
        return joined("", parts)


def check_training_disclosure(
    card: CardContents, key: DerivedKey
) -> tuple[Literal["known", "unknown"], Literal["known", "unknown"]]:
    """Check if a release discloses the images and patients of its training data."""
    training = card.get("training")
    if training is None or "adopted" in card:  # a model made elsewhere has digests of its calibration alone
        return "unknown", "unknown"
    return "known", "known" if patient_key(key) in training.get("patient_keys", []) else "unknown"


def measure_training_overlap(
    session: Session, key: DerivedKey, card: CardContents, index: TrainingIndex | None
) -> OverlapOut:
    """Look every stored case up in the index of a release."""
    images, patients = check_training_disclosure(card, key)
    query = select(Case.id, Case.patient, Case.pixels_sha256).where(Case.erased_at.is_(None))
    n_cases = n_trained_on = 0
    for rows in session.execute(query.execution_options(yield_per=_BLOCK)).partitions():
        fingerprints = [CaseFingerprint(*row) for row in rows]
        uses = find_training_uses(index, key, fingerprints)
        n_cases, n_trained_on = n_cases + len(fingerprints), n_trained_on + sum(use is not None for use in uses)
    return OverlapOut(n_cases=n_cases, n_trained_on=n_trained_on, images=images, patients=patients)
