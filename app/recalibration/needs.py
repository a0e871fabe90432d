"""What a candidate that the gate did not find surely better would need, in a sentence."""

import math
from collections.abc import Iterable

from scipy.special import ndtri

from ml.messages import Message
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
