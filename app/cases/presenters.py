"""Responses that show a case or its image to one caller."""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO

from fastapi import Response
from PIL import Image
from sqlalchemy.orm import Session

from app.cases import queries
from app.cases.schemas import CaseOut, OutcomeOut
from app.context import ServiceContext
from app.database.tables import Case, CasePrediction
from app.http.models import ConsensusOut, PredictionOut, TriageOut
from app.predictions.service import (
    AnswerSetQuery,
    PublishedSets,
    build_answer_set,
    read_published_sets,
    stored_prediction,
)
from app.releases.service import class_codes_of
from app.triage.service import TriageResult, TriageRule, current_rule, summarise_prediction, triage_case
from ml.distributions.families import PredictiveDistribution

#: Seconds for which a browser may keep an image: no longer than a lease, and until somebody signs out.
KEPT_SECONDS = 1800
#: Pixels of the longer side of a small copy, for lists of many cells.
THUMBNAIL_SIZE = 160
#: Small copies that a process keeps, of a few kB each.
KEPT_THUMBNAILS = 4096


def image_response(context: ServiceContext, stored_sha256: str, *, kept: bool = True) -> Response:
    """The pixels of an image as PNG, without metadata."""
    control = f"max-age={KEPT_SECONDS}, immutable" if kept else "no-store"
    headers = {"Cache-Control": f"private, {control}", "Content-Disposition": "inline"}
    return Response(context.images.get(stored_sha256), media_type="image/png", headers=headers)


def thumbnail_response(context: ServiceContext, stored_sha256: str) -> Response:
    """A small copy of an image as WebP, which a browser may keep as long as the image."""
    headers = {"Cache-Control": f"private, max-age={KEPT_SECONDS}, immutable", "Content-Disposition": "inline"}
    return Response(_make_thumbnail(context.images.get, stored_sha256), media_type="image/webp", headers=headers)


@lru_cache(maxsize=KEPT_THUMBNAILS)
def _make_thumbnail(read_image: Callable[[str], bytes], stored_sha256: str) -> bytes:
    small = BytesIO()
    with Image.open(BytesIO(read_image(stored_sha256)), formats=["PNG"]) as image:
        image.thumbnail((THUMBNAIL_SIZE, THUMBNAIL_SIZE))
        image.convert("RGB").save(small, "WEBP", quality=75)
    return small.getvalue()


@dataclass(frozen=True)
class TriageContext:
    """Rule, classes and set thresholds of one response, loaded once."""

    # in force, with the threshold of the day
    rule: TriageRule
    # codes of the classes of each release that predicted one of the cases
    classes: dict[uuid.UUID, list[str]]
    # thresholds of the releases that have some
    sets: dict[uuid.UUID, PublishedSets]


@dataclass(frozen=True)
class OodAssessment:
    """Out-of-distribution assessment of an image against a release, for display."""

    # whether it is flagged; None if the release has no check
    out_of_distribution: bool | None
    # checks that it fails, the strangest first
    reasons: list[str]
    # 1 where images are flagged; None where it is unknown
    distance: float | None
    # of the held-out images that are nearer; None where it is unknown
    percentile: float | None


def stored_ood_assessment(row: CasePrediction) -> OodAssessment:
    """Likeness of a stored prediction."""
    return OodAssessment(row.out_of_distribution, row.unlike_reasons or [], row.unlike_distance, row.unlike_percentile)


def triage_context_of(session: Session, predictions: Iterable[CasePrediction]) -> TriageContext:
    """Load the triage context of these predictions."""
    release_ids = {prediction.release_id for prediction in predictions}
    return TriageContext(
        current_rule(session), class_codes_of(session, release_ids), read_published_sets(session, release_ids)
    )


