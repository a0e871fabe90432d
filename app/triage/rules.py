"""Triage rules: pure functions of a predictive distribution."""

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from ml.distributions.decisions import (
    class_intervals,
    consensus_probs,
    expected_gain,
    further_labels_expected,
    majority_prob,
)
from ml.distributions.families import DirichletCpe, PredictiveDistribution, has_concentration
from ml.messages import Message, Number, Share, messages
from ml.metrics.selection import graded_probabilities, graded_scale
from ml.util.arrays import FloatArray

Decision = Literal["single_read", "second_read"]
Score = Literal["disagreement", "expected_gain", "graded", "specimen_value"]
Arm = Literal["triage", "audit"]

#: Bits in which the perceptual hashes of near-duplicates differ at most.
NEAR_DUPLICATE_BITS = 4
#: Why a threshold selects a case or not: by expected gain, selected, calibrated.
_REASONS = messages(
    {
        (True, True, True): "expected gain above {threshold}",
        (True, True, False): "expected gain above {threshold} (not calibrated)",
        (True, False, True): "expected gain at most {threshold}",
        (True, False, False): "expected gain at most {threshold} (not calibrated)",
        (False, True, True): "disagreement above {threshold}",
        (False, True, False): "disagreement above {threshold} (not calibrated)",
        (False, False, True): "disagreement at most {threshold}",
        (False, False, False): "disagreement at most {threshold} (not calibrated)",
    }
)

_CHOSEN = Message("chosen among the cells of its specimen")
_NOT_CHOSEN = Message("not chosen among the cells of its specimen")
_UNLIKE = Message("out of distribution")
_UNCHECKED = Message("not checked for being out of distribution")


@dataclass(frozen=True)
class TriageRule:
    """Triage rule with every number resolved."""

    # what is compared with the threshold; graded: what the probability of a second read grows with
    score: Score
    # score above which a second read is asked; of the rule by specimen value infinite, since what it selects is chosen
    # among all cells of a specimen; infinite: of no case. Of the graded rule the scale c of π = c √φ;
    # infinite: not known yet
    threshold: float
    # ε, probability of a second read of a case that is not selected; the least π of the graded rule
    audit_rate: float
    # expected squared error of the class probabilities at which labels are enough
    target_error: float
    # probability that the leading class is the majority, below which another annotator is asked once the planned reads
    # are in; None for never
    adjudicate_below: float | None
    # labels of one case at which nobody else is asked
    max_labels: int
    # π of a case whose score is the threshold, if above the audit rate: a rule by capacity cannot take them all
    at_threshold: float = 0.0

    def probabilities(self, score: FloatArray) -> FloatArray:
        """π (N,) of scores that are compared with the threshold."""
        at = np.where(score == self.threshold, max(self.at_threshold, self.audit_rate), self.audit_rate)
        return np.where(score > self.threshold, 1.0, at)


@dataclass(frozen=True)
class TriageResult:
    """Decision for one case."""

    # whether the rule selects the case for a second read
    decision: Decision
    # disagreement probability as a share of the largest possible one, 1 − 1/K
    priority: float
    # fall of the expected squared error by one more label; None without a concentration
    expected_gain: float | None
    reason: str
    # probability of a second read by this decision
    pi: float


def decide_triage(
    distribution: PredictiveDistribution,
    rule: TriageRule,
    *,
    out_of_distribution: bool | None = False,
    near_duplicate: bool = False,
    chosen: bool = False,
) -> TriageResult:
    """Decide about the single case of a distribution; an image that nothing checked counts as unlike.

    ``chosen``: the rule by specimen value has chosen it among the cells of its specimen.
    """
    disagreement = float(distribution.disagreement_probs[0])
    calibrated = has_concentration(distribution)
    gain = float(expected_gain(distribution)[0]) if calibrated else None
    priority = min(1.0, disagreement / (1 - 1 / distribution.class_probs.shape[1]))
    pi, reason = _second_read_probability(rule, disagreement, gain, chosen)
    if out_of_distribution is not False:  # what the network says of such a cell is no ground for a priority or a gain
        pi, reason, priority, gain = 1.0, _UNLIKE if out_of_distribution else _UNCHECKED, 1.0, None
    elif pi > rule.audit_rate and near_duplicate:
        pi, reason = rule.audit_rate, Message("near-duplicate of a cell of this patient with a second read")
    return TriageResult("second_read" if pi >= 1 else "single_read", priority, gain, reason, pi)


