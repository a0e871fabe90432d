"""Loads evaluation data from the database in blocks, in constant memory."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy import ColumnElement, Select, exists, func, select
from sqlalchemy.orm import Session, aliased

from app.database.tables import Case, CasePrediction, ProvisionalLabel, Read, ReaderDraw, ReadRequest
from app.metrics.cohort import cluster_name
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.queries import LabelRow, blind_labels, match_any_id
from app.predictions.service import stored_predictions
from ml.distributions.decisions import consensus_probs, expected_gain
from ml.distributions.families import has_concentration
from ml.metrics.posterior_gain import posterior_gain_terms
from ml.util.arrays import FloatArray

#: Cases read at once; SQLite takes 32,766 variables in one statement.
BLOCK = 5_000

# the first case with the same pixels
_first = aliased(Case)
# whether a column of case identifiers lies in a block
_Inside = Callable[[Any], ColumnElement[bool]]


def load_dataset(
    session: Session, release_id: uuid.UUID, classes: list[str], case_ids: list[uuid.UUID] | None = None
) -> EvaluationDataset:
    """Predictions of a release with what was collected about their cases, ordered by case."""
    blocks = [EvaluationDataset.empty(classes, 0)]
    if case_ids is not None:
        ordered = sorted(case_ids, key=lambda case_id: case_id.bytes)
        for start in range(0, len(ordered), BLOCK):
            inside = partial(match_any_id, session, ids=ordered[start : start + BLOCK])
            rows = list(session.execute(_predictions_query(release_id).where(inside(Case.id))))
            blocks.append(_build_block(session, classes, rows, inside))
        return EvaluationDataset.joined(blocks)
    after = uuid.UUID(int=0)
    while len(block := load_dataset_block(session, release_id, classes, after)):
        blocks.append(block)
        after = block.ids()[-1]
    return EvaluationDataset.joined(blocks)


def load_dataset_block(
    session: Session, release_id: uuid.UUID, classes: list[str], after: uuid.UUID
) -> EvaluationDataset:
    """Load the next ``BLOCK`` cases after one, with predictions and labels; none at the end."""
    # Arguments as in ``load_dataset``.
    rows = list(session.execute(_predictions_query(release_id).where(Case.id > after).limit(BLOCK)))
    if not rows:
        return EvaluationDataset.empty(classes, 0)
    return _build_block(session, classes, rows, _match_id_range(rows[0].id, rows[-1].id))


def load_expected_gains(session: Session, release_id: uuid.UUID, case_ids: list[uuid.UUID]) -> FloatArray:
    """Expected gain of one label (N,) of each case; NaN without a concentration."""
    gains, row_of = np.full(len(case_ids), np.nan), {case_id: row for row, case_id in enumerate(case_ids)}
    for start in range(0, len(case_ids), BLOCK):
        inside = match_any_id(session, Case.id, case_ids[start : start + BLOCK])
        rows = list(session.execute(_predictions_query(release_id).where(inside)))
        if has_concentration(predicted := stored_predictions(rows)):
            gains[[row_of[row.id] for row in rows]] = expected_gain(predicted)
    return gains


def _predictions_query(release_id: uuid.UUID) -> Select[*tuple[Any, ...]]:
    return (
        select(
            Case.id,
            Case.patient,
            Case.site,
            Case.created_at,
            Case.partition,
            Case.pi,
            Case.stain,
            CasePrediction.class_probs,
            CasePrediction.log_concentration,
            CasePrediction.disagreement_prob,
            CasePrediction.members,
            CasePrediction.out_of_distribution,
            CasePrediction.feature_distance,
            _first.id.label("first_id"),
            _first.patient.label("first_patient"),
            CasePrediction.trained_on,
        )
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .outerjoin(_first, _first.id == Case.same_image_as)
        .where(CasePrediction.release_id == release_id)
        .order_by(Case.id)
    )


def _match_id_range(low: uuid.UUID, high: uuid.UUID) -> _Inside:
    return lambda column: column.between(low, high)


def _build_block(session: Session, classes: list[str], rows: list[Any], inside: _Inside) -> EvaluationDataset:
    columns = EvaluationDataset.empty(classes, len(rows))
    if not rows:
        return columns
    row_of = {row.id: number for number, row in enumerate(rows)}
    columns.case_id[:] = np.frombuffer(b"".join(row.id.bytes for row in rows), dtype=np.uint8).reshape(-1, 16)
    columns.cluster[:] = [
        stable_name_hash(cluster_name(row.id, row.patient, row.first_id, row.first_patient)) for row in rows
    ]
    columns.site[:] = [stable_name_hash(row.site or "") for row in rows]
    columns.sites.update({stable_name_hash(row.site): row.site for row in rows if row.site})
    columns.created_at[:] = [row.created_at.timestamp() for row in rows]
    columns.evaluation[:] = [row.partition == "evaluation" for row in rows]
    columns.pi[:] = [row.pi for row in rows]
    flags = [row.out_of_distribution for row in rows]
    columns.out_of_distribution[:] = [-1 if flag is None else flag for flag in flags]
    columns.feature_distance[:] = [np.nan if row.feature_distance is None else row.feature_distance for row in rows]
    columns.trained_on[:] = [row.trained_on is not None for row in rows]
    columns.stain[:] = [(np.nan,) * 3 if row.stain is None else row.stain for row in rows]
    columns.class_probs[:] = [row.class_probs for row in rows]
    columns.disagreement_probs[:] = _recompute_disagreement(rows)
    _fill_consensus(columns, rows)
    _fill_requests(session, columns, row_of, inside)
    _fill_labels(session, columns, row_of, inside)
    _fill_gain(columns, rows)
    return columns


def _recompute_disagreement(rows: list[Any]) -> FloatArray:
    """DPEs recomputed from what is stored, so that they are those of the library to the last bit."""
    if any(row.members is not None for row in rows):
        return np.array([stored_predictions([row]).disagreement_probs[0] for row in rows], dtype=np.float64)
    return np.asarray(stored_predictions(rows).disagreement_probs)


def _fill_consensus(columns: EvaluationDataset, rows: list[Any]) -> None:
    distribution, row = stored_predictions(rows), np.arange(len(rows))
    if not has_concentration(distribution):
        return
    leading = columns.class_probs.argmax(axis=1)
    for place, named in ((0, consensus_probs(distribution)), (2, consensus_probs(distribution, 2))):
        columns.consensus[:, place] = named[row, leading]
        columns.consensus[:, place + 1] = named.sum(axis=1) - named[row, leading]


def _fill_labels(session: Session, columns: EvaluationDataset, row_of: dict[uuid.UUID, int], inside: _Inside) -> None:
    position = {code: k for k, code in enumerate(columns.classes)}
    labels_query = blind_labels()
    for label in (
        LabelRow(*row) for row in session.execute(labels_query.where(inside(labels_query.selected_columns[0])))
    ):
        row = row_of.get(label.case_id)
        if row is not None and label.class_code in position:
            place = int(columns.label_counts[row].sum())
            if place < columns.said.shape[1]:
                columns.annotators[row, place] = stable_name_hash(label.annotator)
                columns.said[row, place] = position[label.class_code]
            columns.label_counts[row, position[label.class_code]] += 1
            columns.outside[row] |= label.outside
            if label.ordinal == 1 and not label.outside:
                columns.first_class[row] = position[label.class_code]
                columns.first_annotator[row] = stable_name_hash(label.annotator)
                columns.first_answered_at[row] = label.answered_at.timestamp()


def _fill_gain(columns: EvaluationDataset, rows: list[Any]) -> None:
    """Gain of one label, case by case; none without a concentration, where labels teach a prediction nothing."""
    several = np.flatnonzero(columns.n_labels >= 2)
    if several.size:
        prior = stored_predictions([rows[row] for row in several])
        if has_concentration(prior):
            columns.posterior_gain[several] = posterior_gain_terms(columns.label_counts[several], prior)


def _fill_requests(session: Session, columns: EvaluationDataset, row_of: dict[uuid.UUID, int], inside: _Inside) -> None:
    """Planned reads of each case, until when they are open, and how many were declined as undiagnosable."""
    # A read is open as long as somebody may still correct its label.
    open_ones: ColumnElement[bool] = ReadRequest.state.in_(("open", "leased"))
    drawn = exists().where(ReaderDraw.request_id == ReadRequest.id)
    # an annotator whom a person chose is not a random one
    chosen = exists().where(ReaderDraw.request_id == ReadRequest.id, ReaderDraw.probability.is_(None))
    requests_query = select(ReadRequest.case_id, ReadRequest.ordinal, ReadRequest.due_at, open_ones, drawn, chosen)
    planned = requests_query.where(ReadRequest.round == "planned", inside(ReadRequest.case_id))
    by_hand = set()
    for case_id, ordinal, due_at, is_open, is_drawn, is_chosen in session.execute(planned):
        row = row_of.get(case_id)
        if row is not None:
            columns.n_planned[row] += 1
            columns.drawn[row] |= is_drawn
            by_hand |= {row} if is_chosen else set()
            if ordinal == 1:
                columns.first_due_at[row] = due_at.timestamp()
            if is_open:
                _keep_open(columns, row, ordinal, due_at.timestamp())
    columns.drawn[list(by_hand)] = False
    provisional = (
        select(ProvisionalLabel.case_id, ReadRequest.ordinal)
        .join(Read, Read.id == ProvisionalLabel.read_id)
        .join(ReadRequest, ReadRequest.id == Read.request_id)
    )
    for case_id, ordinal in session.execute(provisional.where(inside(ProvisionalLabel.case_id))):
        row = row_of.get(case_id)
        if row is not None:
            _keep_open(columns, row, ordinal, np.inf)
    declined = (
        select(Read.case_id, func.count())
        .join(ReadRequest, ReadRequest.id == Read.request_id)
        .where(Read.decline_reason == "cannot_tell", ReadRequest.round == "planned", inside(Read.case_id))
        .group_by(Read.case_id)
    )
    for case_id, count in session.execute(declined):
        row = row_of.get(case_id)
        if row is not None:
            columns.cannot_tell[row] = count


def _keep_open(columns: EvaluationDataset, row: int, ordinal: int, until: float) -> None:
    """A planned read of a case is open until a time, seconds since 1970."""
    columns.open_until[row] = max(columns.open_until[row], until)
    if ordinal == 1:
        columns.first_open_until[row] = max(columns.first_open_until[row], until)
