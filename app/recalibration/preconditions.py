"""Preconditions of a recalibration: labels required, and refusals."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.special import ndtri

from app.recalibration.change_plan import ChangePlan
from app.recalibration.report import PredictionShift
from ml.distributions.families import PredictiveDistribution
from ml.messages import Message, joined, listed, separated
from ml.metrics.jackknife import Estimate, ModelAssisted

#: Chance of being seen that is asked for, where a change is as large as it seems.
POWER = 0.8
# beyond it the number says no more than that it is out of reach
_OUT_OF_REACH = 100


def required_case_factor(loss: Estimate | ModelAssisted, level: float) -> float | None:
    """Factor of cases needed to show a change with 80% power if it is as large as estimated."""
    if loss.se is None or not loss.value < 0:
        return None
    return max(1.0, float((ndtri(1 - level) + ndtri(POWER)) * loss.se / -loss.value) ** 2)


def describe_required_cases(losses: Iterable[tuple[str, Estimate | ModelAssisted]], level: float) -> str:
    """Describe what the next attempt would need to pass, in a sentence."""
    factors = [(required_case_factor(loss, level), name) for name, loss in losses]
    falls = [(times, name) for times, name in factors if times is not None]
    if not falls:
        return Message(
            "Requirements: neither loss improved, so more evaluation cells would not help. "
            "Collect more labelled cells in the calibration partition."
        )
    times, name = min(falls)
    if times > _OUT_OF_REACH:
        return Message(
            "Requirements: the fall of {name} is small compared with its error; showing it would "
            "take more than {out_of_reach} times as many evaluation cells. Improve the fit "
            "instead.",
            name=name,
            out_of_reach=_OUT_OF_REACH,
        )
    share = math.ceil(10 * times) / 10
    return Message(
        "Requirements: if the fall of {name} is real, {share:g} times as many evaluation "
        "cells would show it in {power:.0%} of attempts (p ≤ {level:.2g} in the next one). "
        "The size of the fall is uncertain.",
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
    """A recalibration that the change plan does not allow, or for which there is too little."""

    def __init__(self, what: str, *sentences: str) -> None:
        super().__init__(joined("\n", (joined("", (REFUSED, what)), *sentences)))


def is_refusal(error: str | None) -> bool:
    """Whether a job's error says that a recalibration was refused, as it is again on the same labels."""
    return error is not None and error.startswith(REFUSED)


def what_is_refused(error: str) -> list[str]:
    """What a refusal says: what was refused, and then its sentences."""
    refused, *sentences = separated(error, "\n")
    parts = separated(refused, "")
    return [refused.removeprefix(REFUSED) if len(parts) == 1 else parts[1], *sentences]


def _describe_missing_cases(missing: int, what: str) -> str:
    """Describe how many further cases are needed in all, given the share that reaches the fit."""
    if missing <= 0:
        return ""
    altogether = math.ceil(missing / _SHARE_OF_FITS)
    return Message(
        "{missing:,} more {what} are needed in that partition. It receives about "
        "{share_of_fits:.0%} of all cells, so collect about {altogether:,} more cells {what2}.",
        missing=missing,
        what=what,
        share_of_fits=_SHARE_OF_FITS,
        altogether=altogether,
        what2=Message("with two labels (the reading policy sets the share)")
        if "double" in what
        else Message("labelled"),
    )


def few_labels_error(plan: ChangePlan, n_cases: int, n_patients: int) -> RecalibrationRefusedError:
    """Build the refusal of a recalibration with too few labelled cases or patients."""
    needs = [
        _describe_missing_cases(plan.min_labelled_cases - n_cases, Message("labelled cells")),
        _describe_missing_patients(plan.min_patients - n_patients),
    ]
    return RecalibrationRefusedError(
        Message(
            "recalibration needs {min_labelled_cases} labelled cells from {min_patients} "
            "patients in the calibration partition, which has {n_cases} from {n_patients}.",
            min_labelled_cases=plan.min_labelled_cases,
            min_patients=plan.min_patients,
            n_cases=n_cases,
            n_patients=n_patients,
        ),
        *filter(None, needs),
    )


def few_double_reads_error(plan: ChangePlan, fewest: int, n_pairs: int, n_patients: int) -> RecalibrationRefusedError:
    """Build the refusal of an adaptation with too few double reads or patients."""
    needs = [
        _describe_missing_cases(fewest - n_pairs, Message("double reads")),
        _describe_missing_patients(plan.min_patients - n_patients),
    ]
    return RecalibrationRefusedError(
        Message(
            "adapting needs {fewest} cells with two blinded planned labels, and labelled cells "
            "from {min_patients} patients, in the calibration partition, which has {n_pairs} and "
            "{n_patients}.",
            fewest=fewest,
            min_patients=plan.min_patients,
            n_pairs=n_pairs,
            n_patients=n_patients,
        ),
        *filter(None, needs),
    )


def _describe_missing_patients(missing: int) -> str:
    if missing <= 0:
        return ""
    return Message(
        "They must include {missing:,} more patient{plural}.",
        missing=missing,
        plural="" if missing == 1 else "s",
    )


def change_beyond_plan_error(
    plan: ChangePlan, moved: PredictionShift, broken: Sequence[str], told: str, n_labelled: int
) -> RecalibrationRefusedError:
    """Build the refusal of a recalibration that would move predictions beyond the plan."""
    limits = {
        "max_mean_probability_change": (moved.mean_probability_change, plan.max_mean_probability_change),
        "max_mean_log_concentration_change": (
            moved.mean_log_concentration_change or 0.0,
            plan.max_mean_log_concentration_change,
        ),
    }
    needs = [
        Message("{name} of {value:g} or more", name=name, value=math.ceil(value * 100) / 100)
        for name, (value, limit) in limits.items()
        if value > limit
    ]
    return RecalibrationRefusedError(
        Message("the change plan does not allow this change: {broken}.", broken=joined("; ", broken)),
        told,
        Message(
            "To allow it, write a JSON file with {needs}, and set SECONDREAD_CHANGE_PLAN to its path for "
            "the server and the worker.",
            needs=listed(needs),
        ),
        Message(
            "Or collect more labels: the fit used {n_labelled:,} labelled cells, and some of the "
            "change may be due to chance. A change that persists with twice as many is real.",
            n_labelled=n_labelled,
        ),
    )


def describe_prediction_change(
    before: PredictiveDistribution, after: PredictiveDistribution, names: Sequence[str]
) -> str:
    """Describe the largest changes of mean probabilities, and that of disagreement."""
    first, then = before.class_probs.mean(axis=0), after.class_probs.mean(axis=0)
    most = np.argsort(-np.abs(then - first))[:_SHOWN]
    parts = [Message("{k} {before:.0%} → {after:.0%}", k=names[k], before=first[k], after=then[k]) for k in most]
    two = [float(np.mean(each.disagreement_probs)) for each in (before, after)]
    parts.append(Message("disagreement {before:.0%} → {after:.0%}", before=two[0], after=two[1]))
    return Message(
        "Mean before and after, over {class_probs:,} stored cells: {parts}.",
        class_probs=len(before.class_probs),
        parts=joined("; ", parts),
    )
