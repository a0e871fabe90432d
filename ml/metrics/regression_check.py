"""Regression check: proper scores whose point estimate rises by more than one standard error.

It is what the gate asks of a candidate besides being better, and all that is asked of a release that is to be faster
and no better.
"""

import numpy as np

from ml.messages import Message
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.metrics.paired_difference import Change

#: Standard errors above which a loss counts as harmed.
HARM_LIMIT = 1.0


def losses_of(change: Change) -> tuple[tuple[str, Estimate], ...]:
    """Both losses of a change, with their names for people."""
    return ("L", change.loss), ("L_φ", change.disagreement_loss)


def is_estimated(loss: Estimate | ModelAssisted) -> bool:
    """Whether there is an estimate with a standard error."""
    return loss.se is not None and bool(np.isfinite(loss.value))


def describe_regression(name: str, loss: Estimate | ModelAssisted, when: str = "") -> list[str]:
    """Describe a loss that rises by more than one standard error; empty otherwise.

    Args:
        name: of the loss.
        loss: its change, positive is worse.
        when: since when, with a space before.
    """
    if loss.se is None or loss.value <= HARM_LIMIT * loss.se:
        return []
    return [
        Message(
            "{name} seems worse{when}, by {value:.4f}; one standard error ({se:.4f}) is allowed",
            name=name,
            when=when,
            value=loss.value,
            se=loss.se,
        )
    ]


def describe_regressions(change: Change) -> list[str]:
    """Describe the losses that a change makes worse, and those that cannot be estimated.

    Args:
        change: from one prediction of the same cases to another.
    """
    reasons = []
    for name, estimate in losses_of(change):
        if is_estimated(estimate.efficient):
            reasons += describe_regression(name, estimate.efficient)
        else:
            reasons.append(Message("the change of {name} cannot be estimated: too few labelled patients", name=name))
    return reasons
