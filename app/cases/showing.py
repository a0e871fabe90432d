"""Predictions and cases as the API shows them."""

import uuid

from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.schemas import CaseOut
from app.platform.values import PredictionOut, TriageOut
from app.predictions.stored import stored_prediction
from app.releases.queries import class_codes, existing_release
from app.tables import Case, CasePrediction
from app.triage.planning import judge
from app.triage.queries import current_rule
from app.triage.rules import Rule, Triage, summarise
from ml.distributions.families import PredictiveDistribution


def prediction_out(
    distribution: PredictiveDistribution,
    release_id: uuid.UUID,
    classes: list[str],
    image_sha256: str,
    decision: Triage,
    target_error: float,
    *,
    out_of_distribution: bool,
) -> PredictionOut:
    """A prediction as the API shows it."""
    summary = summarise(distribution, target_error)
    intervals = summary.class_intervals
    return PredictionOut(
        release=str(release_id),
        classes=classes,
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        triage=TriageOut(**vars(decision)),
        out_of_distribution=out_of_distribution,
        image_sha256=image_sha256,
    )


def stored_prediction_out(session: Session, case: Case, prediction: CasePrediction, rule: Rule) -> PredictionOut:
    """A stored prediction as the API shows it, judged by the rule that holds."""
    return prediction_out(
        stored_prediction(prediction),
        prediction.release_id,
        class_codes(existing_release(session, prediction.release_id)),
        case.image_sha256,
        judge(session, case, prediction, rule),
        rule.target_error,
        out_of_distribution=prediction.out_of_distribution,
    )


def case_out(session: Session, case: Case, prediction: CasePrediction | None, n_labels: int, rule: Rule) -> CaseOut:
    """A case as the API shows it, judged by a rule."""
    shown = None if prediction is None else stored_prediction_out(session, case, prediction, rule)
    return CaseOut(
        id=str(case.id),
        external_id=case.external_id,
        patient=case.patient,
        site=case.site,
        metadata=case.case_metadata,
        width=case.width,
        height=case.height,
        partition=case.partition,
        same_image_as=None if case.same_image_as is None else str(case.same_image_as),
        created_at=case.created_at,
        n_labels=n_labels,
        prediction=shown,
    )


def show_case(session: Session, case_id: uuid.UUID) -> CaseOut:
    """One case with its newest prediction.

    Raises:
        NotFound: there is no such case.
    """
    case = queries.case_by_id(session, case_id)
    prediction = queries.predictions_of(session, [case_id]).get(case_id)
    n_labels = len(queries.labels_of_case(session, case_id))
    return case_out(session, case, prediction, n_labels, current_rule(session))
