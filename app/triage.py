"""Whom to ask next: pure rules on a predictive distribution."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml.decisions import class_intervals, expected_gain, further_labels_expected, majority_prob
from ml.distributions import DirichletCpe, PredictiveDistribution, has_concentration

Decision = Literal["single_read", "second_read"]


@dataclass(frozen=True)
class Policy:
    """What decides about second reads.

    Attributes:
        disagreement_threshold: P(two annotators differ) above which a second read is asked.
        target_error: expected squared error of the class probabilities at which labels are enough.
    """

    disagreement_threshold: float
    target_error: float


@dataclass(frozen=True)
class Triage:
    """Decision for one case.

    Attributes:
        decision: whether a second read is asked.
        priority: disagreement probability as a share of the largest possible one, 1 − 1/K.
        expected_gain: fall of the expected squared error by one more label; None without a concentration.
        reason: in words.
    """

    decision: Decision
    priority: float
    expected_gain: float | None
    reason: str


def triage(distribution: PredictiveDistribution, policy: Policy) -> Triage:
    """Decide about the single case of a distribution."""
    disagreement = float(distribution.disagreement_probs[0])
    n_classes = distribution.class_probs.shape[1]
    asked = disagreement > policy.disagreement_threshold
    calibrated = has_concentration(distribution)
    where = "above" if asked else "at most"
    reason = f"disagreement {where} {policy.disagreement_threshold:.2f}" + ("" if calibrated else " (not calibrated)")
    return Triage(
        "second_read" if asked else "single_read",
        min(1.0, disagreement / (1 - 1 / n_classes)),
        float(expected_gain(distribution)[0]) if calibrated else None,
        reason,
    )


@dataclass(frozen=True)
class Summary:
    """What is told of the distribution of one case; None where there is no concentration.

    Attributes:
        class_probs: (K,).
        log_concentration: a; None for an ensemble, whose members have one each.
        disagreement_prob: φ.
        disagreement_calibrated: whether a concentration was learned.
        class_intervals: (K, 2), 95 %.
        majority_prob: probability that the leading class has the largest true probability.
        further_labels_expected: labels still needed for the policy's target error.
    """

    class_probs: list[float]
    log_concentration: float | None
    disagreement_prob: float
    disagreement_calibrated: bool
    class_intervals: list[tuple[float, float]] | None
    majority_prob: float | None
    further_labels_expected: int | None


def summarise(distribution: PredictiveDistribution, target_error: float) -> Summary:
    """Summarise the single case of a distribution."""
    probs = [float(p) for p in distribution.class_probs[0]]
    disagreement = float(distribution.disagreement_probs[0])
    if not has_concentration(distribution):
        return Summary(probs, None, disagreement, False, None, None, None)
    intervals = [(float(low), float(high)) for low, high in class_intervals(distribution)[0]]
    # counts beyond what a database integer holds mean "more than anybody will give"
    needed = int(np.minimum(further_labels_expected(distribution, target_error)[0], 2**31 - 1))
    majority = float(majority_prob(distribution)[0])
    a = float(distribution.log_concentration[0]) if isinstance(distribution, DirichletCpe) else None
    return Summary(probs, a, disagreement, True, intervals, majority, needed)
