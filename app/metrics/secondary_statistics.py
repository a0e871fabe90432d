"""Corrections, paired comparison, triage simulation and changes after the reveal; no evaluation uses them."""

import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import groupby
from statistics import median

import numpy as np
import numpy.typing as npt
from sqlalchemy import exists, select
from sqlalchemy.orm import Session, aliased

from app.cases.service import is_provisional
from app.context import ServiceContext
from app.database.tables import Annotator, CountedLabel
from app.http.models import MetricOut
from app.metrics.cohort import (
    Cohort,
    CohortQuery,
    build_cohort,
    count_excluded_cases,
    evaluate_cohort,
    exclude_training_cases,
    training_exclusion_out,
)
from app.metrics.dataset import EvaluationDataset
from app.metrics.schemas import AfterRevealOut, ComparedOut, ComparisonOut, CorrectionsOut, DesignOut, DirectionOut
from app.metrics.snapshot import load_current_dataset
from app.releases.service import class_codes, existing_release, served_release_id
from ml.messages import Message
from ml.metrics.cases import epistemic_terms, observed_disagreement, select_sample, statistic_terms
from ml.metrics.paired_difference import paired_changes
from ml.metrics.selection import (
    disagreements_caught,
    graded_probabilities,
    graded_scale,
    interval_length,
    threshold_probabilities,
)
from ml.util.arrays import FloatArray


def count_corrections(session: Session, case_ids: Collection[uuid.UUID]) -> CorrectionsOut:
    """Count class corrections among final planned answers by people with accounts."""
    final = ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id)
    wanted_ids, before = set(case_ids), aliased(CountedLabel)
    planned = (CountedLabel.kind == "label", CountedLabel.round == "planned", CountedLabel.blind.is_(True))
    first = (
        select(CountedLabel.case_id)
        .join(Annotator, Annotator.id == CountedLabel.annotator_id)
        .where(*planned, Annotator.account_id.is_not(None), final)
    )
    n_labels = sum(case_id in wanted_ids for case_id in session.execute(first).scalars())
    steps = (
        select(
            CountedLabel.case_id,
            CountedLabel.annotator_id,
            before.class_code,
            CountedLabel.class_code,
            before.created_at,
            CountedLabel.created_at,
        )
        .join(before, before.id == CountedLabel.supersedes_id)
        .where(CountedLabel.kind == "correction", CountedLabel.round == "planned", final)
    )
    rows = [row for row in session.execute(steps) if row[0] in wanted_ids and row[2] != row[3]]
    directions = Counter((row[2], row[3]) for row in rows)
    n_corrected = len({(row[0], row[1]) for row in rows})
    return CorrectionsOut(
        n_labels=n_labels,
        n_corrected=n_corrected,
        rate=n_corrected / n_labels if n_labels else None,
        median_seconds=median((row[5] - row[4]).total_seconds() for row in rows) if rows else None,
        directions=[
            DirectionOut(before=old, after=new, count=count)
            for (old, new), count in sorted(directions.items(), key=lambda item: (-item[1], item[0]))
        ],
    )


def compare_with_champion(
    session: Session,
    context: ServiceContext,
    release_id: uuid.UUID,
    question: CohortQuery,
    champion_id: uuid.UUID | None = None,
) -> ComparisonOut:
    """Compare a release with the champion, or one in its place, on cases of both that trained neither."""
    # Cases and weights are the champion's: whom to ask was its decision.
    champion_id, home = champion_id or served_release_id(session), context.settings.home
    other, champion = existing_release(session, release_id), existing_release(session, champion_id)
    classes = class_codes(other)
    columns = load_current_dataset(session, home, champion_id, classes)
    after = load_current_dataset(session, home, release_id, classes)
    row_of = {case_id.tobytes(): row for row, case_id in enumerate(after.case_id)}
    trained_on = columns.trained_on | _other_training_mask(columns, after, row_of)
    cohort = build_cohort(exclude_training_cases(columns, trained_on), question, context.clock().timestamp())
    rows = np.array([row_of.get(case_id.tobytes(), -1) for case_id in cohort.columns.case_id], dtype=np.intp)
    labelled = cohort.columns.n_labels > 0
    before = cohort.take(rows >= 0)
    predicted = after.take(rows[rows >= 0])
    judged = replace(before.columns, class_probs=predicted.class_probs, disagreement_probs=predicted.disagreement_probs)
    return ComparisonOut(
        champion=str(champion_id),
        release=str(release_id),
        partition=question.partition,
        weighting=question.weighting,
        n_cases=len(before.columns),
        n_labels=int(before.columns.n_labels.sum()),
        n_labelled=int((labelled & (rows >= 0)).sum()),
        n_labelled_not_predicted=int((labelled & (rows < 0)).sum()),
        trained_on=training_exclusion_out(
            count_excluded_cases(columns, question, trained_on), context.keys.training, champion.card, other.card
        ),
        metrics=_compare_metrics(before, replace(before, columns=judged)),
    )


