"""Decision of the gate: overall, per class, and with each annotator left out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from app.recalibration.preconditions import describe_required_cases
from ml.messages import Message, Number, joined, listed, messages
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.metrics.paired_difference import (
    Change,
    describe_regression,
    describe_regressions,
    is_estimated,
    losses_of,
    shifts_of,
)
from ml.util import number_format

#: Probability that a candidate of annotators who are alike is refused because it seems to lean on one of them.
FALSE_REFUSALS = 0.025


@dataclass(frozen=True)
class AnnotatorStability:
    """The judgement by all labels, with which the one without each annotator is compared."""

    # change from champion to candidate by all labels
    whole: Change
    # (N,) patients of the cases
    cluster: npt.NDArray[np.int64]
    # who are left out in turn
    n_annotators: int

    @property
    def limit(self) -> float:
        """Standard errors that a change may be worse without one annotator."""
        # Two would refuse every fifth to third good candidate of five annotators, since each of them is tried twice.
        return -float(ndtri(FALSE_REFUSALS / (2 * max(self.n_annotators, 1))))

    def reasons(self, name: str, change: Change) -> list[str]:
        """Reasons to refuse a candidate that is worse without one annotator; none if it is as good."""
        words = {"L": "L", "L_D": "L_φ"}
        return [
            Message(
                "the change of {loss} depends on {name}: without their labels it is {worse:.4f} worse "
                "({errors:.1f} standard errors; {limit:.1f} allowed)",
                loss=words[loss],
                name=name,
                worse=shift.value,
                errors=shift.value / shift.se,
                limit=self.limit,
            )
            for loss, shift in shifts_of(change, self.whole, self.cluster).items()
            if shift.se > 0 and shift.value > self.limit * shift.se
        ]


#: Probability that any of all attempts on one champion passes a candidate that is not better, at most.
ERROR_RATE = 0.05
#: Annotators below which it cannot be seen whether a candidate leans on one of them.
FEWEST_ANNOTATORS = 3
(_RULE,) = messages(
    ("attempt {attempt} on this champion requires p ≤ {each:.2g} for one of the two losses (half of {attempt2:.2g})",)
)


def attempt_level(attempt: int) -> float:
    """Level of the attempt with a number, from 1, on one champion.

    >>> attempt_level(1), attempt_level(2)
    (0.025, 0.0125)
    """
    return math.ldexp(ERROR_RATE, -attempt)


@dataclass(frozen=True)
class GateEvidence:
    """Evidence about a candidate; changes are negative where it is better."""

    # change from the champion, by all labels
    whole: Change
    # (N,) patients of the cases
    cluster: npt.NDArray[np.int64]
    n_annotators: int
    # change from the first champion, by all labels; a sentence where it is unknown, None where the champion is the
    # first one
    since_first: Change | str | None = None
    # by annotator, change from the champion to a candidate made and judged without their labels; a sentence where there
    # is none
    without: Mapping[str, Change | str] = field(default_factory=dict)


@dataclass(frozen=True)
class GateDecision:
    """Decision of the gate on the evidence."""

    # why the candidate is refused, a sentence each; none where it passes
    reasons: list[str]
    # what else was found or could not be checked, a sentence each
    findings: list[str]

    def __add__(self, other: "GateDecision") -> "GateDecision":
        return GateDecision(self.reasons + other.reasons, self.findings + other.findings)


def decide_gate(evidence: GateEvidence, attempt: int, max_increase: float | None = None) -> GateDecision:
    """Judge a candidate."""
    return judge_overall(evidence, attempt, max_increase) + judge_annotator_dependence(evidence)


def judge_overall(evidence: GateEvidence, attempt: int, max_increase: float | None = None) -> GateDecision:
    """Judge a candidate by all labels together; arguments as for ``decide_gate``."""
    whole, first = evidence.whole, evidence.since_first
    decision = (
        _judge_improvement(whole, attempt)
        + GateDecision(describe_regressions(whole), [])
        + _judge_margin(whole, max_increase)
    )
    if first is None:
        return decision
    if isinstance(first, str):
        return decision + GateDecision(
            [], [Message("The change since the first champion cannot be checked: {first}.", first=first)]
        )
    return decision + _judge_harm_since_first(first)


def _judge_improvement(whole: Change, attempt: int) -> GateDecision:
    each = attempt_level(attempt) / 2
    changes = loss_changes_with_p(whole)
    better = [name for name, _, p in changes if p is not None and p <= each]
    change_text = joined("; ", filter(None, map(_told, changes))) or Message("no loss can be estimated")
    rule = Message(_RULE, attempt=attempt, each=each, attempt2=attempt_level(attempt))
    if better:
        is_better = Message("Improved: {better}. {told}; {rule}.", better=listed(better), told=change_text, rule=rule)
        return GateDecision([], [is_better])
    needed = describe_required_cases([(name, loss) for name, loss, _ in changes], attempt_level(attempt + 1) / 2)
    reason = Message("no significant improvement over the champion: {told}; {rule}", told=change_text, rule=rule)
    return GateDecision([reason], [needed])


def _told(found: tuple[str, Estimate | ModelAssisted, float | None]) -> Message | None:
    name, loss, p = found
    if loss.se is None or p is None:
        return None
    return Message(
        "{name} changes by {value} ± {se:.4f} ({p})",
        name=name,
        value=Number(number_format.change(loss.value, 4)),
        se=loss.se,
        p=Message("p < {p:g}", p=0.0001) if p < 0.0001 else Message("p = {p:.4f}", p=p),
    )


def loss_changes_with_p(change: Change) -> list[tuple[str, Estimate | ModelAssisted, float | None]]:
    """Changes of L and L_φ, each with its deciding p-value (``gate_p_value``)."""
    return [
        (name, estimate.efficient, gate_p_value(estimate.efficient, float(chance)))
        for (name, estimate), chance in zip(losses_of(change), change.chance, strict=True)
    ]


def gate_p_value(loss: Estimate | ModelAssisted, chance: float) -> float | None:
    """P-value of a fall in loss under no improvement; None if it cannot be estimated."""
    # Where next to nobody disagreed, all cases speak for a candidate that says less, by nearly the same; their spread
    # is then no measure of what another hundred reads would have said. So it must be unlikely by the chance of labels
    # as the champion predicts them, too.
    if loss.p_of_fall is None or chance == 0:
        return loss.p_of_fall
    return max(loss.p_of_fall, float(ndtr(loss.value / chance)))


def _judge_harm_since_first(first: Change) -> GateDecision:
    """Each loss by itself: what cannot be checked of the one excuses no harm to the other."""
    when = Message(" since the first champion")
    reasons: list[str] = []
    findings: list[str] = []
    for name, estimate in losses_of(first):
        if is_estimated(estimate.efficient):
            reasons += describe_regression(name, estimate.efficient, when)
        else:
            findings.append(
                Message("Too few labelled patients to check whether {name} worsens{when}.", name=name, when=when)
            )
    return GateDecision(reasons, findings)


def _judge_margin(whole: Change, max_increase: float | None) -> GateDecision:
    if max_increase is None:
        return GateDecision([], [])
    ends = [(name, estimate.efficient.high) for name, estimate in losses_of(whole)]
    return GateDecision(
        [
            Message(
                "{name} could rise by up to {high:.4f} (95%); the change plan allows {max_increase:g}",
                name=name,
                high=high,
                max_increase=max_increase,
            )
            for name, high in ends
            if high is not None and high > max_increase
        ],
        [],
    )


def judge_annotator_dependence(evidence: GateEvidence) -> GateDecision:
    """Judge whether the candidate depends on one annotator."""
    # Where somebody cannot be left out, because too few labels remain without theirs, nothing follows: it is the case
    # of a laboratory with one or two annotators, and is said in the same way.
    n, without = evidence.n_annotators, evidence.without
    if n < FEWEST_ANNOTATORS:
        few = {0: "nobody", 1: Message("only one annotator")}.get(n, Message("only two annotators"))
        return GateDecision(
            [], [Message("Dependence on a single annotator cannot be checked: {few} labelled.", few=few)]
        )
    stability = AnnotatorStability(evidence.whole, evidence.cluster, n)
    reasons: list[str] = []
    findings: list[str] = []
    for name, change in without.items():
        if isinstance(change, str):
            findings.append(Message("Dependence on {name} cannot be checked: {change}.", name=name, change=change))
            continue
        reasons += stability.reasons(name, change)
        lacking = [loss for loss, estimate in losses_of(change) if estimate.se is None]
        if lacking:
            losses = listed(lacking)
            findings.append(
                Message(
                    "The dependence of {losses} on {name} cannot be checked: too few labels remain without them.",
                    losses=losses,
                    name=name,
                )
            )
    if not reasons:
        findings.append(
            Message(
                "The result does not depend on a single annotator ({limit:.1f} standard errors allowed).",
                limit=stability.limit,
            )
        )
    return GateDecision(reasons, findings)
