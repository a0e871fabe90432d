"""Posterior of a case, from the stored prior and each annotator's last blind label."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.annotators.models.service import get_model_switch, model_of
from app.cases import service as cases
from app.cases.service import NamedLabel, blind_opinions, provisional_annotator_ids
from app.database.tables import Case, CasePrediction, ReaderModelInUse
from app.http.models import AnswerSetOut, PosteriorOut
from app.labels.annotator_weights import weighted_posterior
from app.labels.queries import own_mass
from app.predictions.service import AnswerSetQuery, build_answer_set, current_published_sets, stored_prediction
from app.releases.service import class_codes, existing_release
from app.triage.service import current_policy, summarise_posterior
from ml.distributions.families import PredictiveDistribution, has_concentration
from ml.util.arrays import IntArray

#: Labels of an image unlike those of the release, from which on its posterior is shown in full.
SHOWN_FROM = 2


@dataclass(frozen=True)
class CasePosterior:
    """Posterior of one case."""

    # whose prediction is the prior
    release_id: uuid.UUID
    classes: list[str]
    # (1, K) blind opinions
    label_counts: IntArray
    # after them; without a concentration it is unknown how much a label weighs, and it is the prior
    distribution: PredictiveDistribution
    # whether the image is unlike those that the release was made from, and fewer than two labels say more
    withheld: bool
    # version of the model by which labels are weighed by who gave them; None: annotators are alike
    reader_model: int | None
    # the distribution that takes annotators as alike; what is calibrated on that reads it
    alike: PredictiveDistribution

    @property
    def n_labels(self) -> int:
        """Number of labels that entered."""
        return int(self.label_counts.sum())


def posterior_of(
    session: Session,
    prediction: CasePrediction,
    classes: list[str],
    labels: Sequence[NamedLabel],
    exclude_annotator: str | None = None,
    *,
    in_use: ReaderModelInUse | None,
    by_name: bool = True,
) -> CasePosterior:
    """Posterior of a case."""
    counted = [row for row in labels if row.annotator != exclude_annotator and row.label.class_code in classes]
    counts = np.zeros((1, len(classes)), dtype=np.int64)
    for row in counted:
        counts[0, classes.index(str(row.label.class_code))] += 1
    prior = stored_prediction(prediction)
    learns = has_concentration(prior)
    alike = prior.posterior(counts) if learns else prior
    model = model_of(session, in_use, prediction.release_id) if by_name and learns else None
    named = None if model is None else weighted_posterior(model, prior, classes, counted)
    withheld = prediction.out_of_distribution and int(counts.sum()) < SHOWN_FROM
    after, version = (alike, None) if named is None else (named.distribution, named.version)
    return CasePosterior(prediction.release_id, classes, counts, after, withheld, version, alike)


def next_answer_set(session: Session, case: Case, posterior: CasePosterior) -> AnswerSetOut:
    """Classes among which the next annotator's answer lies, after no label or one, with annotators taken as alike."""
    published = current_published_sets(session, posterior.release_id)
    once = posterior.n_labels == 1 and published is not None and published.reason is None
    cell = AnswerSetQuery(
        posterior.alike.class_probs,
        posterior.classes,
        posterior.n_labels,
        case.site,
        posterior.withheld,
        own_mass(session, case) if once else 1.0,
    )
    return build_answer_set(published, cell)


def posterior_out(
    posterior: CasePosterior, target_error: float, answer_set: AnswerSetOut | None = None
) -> PosteriorOut:
    """A posterior as the API shows it."""
    summary = summarise_posterior(posterior.distribution, target_error)
    withheld = posterior.withheld
    intervals = None if withheld else summary.class_intervals
    return PosteriorOut(
        release=str(posterior.release_id),
        class_probs=dict(zip(posterior.classes, summary.class_probs, strict=True)),
        log_concentration=summary.log_concentration,
        disagreement_prob=None if withheld else summary.disagreement_prob,
        disagreement_calibrated=summary.disagreement_calibrated,
        disagreement_constant=summary.disagreement_constant,
        class_intervals=None if intervals is None else dict(zip(posterior.classes, intervals, strict=True)),
        answer_set=answer_set,
        n_labels=posterior.n_labels,
        label_counts=dict(zip(posterior.classes, posterior.label_counts[0].tolist(), strict=True)),
        majority_prob=None if withheld else summary.majority_prob,
        further_labels_expected=None if withheld else summary.further_labels_expected,
        reader_model=posterior.reader_model,
    )


def show_case_posterior(
    session: Session, case_id: uuid.UUID, exclude_annotator: str | None = None, *, by_name: bool = True
) -> PosteriorOut:
    """Posterior of a case as the API shows it, after its final labels."""
    case = cases.case_by_id(session, case_id)
    prediction = cases.latest_prediction(session, case_id)
    classes = class_codes(existing_release(session, prediction.release_id))
    waiting = provisional_annotator_ids(session, case_id)
    history = [row for row in cases.label_history(session, case_id) if row.label.annotator_id not in waiting]
    opinions = blind_opinions(history)
    chosen = get_model_switch(session)
    after = posterior_of(session, prediction, classes, opinions, exclude_annotator, in_use=chosen, by_name=by_name)
    sets = next_answer_set(session, case, after) if exclude_annotator is None else None
    return posterior_out(after, current_policy(session).target_error, sets)