def _other_training_mask(
    columns: EvaluationDataset, after: EvaluationDataset, row_of: Mapping[bytes, int]
) -> npt.NDArray[np.bool_]:
    if not after.trained_on.any():
        return np.zeros(len(columns), dtype=bool)
    rows = np.array([row_of.get(case_id.tobytes(), -1) for case_id in columns.case_id], dtype=np.intp)
    return np.asarray((rows >= 0) & after.trained_on[rows])


def _compare_metrics(before: Cohort, after: Cohort) -> dict[str, ComparedOut]:
    changes = paired_changes(
        before.counted(),
        (before.columns.class_probs, before.columns.disagreement_probs),
        (after.columns.class_probs, after.columns.disagreement_probs),
        first_label_counts=before.first_counts,
        readings=before.readings(),
        sample_weight=(before.weight, before.weight2),
        cluster=before.columns.cluster,
    )
    champion, release = (evaluate_cohort(cohort).metrics for cohort in (before, after))
    return {
        name: ComparedOut(
            champion=MetricOut.of(champion[name]), release=MetricOut.of(release[name]), change=MetricOut.of(change)
        )
        for name, change in changes.items()
    }


def simulate_designs(cohort: Cohort, floor: float) -> list[DesignOut]:
    """Simulate designs with the planned number of second reads; none before two annotators differed."""
    data, weight = cohort.columns, cohort.weight2
    if weight is None:
        return []
    sample = select_sample((data.n_labels >= 2) & (weight > 0), weight, data.cluster)
    counts, dpe = data.label_counts[sample.rows], data.disagreement_probs[sample.rows]
    observed = observed_disagreement(counts)
    if not observed.any():
        return []
    losses = {
        "EL": epistemic_terms(counts, data.class_probs[sample.rows])[:, 1],
        "L_D": statistic_terms(observed, dpe),
    }
    return [
        DesignOut(
            design=name,
            share=float(pi.mean()),
            catch=disagreements_caught(pi[sample.rows], observed, sample),
            # the estimated variance of few patients can be below zero
            width={k: interval_length(pi[sample.rows], terms, sample, len(pi)) or None for k, terms in losses.items()},
        )
        for name, pi in _design_probabilities(data.pi, data.disagreement_probs, floor).items()
    ]


def _design_probabilities(planned: FloatArray, dpe: FloatArray, floor: float) -> Mapping[str, FloatArray]:
    share = float(np.clip(planned.mean(), floor, 1.0))
    return {
        Message("as planned so far"): planned,
        Message("highest disagreement, {floor:.0%} of the others", floor=floor): threshold_probabilities(
            dpe, share, floor
        ),
        Message("graded with disagreement, at least {floor:.0%}", floor=floor): graded_probabilities(
            dpe, graded_scale(dpe, share, floor), floor
        ),
        Message("at random"): np.full(len(dpe), share),
    }


def count_post_reveal_changes(session: Session, columns: EvaluationDataset) -> AfterRevealOut:
    """Count revisions and retractions of blind planned labels made after the reveal."""
    row_of = {case_id: row for row, case_id in enumerate(columns.ids())}
    exposed_label = aliased(CountedLabel)
    has_exposed_label = exists().where(
        exposed_label.case_id == CountedLabel.case_id,
        exposed_label.annotator_id == CountedLabel.annotator_id,
        exposed_label.post_reveal.is_(True),
    )
    chains = (
        select(
            CountedLabel.case_id,
            CountedLabel.annotator_id,
            CountedLabel.kind,
            CountedLabel.class_code,
            CountedLabel.blind,
            CountedLabel.post_reveal,
        )
        .where(
            CountedLabel.round == "planned",
            has_exposed_label,
            ~is_provisional(CountedLabel.case_id, CountedLabel.annotator_id),
        )
        .order_by(CountedLabel.case_id, CountedLabel.annotator_id, CountedLabel.position)
    )
    revised = retracted = towards = away = 0
    for (case_id, _), rows in groupby(session.execute(chains), key=lambda row: (row.case_id, row.annotator_id)):
        chain = list(rows)
        before = [row.class_code for row in chain if row.blind and row.kind != "retraction"]
        if case_id not in row_of or not before or not chain[-1].post_reveal:
            continue
        leading, after = columns.classes[int(np.argmax(columns.class_probs[row_of[case_id]]))], chain[-1].class_code
        retracted += after is None
        revised += after is not None
        towards += before[-1] != leading and after in {None, leading}
        away += before[-1] == leading and after != leading
    return AfterRevealOut(
        n_labels=int(columns.n_labels.sum()),
        n_revised=revised,
        n_retracted=retracted,
        towards_prediction=towards,
        away_from_prediction=away,
    )
