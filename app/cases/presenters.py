"""Responses that show a case or its image to one caller."""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from fastapi import Response
from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.schemas import CaseOut
from app.context import Context
from app.database.tables import Case, CasePrediction
from app.http.models import PredictionOut, TriageOut
from app.predictions.prediction_sets import Cell, PublishedSets, answer_set, published_sets
from app.predictions.stored import stored_prediction
from app.releases.queries import class_codes_of
from app.triage.planning import judge
from app.triage.queries import current_rule
from app.triage.rules import Rule, Triage, shown
from ml.distributions.families import PredictiveDistribution

#: Seconds for which a browser may keep an image: no longer than a lease, and until somebody signs out.
KEPT_SECONDS = 1800


def image_answer(context: Context, stored_sha256: str, *, kept: bool = True) -> Response:
    """The pixels of an image as PNG, without metadata.

    Args:
        context: parts of the service.
        stored_sha256: its name in the store.
        kept: whether a browser may keep it.
    """
    control = f"max-age={KEPT_SECONDS}, immutable" if kept else "no-store"
    headers = {"Cache-Control": f"private, {control}", "Content-Disposition": "inline"}
    return Response(context.images.get(stored_sha256), media_type="image/png", headers=headers)


@dataclass(frozen=True)
class Judging:
    """What all cases of one answer are judged by, resolved once.

    Attributes:
        rule: in force, with the threshold of the day.
        classes: codes of the classes of each release that predicted one of the cases.
        sets: thresholds of the releases that have some.
    """

    rule: Rule
    classes: dict[uuid.UUID, list[str]]
    sets: dict[uuid.UUID, PublishedSets]


@dataclass(frozen=True)
class Likeness:
    """How far one image is from those that a release was made from, as it is shown.

    Attributes:
        out_of_distribution: whether it is flagged.
        reasons: checks that it fails, the strangest first.
        distance: 1 where images are flagged; None where it is unknown.
        percentile: of the held-out images that are nearer; None where it is unknown.
    """

    out_of_distribution: bool
    reasons: list[str]
    distance: float | None
    percentile: float | None


def likeness_of(row: CasePrediction) -> Likeness:
    """Likeness of a stored prediction."""
    return Likeness(row.out_of_distribution, row.unlike_reasons or [], row.unlike_distance, row.unlike_percentile)


def judging_of(session: Session, predictions: Iterable[CasePrediction]) -> Judging:
    """What cases with these predictions are judged by."""
    release_ids = {prediction.release_id for prediction in predictions}
    return Judging(current_rule(session), class_codes_of(session, release_ids), published_sets(session, release_ids))


def prediction_out(
    distribution: PredictiveDistribution,
    release_id: uuid.UUID,
    classes: list[str],
    image_sha256: str,
    decision: Triage,
    likeness: Likeness,
    sets: PublishedSets | None,
    site: str | None = None,
) -> PredictionOut:
    """A prediction as the API shows it.

    Args:
        distribution: of one image.
        release_id: that predicted it.
        classes: K codes of the release.
        image_sha256: of the uploaded bytes.
        decision: of the rule.
        likeness: to the images of the release.
        sets: thresholds of the release, None without any.
        site: where the image came from.
    """
    summary = shown(distribution)
    intervals = None if likeness.out_of_distribution else summary.class_intervals
    return PredictionOut(
        release=str(release_id),
        classes=classes,
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=None if likeness.out_of_distribution else summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        disagreement_constant=summary.disagreement_constant,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        answer_set=answer_set(
            sets, Cell(distribution.class_probs, classes, site=site, unlike=likeness.out_of_distribution)
        ),
        triage=TriageOut(**vars(decision)),
        out_of_distribution=likeness.out_of_distribution,
        reasons=likeness.reasons,
        distance=likeness.distance,
        distance_percentile=likeness.percentile,
        image_sha256=image_sha256,
    )


def stored_prediction_out(
    case: Case, prediction: CasePrediction, judging: Judging, decision: Triage | None = None
) -> PredictionOut:
    """A stored prediction as the API shows it.

    Args:
        case: of the prediction.
        prediction: as stored.
        judging: rule and classes.
        decision: what the rule says, where that is known already.
    """
    distribution = stored_prediction(prediction)
    return prediction_out(
        distribution,
        prediction.release_id,
        judging.classes[prediction.release_id],
        case.image_sha256,
        decision or judge(case, prediction, distribution, judging.rule),
        likeness_of(prediction),
        judging.sets.get(prediction.release_id),
        case.site,
    )


def case_out(case: Case, prediction: PredictionOut | None, n_labels: int) -> CaseOut:
    """A case as the API shows it."""
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
        prediction=prediction,
        has_field=case.stored_field_sha256 is not None,
    )


def cases_out(session: Session, cases: list[Case]) -> list[CaseOut]:
    """Cases with the prediction that is shown of each, in their order."""
    ids = [case.id for case in cases]
    predictions, totals = queries.predictions_of(session, ids), queries.label_totals(session, ids)
    judging = judging_of(session, predictions.values())
    return [
        case_out(
            case,
            None if case.id not in predictions else stored_prediction_out(case, predictions[case.id], judging),
            totals.get(case.id, 0),
        )
        for case in cases
    ]


def show_case(session: Session, case_id: uuid.UUID) -> CaseOut:
    """One case with the prediction that is shown.

    Raises:
        NotFound: there is no such case.
    """
    return cases_out(session, [queries.case_by_id(session, case_id)])[0]
