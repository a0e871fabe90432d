"""Database access of evaluations: predictions of one release and active labels, as columns."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.cases.queries import active_labels
from app.tables import Case, CasePrediction, Label


@dataclass(frozen=True)
class Predicted:
    """A case with its prediction by one release."""

    case: Case
    prediction: CasePrediction


def predicted_cases(
    session: Session,
    release_id: uuid.UUID,
    partition: str | None,
    since: datetime | None,
    until: datetime | None,
) -> list[Predicted]:
    """Cases that a release predicted, oldest first, in a partition and a time span of their upload."""
    found = (
        select(Case, CasePrediction)
        .join(CasePrediction, CasePrediction.case_id == Case.id)
        .where(CasePrediction.release_id == release_id)
        .order_by(Case.id)
    )
    if partition is not None:
        found = found.where(Case.partition == partition)
    if since is not None:
        found = found.where(Case.created_at >= since)
    if until is not None:
        found = found.where(Case.created_at < until)
    return [Predicted(row[0], row[1]) for row in session.execute(found)]


def evaluation_labels(session: Session) -> Iterator[tuple[Label, str]]:
    """Active labels that may enter evaluation, with annotators' names: blind, planned, no change of mind."""
    found = active_labels().where(Label.blind.is_(True), Label.round == "planned", Label.kind == "label")
    for label, annotator in session.execute(found):
        yield label, annotator.name
