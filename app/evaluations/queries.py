"""Database access of evaluations: one release's predictions and the labels that may judge them, as columns.

Who is evaluated: *prior* predictions. Which labels: blind ones of planned reads. Of an annotator's chain the last
label given before anything was shown counts, so that a change of mind after the reveal neither enters nor throws a
case out; a retraction takes the label out.
"""

import hashlib
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Select, and_, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from app.cases.stored import stored_prediction
from app.evaluations.columns import Columns
from app.tables import Annotator, Case, CasePrediction, Label, Read, ReadRequest
from ml.arrays import FloatArray
from ml.distributions import DirichletCpe, PointCpe

# identifiers in one IN (…); SQLite takes 32,766 variables
_CHUNK = 10_000


@dataclass(frozen=True)
class LabelRow:
    """One label that counts."""

    case_id: uuid.UUID
    annotator: str
    class_code: str
    outside: bool


def blind_labels(rounds: tuple[str, ...] = ("planned",)) -> Select[*tuple[Any, ...]]:
    """Labels that may judge or fit: blind, of the rounds, the last of their chain given blind, not retracted.

    Args:
        rounds: ``planned`` for evaluations; fits of the likelihood take adjudications too.
    """
    later = aliased(Label)
    overruled = exists().where(
        later.case_id == Label.case_id,
        later.annotator_id == Label.annotator_id,
        later.position > Label.position,
        or_(later.blind.is_(True), later.kind == "retraction"),
    )
    return (
        select(Label.case_id, Annotator.name, Label.class_code, Annotator.account_id.is_(None))
        .join(Annotator, Annotator.id == Label.annotator_id)
        .where(Label.blind.is_(True), Label.kind != "retraction", Label.round.in_(rounds), ~overruled)
        .order_by(Label.case_id, Label.id)
    )


def label_rows(session: Session, wanted: Select[*tuple[Any, ...]], case_ids: list[uuid.UUID] | None) -> list[LabelRow]:
    """Rows of ``blind_labels`` of some cases, or of all."""
    return [LabelRow(*row) for row in _in_chunks(session, wanted, Label.case_id, case_ids)]


def _in_chunks(
    session: Session, wanted: Select[*tuple[Any, ...]], column: Any, ids: list[uuid.UUID] | None
) -> Iterable[Any]:
    if ids is None:
        yield from session.execute(wanted).yield_per(_CHUNK)
        return
    for start in range(0, len(ids), _CHUNK):
        yield from session.execute(wanted.where(column.in_(ids[start : start + _CHUNK])))


def read_columns(
    session: Session, release_id: uuid.UUID, classes: list[str], case_ids: list[uuid.UUID] | None = None
) -> Columns:
    """Predictions of a release with what was collected about their cases, ordered by case.

    Args:
        session: for reading.
        release_id: whose predictions.
        classes: its K class codes.
        case_ids: only these cases; None for all.
    """
    wanted = (
        select(Case.id, Case.patient, Case.site, Case.created_at, Case.partition, Case.pi, Case.stain, CasePrediction)
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .where(CasePrediction.release_id == release_id)
        .order_by(Case.id)
    )
    rows = list(_in_chunks(session, wanted, Case.id, case_ids))
    predictions: list[CasePrediction] = [row[7] for row in rows]
    probs = np.array([one.class_probs for one in predictions], dtype=np.float64).reshape(-1, len(classes))
    found = Columns.empty(classes, len(rows))
    row_of: dict[uuid.UUID, int] = {}
    for number, (case_id, patient, site, created_at, partition, pi, stain, prediction) in enumerate(rows):
        row_of[case_id] = number
        found.case_id[number] = np.frombuffer(case_id.bytes, dtype=np.uint8)
        found.cluster[number] = _cluster(patient, case_id)
        found.site[number] = "" if site is None else site
        found.created_at[number] = created_at.timestamp()
        found.evaluation[number] = partition == "evaluation"
        found.pi[number] = pi
        found.out_of_distribution[number] = prediction.out_of_distribution
        if stain is not None:
            found.stain[number] = stain
    found.class_probs[:] = probs
    _fill_concentration(found, predictions)
    found.disagreement_probs[:] = _disagreement(found, predictions)
    _fill_requests(session, found, row_of, case_ids)
    position = {code: k for k, code in enumerate(classes)}
    for label in label_rows(session, blind_labels(), case_ids):
        row = row_of.get(label.case_id)
        if row is not None and label.class_code in position:
            found.label_counts[row, position[label.class_code]] += 1
            found.outside[row] |= label.outside
    return found


def _cluster(patient: str | None, case_id: uuid.UUID) -> int:
    """Stable 63-bit number of a patient; a case without one is its own cluster."""
    name = f"case:{case_id}" if patient is None else f"patient:{patient}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def _fill_concentration(found: Columns, predictions: list[CasePrediction]) -> None:
    for number, row in enumerate(predictions):
        if row.log_concentration is not None:
            found.log_concentration[number] = row.log_concentration


def _disagreement(found: Columns, predictions: list[CasePrediction]) -> FloatArray:
    """DPEs computed anew from what is stored, so that they are those of the library to the last bit."""
    if any(row.members is not None for row in predictions):
        return np.array([stored_prediction(row).disagreement_probs[0] for row in predictions], dtype=np.float64)
    if not predictions or np.isnan(found.log_concentration).any():
        return PointCpe(found.class_probs).disagreement_probs
    return DirichletCpe(found.class_probs, found.log_concentration).disagreement_probs


def _fill_requests(
    session: Session, found: Columns, row_of: dict[uuid.UUID, int], case_ids: list[uuid.UUID] | None
) -> None:
    """Planned reads of each case, until when one is open, and how many could not be told."""
    open_ones: ColumnElement[bool] = ReadRequest.state.in_(("open", "leased"))
    wanted = (
        select(ReadRequest.case_id, ReadRequest.due_at, open_ones)
        .where(ReadRequest.round == "planned")
        .order_by(ReadRequest.case_id)
    )
    for case_id, due_at, is_open in _in_chunks(session, wanted, ReadRequest.case_id, case_ids):
        row = row_of.get(case_id)
        if row is not None:
            found.n_planned[row] += 1
            if is_open:
                found.open_until[row] = max(found.open_until[row], due_at.timestamp())
    declined = (
        select(Read.case_id, func.count())
        .join(ReadRequest, ReadRequest.id == Read.request_id)
        .where(and_(Read.decline_reason == "cannot_tell", ReadRequest.round == "planned"))
        .group_by(Read.case_id)
    )
    for case_id, count in _in_chunks(session, declined, Read.case_id, case_ids):
        row = row_of.get(case_id)
        if row is not None:
            found.cannot_tell[row] = count


def external_ids(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, tuple[str, str | None, str | None]]:
    """External id, patient and site of cases."""
    wanted = select(Case.id, Case.external_id, Case.patient, Case.site)
    return {row[0]: (row[1], row[2], row[3]) for row in _in_chunks(session, wanted, Case.id, case_ids)}


def stored_images(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, str | None]:
    """Name in the image store of each case's image, None where the patient was erased."""
    wanted = select(Case.id, Case.stored_sha256, Case.erased_at)
    return {row[0]: row[1] if row[2] is None else None for row in _in_chunks(session, wanted, Case.id, case_ids)}
