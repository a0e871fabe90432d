"""Preconditions of a recalibration: labels required, and refusals."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import ndtri

from app.recalibration.change_plan import ChangePlan
from app.recalibration.report import Moved
from ml.distributions.families import PredictiveDistribution
from ml.messages import Message, joined, listed, separated
from ml.metrics.jackknife import Estimate, ModelAssisted

#: Chance of being seen that is asked for, where a change is as large as it seems.
POWER = 0.8
# beyond it the number says no more than that it is out of reach
_OUT_OF_REACH = 100


def times_as_many(loss: Estimate | ModelAssisted, level: float) -> float | None:
    """How many times as many cases would show a change, four times out of five, if it is as large as it seems.

    Args:
        loss: change of a loss, negative is better.
        level: that the p value must not exceed.

    Returns:
        The factor, at least 1; None where the loss did not fall or nothing is known of its error.
    """
    if loss.se is None or not loss.value < 0:
        return None
    return max(1.0, float((ndtri(1 - level) + ndtri(POWER)) * loss.se / -loss.value) ** 2)


def what_it_needs(losses: Iterable[tuple[str, Estimate | ModelAssisted]], level: float) -> str:
    """A sentence on what would have to be there for the next attempt to pass.

    Args:
        losses: names and changes.
        level: of each loss in the next attempt.
    """
    known = [(times_as_many(loss, level), name) for name, loss in losses]
    falls = [(times, name) for times, name in known if times is not None]
    if not falls:
        return Message(
            "What it would need: neither loss fell, so that more cases to judge by promise nothing. A better fit is "
            "needed: more labelled cases in the calibration partition, or labels that say something else than those "
            "that the champion was calibrated on."
        )
    times, name = min(falls)
    if times > _OUT_OF_REACH:
        return Message(
            "What it would need: the fall of {name} is so small beside its error that more than "
            "{out_of_reach} times as many cases would have to judge; a better fit is the nearer way.",
            name=name,
            out_of_reach=_OUT_OF_REACH,
        )
    share = math.ceil(10 * times) / 10
    return Message(
        "What it would need: if {name} truly falls by as much as it seems, {share:g} times as many "
        "judging cases show it in {power:.0%} of attempts (p ≤ {level:.2g} in the next one). How "
        "much it falls is itself uncertain.",
        name=name,
        share=share,
        power=POWER,
        level=level,
    )


#: What the message of a refused recalibration begins with.
REFUSED = "Refused: "
#: Of all cases the share that a fit sees: half of the patients evaluate, a fifth of the others is kept for sets.
_SHARE_OF_FITS = 0.4
# classes whose probability is told before and after
_SHOWN = 3


class RecalibrationRefusedError(ValueError):
    """A recalibration that the change plan does not allow, or for which there is too little.

    Args:
        what: was refused, and why.
        sentences: what it would have done and what it would need, a line each.
    """

    def __init__(self, what: str, *sentences: str) -> None:
        super().__init__(joined("\n", (joined("", (REFUSED, what)), *sentences)))


def is_refusal(error: str | None) -> bool:
    """Whether a job's error says that a recalibration was refused, as it is again on the same labels."""
    return error is not None and error.startswith(REFUSED)


def what_is_refused(error: str) -> list[str]:
    """What a refusal says: what was refused, and then its sentences.

    Args:
        error: of the job.
    """
    refused, *sentences = separated(error, "\n")
    parts = separated(refused, "")
    return [refused.removeprefix(REFUSED) if len(parts) == 1 else parts[1], *sentences]


def _further(missing: int, what: str) -> str:
    """How many further cases are needed altogether, so that as many as are missing come to the fit."""
    if missing <= 0:
        return ""
    altogether = math.ceil(missing / _SHARE_OF_FITS)
    return Message(
        "{missing:,} more {what} are needed there. About {share_of_fits} of all cases come there, "
        "since half of the patients evaluate and some are kept for answer sets: have about "
        "{altogether:,} more cases {what2}.",
        missing=missing,
        what=what,
        share_of_fits=_percent(_SHARE_OF_FITS),
        altogether=altogether,
        what2=Message("read twice (the reading policy says how many are)") if "double" in what else "labelled",
    )


