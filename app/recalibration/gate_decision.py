"""Decision of the gate: overall, per class, and with each annotator left out.

*Improvement*: one of the two proper scores is surely lower (one-sided, paired, clustered by patient). Every attempt on
one champion has a level of its own, and all of them together ``ERROR_RATE``: whoever tries long enough does not pass by
luck. *No harm*: no point estimate is above one standard error, against the champion and against the first champion, so
that small losses do not add up from one promotion to the next. *Stability*: ``app.recalibration.gate_decision``.

Source of the levels: alpha spending by α/2^k (weighted Bonferroni; Dmitrienko, Tamhane and Bretz 2009, chapter 2).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from app.recalibration.preconditions import what_it_needs
from ml.messages import Message, joined, listed, messages
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.metrics.paired_difference import Change, shifts_of
from ml.metrics.regression_check import harm, harms, is_estimated, losses_of

#: Probability that a candidate of annotators who are alike is refused because it seems to lean on one of them.
FALSE_REFUSALS = 0.025


@dataclass(frozen=True)
class Stability:
    """The judgement by all labels, with which the one without each annotator is compared.

    Attributes:
        whole: change from champion to candidate by all labels.
        cluster: (N,) patients of the cases.
        n_annotators: who are left out in turn.
    """

    whole: Change
    cluster: npt.NDArray[np.int64]
    n_annotators: int

    @property
    def limit(self) -> float:
        """Standard errors that a change may be worse without one annotator.

        Two would refuse every fifth to third good candidate of five annotators, since each of them is tried twice.
        """
        return -float(ndtri(FALSE_REFUSALS / (2 * max(self.n_annotators, 1))))

    def reasons(self, name: str, change: Change) -> list[str]:
        """Why a candidate is refused that is worse without one annotator; none where it is as good.

        Args:
            name: of the annotator.
            change: from the champion to a candidate fitted without their labels, by the others' labels of the same
                cases.
        """
        words = {"L": "L", "L_D": "L_φ"}
        return [
            f"the change of {words[loss]} leans on {name}: without their labels it is {shift.value:.4f} worse "
            f"({shift.value / shift.se:.1f} standard errors, {self.limit:.1f} are allowed)"
            for loss, shift in shifts_of(change, self.whole, self.cluster).items()
            if shift.se > 0 and shift.value > self.limit * shift.se
        ]


#: Probability that any of all attempts on one champion passes a candidate that is not better, at most.
ERROR_RATE = 0.05
#: Annotators below which it cannot be seen whether a candidate leans on one of them.
FEWEST_ANNOTATORS = 3
(_RULE,) = messages(
    (
        "this is attempt {attempt} on this champion, in which one of the two must fall with p ≤ {each:.2g} (half of "
        "the attempt's {attempt2:.2g})",
    )
)


def level_of(attempt: int) -> float:
    """Level of the attempt with a number, from 1, on one champion.

    >>> level_of(1), level_of(2)
    (0.025, 0.0125)
    """
    return math.ldexp(ERROR_RATE, -attempt)


@dataclass(frozen=True)
class Evidence:
    """What a candidate is judged by; changes are negative where it is better.

    Attributes:
        whole: change from the champion, by all labels.
        cluster: (N,) patients of the cases.
        n_annotators: who labelled.
        since_first: change from the first champion, by all labels; a sentence where it is unknown, None where the
            champion is the first one.
        without: by annotator, change from the champion to a candidate made and judged without their labels; a sentence
            where there is none.
    """

    whole: Change
    cluster: npt.NDArray[np.int64]
    n_annotators: int
    since_first: Change | str | None = None
    without: Mapping[str, Change | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What follows from the evidence.

    Attributes:
        reasons: why the candidate is refused, a sentence each; none where it passes.
        findings: what else was found or could not be checked, a sentence each.
    """

    reasons: list[str]
    findings: list[str]

    def __add__(self, other: "Decision") -> "Decision":
        return Decision(self.reasons + other.reasons, self.findings + other.findings)


def decide(evidence: Evidence, attempt: int, max_increase: float | None = None) -> Decision:
    """Judge a candidate.

    Args:
        evidence: its changes.
        attempt: number of the attempt on this champion, from 1.
        max_increase: what the 95 % upper end of neither change may exceed; None for no such margin.
    """
    return of_the_whole(evidence, attempt, max_increase) + of_each_annotator(evidence)


def of_the_whole(evidence: Evidence, attempt: int, max_increase: float | None = None) -> Decision:
    """What all labels together say; arguments as of ``decide``."""
    whole, first = evidence.whole, evidence.since_first
    found = _improvement(whole, attempt) + _no_harm(whole) + _within_margin(whole, max_increase)
    if first is None:
        return found
    if isinstance(first, str):
        return found + Decision([], [Message("Harm since the first champion cannot be checked: {first}.", first=first)])
    return found + _no_harm_since(first)