def prediction_out(
    distribution: PredictiveDistribution,
    release_id: uuid.UUID,
    classes: list[str],
    image_sha256: str,
    decision: TriageResult,
    likeness: OodAssessment,
    sets: PublishedSets | None,
    site: str | None = None,
) -> PredictionOut:
    """A prediction as the API shows it."""
    summary, unlike = summarise_prediction(distribution), bool(likeness.out_of_distribution)
    intervals = None if unlike else summary.class_intervals
    return PredictionOut(
        release=str(release_id),
        classes=classes,
        class_probs=dict(zip(classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=None if unlike else summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        disagreement_constant=summary.disagreement_constant,
        class_intervals=None if intervals is None else dict(zip(classes, intervals, strict=True)),
        consensus=None if unlike else ConsensusOut.by_class(classes, summary.consensus),
        answer_set=build_answer_set(sets, AnswerSetQuery(distribution.class_probs, classes, site=site, unlike=unlike)),
        triage=TriageOut(**vars(decision)),
        out_of_distribution=likeness.out_of_distribution,
        reasons=likeness.reasons,
        distance=likeness.distance,
        distance_percentile=likeness.percentile,
        image_sha256=image_sha256,
    )


def stored_prediction_out(
    case: Case, prediction: CasePrediction, judging: TriageContext, decision: TriageResult | None = None
) -> PredictionOut:
    """A stored prediction as the API shows it."""
    distribution = stored_prediction(prediction)
    return prediction_out(
        distribution,
        prediction.release_id,
        judging.classes[prediction.release_id],
        case.image_sha256,
        decision or triage_case(case, prediction, distribution, judging.rule),
        stored_ood_assessment(prediction),
        judging.sets.get(prediction.release_id),
        case.site,
    )


def outcome_out(row: queries.NamedOutcome) -> OutcomeOut:
    """An outcome as the API shows it."""
    outcome = row.outcome
    return OutcomeOut(
        code=outcome.class_code,
        split=outcome.kind == "split",
        rule=outcome.rule,
        by=row.by,
        at=outcome.created_at,
        reason=row.reason,
    )


def outcome_columns(outcome: OutcomeOut | None) -> tuple[str, str]:
    """An outcome and who decided, as columns of a table."""
    if outcome is None:
        return "", ""
    return outcome.code or "split", outcome.by or "rule"


def case_out(
    case: Case,
    prediction: PredictionOut | None,
    n_labels: int,
    outcome: queries.NamedOutcome | None = None,
    in_specimen: dict[str, float] | None = None,
) -> CaseOut:
    """A case as the API shows it."""
    return CaseOut(
        id=str(case.id),
        external_id=case.external_id,
        patient=case.patient,
        site=case.site,
        specimen=None if case.specimen_id is None else str(case.specimen_id),
        metadata=case.case_metadata,
        width=case.width,
        height=case.height,
        partition=case.partition,
        same_image_as=None if case.same_image_as is None else str(case.same_image_as),
        created_at=case.created_at,
        n_labels=n_labels,
        prediction=prediction,
        has_field=case.stored_field_sha256 is not None,
        outcome=None if outcome is None else outcome_out(outcome),
        class_probs_in_specimen=in_specimen,
    )


def cases_out(session: Session, cases: list[Case]) -> list[CaseOut]:
    """Cases with the prediction that is shown of each, in their order."""
    ids = [case.id for case in cases]
    predictions, totals = queries.predictions_of(session, ids), queries.label_totals(session, ids)
    judging, outcomes = triage_context_of(session, predictions.values()), queries.read_outcomes(session, ids)
    in_specimen = queries.class_probs_in_specimens(session, cases)
    return [
        case_out(
            case,
            None if case.id not in predictions else stored_prediction_out(case, predictions[case.id], judging),
            totals.get(case.id, 0),
            outcomes.get(case.id),
            in_specimen.get(case.id),
        )
        for case in cases
    ]


def show_case(session: Session, case_id: uuid.UUID) -> CaseOut:
    """One case with the prediction that is shown."""
    return cases_out(session, [queries.case_by_id(session, case_id)])[0]
