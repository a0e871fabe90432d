"""Whom to ask next: pure rules on a predictive distribution.

The number of planned reads of a case follows from its image and its prediction only, never from a label. Most rules
select it for a second read, and of those that they do not select a share ε, the audit rate, is read twice as well; the
graded rule gives each case a probability that grows with its disagreement probability. So every case has a known
probability π > 0 of two planned reads, and what is measured on cases read twice can be weighted back to all cases.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ml.distributions.decisions import class_intervals, expected_gain, further_labels_expected, majority_prob
from ml.distributions.families import DirichletCpe, PredictiveDistribution, has_concentration
from ml.messages import Message, messages
from ml.metrics.selection_designs import graded_probabilities, graded_scale
from ml.util.arrays import FloatArray

Decision = Literal["single_read", "second_read"]
Score = Literal["disagreement", "expected_gain", "graded"]
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


@dataclass(frozen=True)
class Rule:
    """What decides about reads, with every number resolved.

    Attributes:
        score: what is compared with the threshold; graded: what the probability of a second read grows with.
        threshold: score above which a second read is asked; infinite: of no case. Of the graded rule the scale c of
            π = c √φ; infinite: not known yet.
        audit_rate: ε, probability of a second read of a case that is not selected; the least π of the graded rule.
        target_error: expected squared error of the class probabilities at which labels are enough.
        adjudicate_below: probability that the leading class is the majority, below which another annotator is
            asked once the planned reads are in; None for never.
        max_labels: labels of one case at which nobody else is asked.
    """

    score: Score
    threshold: float
    audit_rate: float
    target_error: float
    adjudicate_below: float | None
    max_labels: int


@dataclass(frozen=True)
class Triage:
    """Decision for one case.

    Attributes:
        decision: whether the rule selects the case for a second read.
        priority: disagreement probability as a share of the largest possible one, 1 − 1/K.
        expected_gain: fall of the expected squared error by one more label; None without a concentration.
        reason: in words.
        pi: probability of a second read by this decision.
    """

    decision: Decision
    priority: float
    expected_gain: float | None
    reason: str
    pi: float


def triage(
    distribution: PredictiveDistribution,
    rule: Rule,
    *,
    out_of_distribution: bool = False,
    near_duplicate: bool = False,
) -> Triage:
    """Decide about the single case of a distribution.

    Args:
        distribution: prediction of one case.
        rule: resolved policy.
        out_of_distribution: the image is far from the training cells; it is always selected.
        near_duplicate: a near-duplicate of the same patient was selected before; it is not selected again.
    """
    disagreement = float(distribution.disagreement_probs[0])
    calibrated = has_concentration(distribution)
    gain = float(expected_gain(distribution)[0]) if calibrated else None
    priority = min(1.0, disagreement / (1 - 1 / distribution.class_probs.shape[1]))
    pi, reason = _judge(rule, disagreement, gain)
    if out_of_distribution:  # what the network says of such a cell is no ground for a priority or a gain
        pi, reason, priority, gain = 1.0, Message("unlike the cells that the network was trained on"), 1.0, None
    elif pi > rule.audit_rate and near_duplicate:
        pi, reason = rule.audit_rate, Message("near-duplicate of a cell of this patient that is read twice")
    return Triage("second_read" if pi >= 1 else "single_read", priority, gain, reason, pi)


def _judge(rule: Rule, disagreement: float, gain: float | None) -> tuple[float, str]:
    """Probability of a second read, and why in words."""
    if rule.score == "graded":
        return _graded(rule, disagreement)
    by_gain = rule.score == "expected_gain" and gain is not None
    value = gain if by_gain and gain is not None else disagreement
    name, digits = (Message("expected gain"), 4) if by_gain else ("disagreement", 2)
    note = "" if gain is not None else Message(" (not calibrated)")
    if math.isinf(rule.threshold):
        return rule.audit_rate, Message(
            "no threshold for {name} yet: too few earlier cases{note}", name=name, note=note
        )
    selected = value > rule.threshold
    reason = Message(_REASONS[by_gain, selected, gain is not None], threshold=f"{rule.threshold:.{digits}f}")
    return 1.0 if selected else rule.audit_rate, reason


def _graded(rule: Rule, disagreement: float) -> tuple[float, str]:
    """Probability of a second read by the graded rule, and why in words."""
    if math.isinf(rule.threshold):
        return rule.audit_rate, Message("no scale for disagreement yet: too few earlier cases")
    pi = float(graded_probabilities(np.array([disagreement]), rule.threshold, rule.audit_rate)[0])
    return pi, Message(
        "disagreement {disagreement:.2f}: read twice with a probability of {pi:.2f}", disagreement=disagreement, pi=pi
    )


@dataclass(frozen=True)
class Plan:
    """How often a case is to be read.

    Attributes:
        pi: probability of a second planned read, the largest over all looks.
        arm: why, if it is read twice; None for one planned read.
    """

    pi: float
    arm: Arm | None


def plan(u: float, selected: bool, audit_rate: float, earlier_pi: float = 0.0) -> Plan:
    """Plan the reads of a case by the coin that was tossed when it came.

    The coin u ~ U(0, 1) is tossed once. A later look with another policy or release uses the same u, and π is the
    largest of all looks, so that P(second planned read) = π whatever the order of looks.

    Args:
        u: of the case, in [0, 1).
        selected: whether this look's rule selects the case.
        audit_rate: ε of this look.
        earlier_pi: π before this look, 0 for none.
    """
    pi = max(earlier_pi, 1.0 if selected else audit_rate)
    return Plan(pi, None if u >= pi else "triage" if pi >= 1 else "audit")


def capacity_threshold(scores: FloatArray, capacity_per_day: float, days: float, audit_rate: float) -> float:
    """Score above which a rule by capacity selects, from the scores of earlier days.

    With capacity c per day and n cases per day a share s of the cases is selected so that s + ε (1 − s) = c / n; the
    threshold is the (1 − s) quantile. Today's queue never enters.

    Args:
        scores: (N,) of the cases of earlier days.
        capacity_per_day: second reads per day, audit reads included.
        days: number of those days.
        audit_rate: ε.

    Returns:
        The threshold; infinite without earlier cases or where audit reads alone fill the capacity.
    """
    if scores.size == 0:
        return math.inf
    share = (capacity_per_day * days / scores.size - audit_rate) / (1 - audit_rate) if audit_rate < 1 else 0.0
    if share <= 0:
        return math.inf
    return float(np.quantile(scores, 1 - share)) if share < 1 else 0.0


def capacity_scale(scores: FloatArray, capacity_per_day: float, days: float, audit_rate: float) -> float:
    """Scale c of the graded rule π = clip(c √φ, π_min, 1), from the disagreement probabilities of earlier days.

    With capacity c per day and n cases per day the mean of π over those cases is c / n. Today's queue never enters.

    Args:
        scores: (N,) of the cases of earlier days.
        capacity_per_day: second reads per day.
        days: number of those days.
        audit_rate: π_min.

    Returns:
        The scale; infinite without earlier cases, where every case has π_min.
    """
    return graded_scale(scores, capacity_per_day * days / scores.size, audit_rate) if scores.size else math.inf


def another_annotator(posterior: PredictiveDistribution, n_labels: int, rule: Rule) -> bool:
    """Whether the labels so far call for an adjudication; never changes the number of planned reads.

    Args:
        posterior: of one case, after all its blind labels.
        n_labels: how many there are.
        rule: resolved policy.
    """
    if rule.adjudicate_below is None or not 2 <= n_labels < rule.max_labels or not has_concentration(posterior):
        return False
    if not float(further_labels_expected(posterior, rule.target_error)[0]) > 0:
        return False
    return float(majority_prob(posterior)[0]) < rule.adjudicate_below  # an integral: asked last


@dataclass(frozen=True)
class Shown:
    """What is shown of the prediction of one case; None where there is no concentration.

    Attributes:
        class_probs: (K,).
        log_concentration: a; None for an ensemble, whose members have one each.
        disagreement_prob: φ.
        disagreement_calibrated: whether a concentration was learned.
        disagreement_constant: whether φ is one number for every case without labels.
        class_intervals: (K, 2), 95 %.
    """

    class_probs: list[float]
    log_concentration: float | None
    disagreement_prob: float
    disagreement_calibrated: bool
    disagreement_constant: bool
    class_intervals: list[tuple[float, float]] | None


@dataclass(frozen=True)
class Summary(Shown):
    """What is reported of the distribution of one case after its labels.

    Attributes:
        majority_prob: probability that the leading class has the largest true probability.
        further_labels_expected: labels still needed for the policy's target error.
    """

    majority_prob: float | None
    further_labels_expected: int | None


def shown(distribution: PredictiveDistribution) -> Shown:
    """What is shown of the prediction of a single case."""
    probs = [float(p) for p in distribution.class_probs[0]]
    disagreement, stated = float(distribution.disagreement_probs[0]), distribution.stated_disagreement
    constant = stated is not None and not np.isnan(stated[0])
    if not has_concentration(distribution):
        return Shown(probs, None, disagreement, False, constant, None)
    intervals = [(float(low), float(high)) for low, high in class_intervals(distribution)[0]]
    a = float(distribution.log_concentration[0]) if isinstance(distribution, DirichletCpe) else None
    return Shown(probs, a, disagreement, True, constant, intervals)


def summarise(distribution: PredictiveDistribution, target_error: float) -> Summary:
    """Summarise the single case of a distribution."""
    of_prediction = vars(shown(distribution))
    if not has_concentration(distribution):
        return Summary(**of_prediction, majority_prob=None, further_labels_expected=None)
    # counts beyond the range of a database integer mean "more than anybody will give"
    needed = int(np.minimum(further_labels_expected(distribution, target_error)[0], 2**31 - 1))
    majority = float(majority_prob(distribution)[0])
    return Summary(**of_prediction, majority_prob=majority, further_labels_expected=needed)