def too_few_labels(plan: ChangePlan, n_cases: int, n_patients: int) -> RecalibrationRefusedError:
    """Too few labelled cases, or of too few patients."""
    needs = [
        _further(plan.min_labelled_cases - n_cases, Message("labelled cases")),
        _of_patients(plan.min_patients - n_patients),
    ]
    return RecalibrationRefusedError(
        Message(
            "recalibration needs {min_labelled_cases} labelled cases of {min_patients} patients in the "
            "calibration partition; there are {n_cases} of {n_patients}.",
            min_labelled_cases=plan.min_labelled_cases,
            min_patients=plan.min_patients,
            n_cases=n_cases,
            n_patients=n_patients,
        ),
        *filter(None, needs),
    )


def too_few_double_reads(plan: ChangePlan, fewest: int, n_pairs: int, n_patients: int) -> RecalibrationRefusedError:
    """Too few cases that were read twice, or labelled cases of too few patients, to adapt."""
    needs = [_further(fewest - n_pairs, Message("double reads")), _of_patients(plan.min_patients - n_patients)]
    return RecalibrationRefusedError(
        Message(
            "adapting needs {fewest} cases with two blind planned labels, and labelled cases of "
            "{min_patients} patients, in the calibration partition; there are {n_pairs}, of "
            "{n_patients}.",
            fewest=fewest,
            min_patients=plan.min_patients,
            n_pairs=n_pairs,
            n_patients=n_patients,
        ),
        *filter(None, needs),
    )


def _of_patients(missing: int) -> str:
    if missing <= 0:
        return ""
    return Message(
        "They must come from {missing:,} more patient{plural} there.",
        missing=missing,
        plural="" if missing == 1 else "s",
    )


def beyond_the_plan(
    plan: ChangePlan, moved: Moved, broken: Sequence[str], told: str, n_labelled: int
) -> RecalibrationRefusedError:
    """Predictions of the same cases would move more than the plan allows.

    Args:
        plan: with the limits.
        moved: how far they would move.
        broken: a sentence for each limit that they would break.
        told: what changes, from ``before_and_after``.
        n_labelled: cases that the fit saw labels of.
    """
    limits = {
        "max_mean_probability_change": (moved.mean_probability_change, plan.max_mean_probability_change),
        "max_mean_log_concentration_change": (
            moved.mean_log_concentration_change or 0.0,
            plan.max_mean_log_concentration_change,
        ),
    }
    needs = [
        Message("{name} of {value:g} or more", name=name, value=_above(value))
        for name, (value, limit) in limits.items()
        if value > limit
    ]
    return RecalibrationRefusedError(
        Message("the change plan does not allow this change: {broken}.", broken=joined("; ", broken)),
        told,
        Message(
            "It would need a change plan (SECONDREAD_CHANGE_PLAN) with {needs}, which somebody answers for.",
            needs=listed(needs),
        ),
        Message(
            "Or it needs more labels: the fit saw {n_labelled:,} labelled cases, which move it by "
            "chance too. What is left with twice as many is a real change of annotators, stain or "
            "cells.",
            n_labelled=n_labelled,
        ),
    )


def before_and_after(before: PredictiveDistribution, after: PredictiveDistribution, names: Sequence[str]) -> str:
    """The mean probabilities that change most, and that of a disagreement, for the same cases.

    Args:
        before: of the champion.
        after: of the candidate.
        names: of the classes, in the order of the outputs.
    """
    first, then = before.class_probs.mean(axis=0), after.class_probs.mean(axis=0)
    most = np.argsort(-np.abs(then - first))[:_SHOWN]
    parts = [Message("{k} {k2}, then {k3}", k=names[k], k2=_percent(first[k]), k3=_percent(then[k])) for k in most]
    two = [float(np.mean(each.disagreement_probs)) for each in (before, after)]
    parts.append(Message("two annotators differ {two}, then {two2}", two=_percent(two[0]), two2=_percent(two[1])))
    return Message(
        "Before and after, on average over {class_probs:,} stored cases: {parts}.",
        class_probs=len(before.class_probs),
        parts=joined("; ", parts),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _above(value: float) -> float:
    """A limit that the value keeps, with two digits."""
    return math.ceil(value * 100) / 100
