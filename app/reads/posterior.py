"""The posterior of a case: always from the stored prior and everybody's last blind label, never from an earlier one."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy.orm import Session

from app.cases import provisional
from app.cases import queries as cases
from app.cases.queries import NamedLabel, blind_opinions
from app.platform.values import PosteriorOut
from app.predictions.stored import stored_prediction
from app.releases.queries import class_codes, existing_release
from app.tables import CasePrediction
from app.triage.queries import current_policy
from app.triage.rules import summarise
from ml.arrays import IntArray
from ml.distributions.families import PredictiveDistribution, has_concentration

#: Labels of an image unlike those of the release, from which on its posterior is shown in full.
SHOWN_FROM = 2


@dataclass(frozen=True)
class CasePosterior:
    """Posterior of one case.

    Attributes:
        release_id: whose prediction is the prior.
        classes: K class codes.
        label_counts: (1, K) blind opinions.
        distribution: after them; without a concentration it is unknown how much a label weighs, and it is the prior.
        withheld: whether the image is unlike those that the release was made from, and fewer than two labels say more.
    """

    release_id: uuid.UUID
    classes: list[str]
    label_counts: IntArray
    distribution: PredictiveDistribution
    withheld: bool = False

    @property
    def n_labels(self) -> int:
        """Number of labels that entered."""
        return int(self.label_counts.sum())


def posterior_of(
    prediction: CasePrediction, classes: list[str], labels: Sequence[NamedLabel], exclude_annotator: str | None = None
) -> CasePosterior:
    """Posterior of a case.

    Args:
        prediction: the prior.
        classes: K codes of its release.
        labels: blind opinions of the case, one per annotator.
        exclude_annotator: name of an annotator whose label is left out.
    """
    counts = np.zeros((1, len(classes)), dtype=np.int64)
    for row in labels:
        if row.annotator != exclude_annotator and row.label.class_code in classes:
            counts[0, classes.index(row.label.class_code)] += 1
    prior = stored_prediction(prediction)
    after = prior.posterior(counts) if has_concentration(prior) else prior
    withheld = prediction.out_of_distribution and int(counts.sum()) < SHOWN_FROM
    return CasePosterior(prediction.release_id, classes, counts, after, withheld)


def posterior_out(posterior: CasePosterior, target_error: float) -> PosteriorOut:
    """A posterior as the API shows it.

    Args:
        posterior: of one case.
        target_error: of the policy in force.
    """
    summary = summarise(posterior.distribution, target_error)
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
        n_labels=posterior.n_labels,
        label_counts=dict(zip(posterior.classes, posterior.label_counts[0].tolist(), strict=True)),
        majority_prob=None if withheld else summary.majority_prob,
        further_labels_expected=None if withheld else summary.further_labels_expected,
    )


def posterior(session: Session, case_id: uuid.UUID, exclude_annotator: str | None = None) -> PosteriorOut:
    """Posterior of a case as the API shows it, after its final labels.

    Raises:
        NotFound: no such case, or it has no prediction.
    """
    cases.case_by_id(session, case_id)
    prediction = cases.latest_prediction(session, case_id)
    classes = class_codes(existing_release(session, prediction.release_id))
    waiting = provisional.annotators_of_case(session, case_id)
    history = [row for row in cases.label_history(session, case_id) if row.label.annotator_id not in waiting]
    after = posterior_of(prediction, classes, blind_opinions(history), exclude_annotator)
    return posterior_out(after, current_policy(session).target_error)