def _improvement(whole: Change, attempt: int) -> Decision:
    each = level_of(attempt) / 2
    found = changes_with_p(whole)
    better = [name for name, _, p in found if p is not None and p <= each]
    told = joined("; ", filter(None, map(_told, found))) or Message("no loss can be estimated")
    rule = Message(_RULE, attempt=attempt, each=each, attempt2=level_of(attempt))
    if better:
        is_better = Message("It is better in {better}: {told}; {rule}.", better=listed(better), told=told, rule=rule)
        return Decision([], [is_better])
    needed = what_it_needs([(name, loss) for name, loss, _ in found], level_of(attempt + 1) / 2)
    reason = Message("it is not surely better than the champion: {told}; {rule}", told=told, rule=rule)
    return Decision([reason], [needed])


def _told(found: tuple[str, Estimate | ModelAssisted, float | None]) -> Message | None:
    """How a loss changes; None where that cannot be estimated."""
    name, loss, p = found
    if loss.se is None or p is None:
        return None
    return Message("{name} changes by {value:+.4f} ± {se:.4f} ({p})", name=name, value=loss.value, se=loss.se, p=_p(p))


def changes_with_p(change: Change) -> list[tuple[str, Estimate | ModelAssisted, float | None]]:
    """L and L_φ with their changes, and the p value that decides (``p_of_luck``)."""
    return [
        (name, estimate.efficient, p_of_luck(estimate.efficient, float(chance)))
        for (name, estimate), chance in zip(losses_of(change), change.chance, strict=True)
    ]


def p_of_luck(loss: Estimate | ModelAssisted, chance: float) -> float | None:
    """P value of a loss that fell without being better, None where it cannot be told.

    Where next to nobody disagreed, all cases speak for a candidate that says less, by nearly the same; their spread is
    then no measure of what another hundred reads would have said. So it must be unlikely by the chance of labels as
    the champion predicts them, too.

    Args:
        loss: change of a loss.
        chance: standard error of the change by the labels alone, if the champion were right.
    """
    if loss.p_of_fall is None or chance == 0:
        return loss.p_of_fall
    return max(loss.p_of_fall, float(ndtr(loss.value / chance)))


def _p(p: float) -> str:
    return "p < .0001" if p < 1e-4 else f"p = {p:.4f}"


def _no_harm(change: Change) -> Decision:
    return Decision(harms(change), [])


def _no_harm_since(first: Change) -> Decision:
    """Each loss by itself: what cannot be checked of the one excuses no harm to the other."""
    when = Message(" since the first champion")
    reasons: list[str] = []
    findings: list[str] = []
    for name, estimate in losses_of(first):
        if is_estimated(estimate.efficient):
            reasons += harm(name, estimate.efficient, when)
        else:
            findings.append(
                Message("Harm to {name}{when} cannot be checked: too few labelled patients.", name=name, when=when)
            )
    return Decision(reasons, findings)


def _within_margin(whole: Change, max_increase: float | None) -> Decision:
    if max_increase is None:
        return Decision([], [])
    ends = [(name, estimate.efficient.high) for name, estimate in losses_of(whole)]
    return Decision(
        [
            Message(
                "{name} may rise by up to {high:.4f} (95 %), more than the {max_increase:g} of the change plan",
                name=name,
                high=high,
                max_increase=max_increase,
            )
            for name, high in ends
            if high is not None and high > max_increase
        ],
        [],
    )


def of_each_annotator(evidence: Evidence) -> Decision:
    """Whether the candidate leans on one annotator.

    Where somebody cannot be left out, because too few labels remain without theirs, nothing follows: it is the case of
    a laboratory with one or two annotators, and is said in the same way.
    """
    n, without = evidence.n_annotators, evidence.without
    if n < FEWEST_ANNOTATORS:
        few = {0: "nobody", 1: Message("only one annotator")}.get(n, Message("only two annotators"))
        return Decision([], [Message("Whether it leans on one annotator cannot be checked: {few} labelled.", few=few)])
    stability = Stability(evidence.whole, evidence.cluster, n)
    reasons: list[str] = []
    findings: list[str] = []
    for name, change in without.items():
        if isinstance(change, str):
            findings.append(
                Message("Whether it leans on {name} cannot be checked: {change}.", name=name, change=change)
            )
            continue
        reasons += stability.reasons(name, change)
        lacking = [loss for loss, estimate in losses_of(change) if estimate.se is None]
        if lacking:
            losses = listed(lacking)
            findings.append(
                Message(
                    "Whether {losses} leans on {name} cannot be checked: too few labels remain without them.",
                    losses=losses,
                    name=name,
                )
            )
    if not reasons:
        findings.append(
            Message("Nobody's labels carry it alone ({limit:.1f} standard errors are allowed).", limit=stability.limit)
        )
    return Decision(reasons, findings)