def _second_read_probability(
    rule: TriageRule, disagreement: float, gain: float | None, chosen: bool
) -> tuple[float, str]:
    if rule.score == "specimen_value":
        return (1.0, _CHOSEN) if chosen else (rule.audit_rate, _NOT_CHOSEN)
    if rule.score == "graded":
        return _graded_read_probability(rule, disagreement)
    by_gain = rule.score == "expected_gain" and gain is not None
    value = gain if by_gain and gain is not None else disagreement
    name = Message("expected gain") if by_gain else Message("disagreement")
    note = "" if gain is not None else Message(" (not calibrated)")
    if math.isinf(rule.threshold):
        return rule.audit_rate, Message(
            "no threshold for {name} yet: too few earlier cells{note}", name=name, note=note
        )
    pi, selected = float(rule.probabilities(np.array(value))), value > rule.threshold
    if not selected and pi > rule.audit_rate:
        return pi, _drawn(disagreement, pi)
    threshold = Number(f"{rule.threshold:.4f}") if by_gain else Share(f"{rule.threshold:.2f}")
    reason = Message(_REASONS[by_gain, selected, gain is not None], threshold=threshold)
    return pi, reason


def _graded_read_probability(rule: TriageRule, disagreement: float) -> tuple[float, str]:
    if math.isinf(rule.threshold):
        return rule.audit_rate, Message("no scale for disagreement yet: too few earlier cells")
    pi = float(graded_probabilities(np.array([disagreement]), rule.threshold, rule.audit_rate)[0])
    return pi, _drawn(disagreement, pi)


def _drawn(disagreement: float, pi: float) -> Message:
    return Message(
        "disagreement {disagreement}: read twice with a probability of {pi}",
        disagreement=Share(f"{disagreement:.2f}"),
        pi=Share(f"{pi:.2f}"),
    )


def second_read_probabilities(
    rule: TriageRule,
    disagreement: FloatArray,
    gain: FloatArray,
    unlike: npt.NDArray[np.bool_],
    near_duplicate: npt.NDArray[np.bool_],
) -> FloatArray:
    """π (N,) by ``decide_triage`` of many cases; NaN is no gain, and what nothing checked is unlike.

    None is chosen among the cells of its specimen: that choice is in the stored π of a case.
    """
    if rule.score == "graded" and not math.isinf(rule.threshold):
        pi = graded_probabilities(disagreement, rule.threshold, rule.audit_rate)
    else:
        value = np.where(np.isnan(gain), disagreement, gain) if rule.score == "expected_gain" else disagreement
        pi = rule.probabilities(value)
    return np.where(unlike, 1.0, np.where(near_duplicate, np.minimum(pi, rule.audit_rate), pi))


@dataclass(frozen=True)
class ReadPlan:
    """Read plan of a case."""

    # probability of a second planned read, the largest over all looks
    pi: float
    # why, if it is read twice; None for one planned read
    arm: Arm | None


def plan_reads(u: float, selected: bool, audit_rate: float, earlier_pi: float = 0.0) -> ReadPlan:
    """Plan the reads of a case by the coin that was tossed when it came."""
    # The coin u ~ U(0, 1) is tossed once. A later look with another policy or release uses the same u, and π is the
    # largest of all looks, so that P(second planned read) = π whatever the order of looks.
    pi = max(earlier_pi, 1.0 if selected else audit_rate)
    return ReadPlan(pi, None if u >= pi else "triage" if pi >= 1 else "audit")


def capacity_threshold(scores: FloatArray, capacity_per_day: float, days: float, audit_rate: float) -> float:
    """Score above which a rule by capacity selects, from the scores of earlier days."""
    # With capacity c per day and n cases per day a share s of the cases is selected so that s + ε (1 − s) = c / n; the
    # threshold is the (1 − s) quantile. Today's queue never enters.
    if scores.size == 0:
        return math.inf
    share = (capacity_per_day * days / scores.size - audit_rate) / (1 - audit_rate) if audit_rate < 1 else 0.0
    if share <= 0:
        return 1.0
    return float(np.quantile(scores, 1 - share)) if share < 1 else 0.0


