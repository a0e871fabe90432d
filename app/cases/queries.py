"""Database access of cases, predictions and active labels."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, aliased

from app.errors import NotFound
from app.tables import Annotator, Case, CasePrediction, Label


def case_by_id(session: Session, case_id: uuid.UUID, *, lock: bool = False) -> Case:
    """A case, locked against concurrent labels where asked.

    Raises:
        NotFound: there is no such case.
    """
    case = session.get(Case, case_id, with_for_update=True if lock else None)
    if case is None:
        raise NotFound("there is no such case")
    return case


def case_by_external_id(session: Session, external_id: str) -> Case | None:
    """The case of an external id."""
    return session.execute(select(Case).where(Case.external_id == external_id)).scalar_one_or_none()


def first_with_image(session: Session, image_sha256: str) -> Case | None:
    """The earliest case with this image."""
    found = select(Case).where(Case.image_sha256 == image_sha256).order_by(Case.id).limit(1)
    return session.execute(found).scalar_one_or_none()


def latest_prediction(session: Session, case_id: uuid.UUID) -> CasePrediction:
    """The newest prediction of a case: its prior.

    Raises:
        NotFound: the case has none.
    """
    found = select(CasePrediction).where(CasePrediction.case_id == case_id).order_by(CasePrediction.id.desc()).limit(1)
    prediction = session.execute(found).scalar_one_or_none()
    if prediction is None:
        raise NotFound("the case has no prediction")
    return prediction


def page_of_cases(
    session: Session, *, after: uuid.UUID | None, limit: int, by_need: bool = False
) -> list[tuple[Case, CasePrediction]]:
    """Cases with their predictions, newest first, or those in most need of another annotator first."""
    found = select(Case, CasePrediction).join(CasePrediction, CasePrediction.case_id == Case.id)
    if by_need:
        found = found.order_by(CasePrediction.disagreement_prob.desc(), Case.id)
    else:
        found = found.order_by(Case.id.desc())
        if after is not None:
            found = found.where(Case.id < after)
    return [(row[0], row[1]) for row in session.execute(found.limit(limit))]


def active_labels() -> Select[Label, Annotator]:
    """Heads of the label chains that are no retraction, with their annotators, oldest first."""
    later = aliased(Label)
    return (
        select(Label, Annotator)
        .join(Annotator, Annotator.id == Label.annotator_id)
        .outerjoin(later, later.supersedes_id == Label.id)
        .where(later.id.is_(None), Label.kind != "retraction")
        .order_by(Label.id)
    )


@dataclass(frozen=True)
class ActiveLabel:
    """An active label with the name of its annotator."""

    label: Label
    annotator: str


def labels_of_case(session: Session, case_id: uuid.UUID) -> list[ActiveLabel]:
    """Active labels of a case, oldest first."""
    rows = session.execute(active_labels().where(Label.case_id == case_id))
    return [ActiveLabel(label, annotator.name) for label, annotator in rows]


def label_totals(session: Session, case_ids: list[uuid.UUID]) -> dict[uuid.UUID, int]:
    """Number of active labels of each of the cases."""
    heads = (
        active_labels().where(Label.case_id.in_(case_ids)).with_only_columns(Label.case_id).order_by(None).subquery()
    )
    rows = session.execute(select(heads.c.case_id, func.count()).group_by(heads.c.case_id))
    return {row[0]: row[1] for row in rows}