def capacity_at_threshold(scores: FloatArray, threshold: float, n_reads: float, audit_rate: float) -> float:
    """π of a case whose score is the threshold: where many have it, they share the reads that the others leave over."""
    above, at = int((scores > threshold).sum()), int((scores == threshold).sum())
    left = n_reads - above - audit_rate * (scores.size - above - at)
    return float(np.clip(left / at, audit_rate, 1.0)) if at else audit_rate


def capacity_scale(scores: FloatArray, capacity_per_day: float, days: float, audit_rate: float) -> float:
    """Scale c of the graded rule π = clip(c √φ, π_min, 1), from the disagreement probabilities of earlier days."""
    # With capacity c per day and n cases per day the mean of π over those cases is c / n. Today's queue never enters.
    return graded_scale(scores, capacity_per_day * days / scores.size, audit_rate) if scores.size else math.inf


class AdjudicationRule(Protocol):
    """What a rule, or a stored policy, sets for adjudications."""

    @property
    def adjudicate_below(self) -> float | None:
        """Majority probability below which labels leave a case undecided; None: never."""

    @property
    def max_labels(self) -> int:
        """Number of labels at which no further label is requested."""

    @property
    def target_error(self) -> float:
        """Expected squared error at which the labels are enough."""


def needs_adjudication(posterior: PredictiveDistribution, n_labels: int, rule: AdjudicationRule) -> bool:
    """Whether the labels so far call for an adjudication; never changes the number of planned reads."""
    if rule.adjudicate_below is None or not 2 <= n_labels < rule.max_labels or not has_concentration(posterior):
        return False
    if not float(further_labels_expected(posterior, rule.target_error)[0]) > 0:
        return False
    return float(majority_prob(posterior)[0]) < rule.adjudicate_below  # an integral: asked last


@dataclass(frozen=True)
class PredictionSummary:
    """Summary of the prediction of one case; None where there is no concentration."""

    class_probs: list[float]
    # a; None for an ensemble, whose members have one each
    log_concentration: float | None
    disagreement_prob: float
    # whether a concentration was learned
    disagreement_calibrated: bool
    # whether φ is one number for every case without labels
    disagreement_constant: bool
    # (K, 2), 95 %
    class_intervals: list[tuple[float, float]] | None
    # probabilities (K,) that at least four of five further annotators name each class, and that both of two do
    consensus: tuple[list[float], list[float]] | None


@dataclass(frozen=True)
class PosteriorSummary(PredictionSummary):
    """Summary of the distribution of one case after its labels."""

    # probability that the leading class has the largest true probability
    majority_prob: float | None
    # labels still needed for the policy's target error
    further_labels_expected: int | None


def summarise_prediction(distribution: PredictiveDistribution) -> PredictionSummary:
    """Summarise the prediction of a single case."""
    probs = [float(p) for p in distribution.class_probs[0]]
    disagreement, stated = float(distribution.disagreement_probs[0]), distribution.stated_disagreement
    constant = stated is not None and not np.isnan(stated[0])
    if not has_concentration(distribution):
        return PredictionSummary(probs, None, disagreement, False, constant, None, None)
    intervals = [(float(low), float(high)) for low, high in class_intervals(distribution)[0]]
    a = float(distribution.log_concentration[0]) if isinstance(distribution, DirichletCpe) else None
    four_of_five, both = (consensus_probs(distribution, of)[0].tolist() for of in (5, 2))
    return PredictionSummary(probs, a, disagreement, True, constant, intervals, (four_of_five, both))


def summarise_posterior(distribution: PredictiveDistribution, target_error: float) -> PosteriorSummary:
    """Summarise the posterior of a single case."""
    of_prediction = vars(summarise_prediction(distribution))
    if not has_concentration(distribution):
        return PosteriorSummary(**of_prediction, majority_prob=None, further_labels_expected=None)
    # counts beyond the range of a database integer mean "more than anybody will give"
    needed = int(np.minimum(further_labels_expected(distribution, target_error)[0], 2**31 - 1))
    majority = float(majority_prob(distribution)[0])
    return PosteriorSummary(**of_prediction, majority_prob=majority, further_labels_expected=needed)
