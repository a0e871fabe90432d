"""Warnings that follow from an evaluation's estimates alone."""

from math import isnan

import numpy as np
from scipy.special import stdtrit

from ml.messages import Message, messages
from ml.metrics.jackknife import Estimate, Sample

#: Share of the weight in bins that CL cannot use, above which it is named.
UNUSABLE_SHARE = 0.05
#: Chance with which a perfect prediction is called impossible.
_LEVEL = 0.001
_CLASSES = messages(
    {
        True: "the class probabilities are worse than the class frequencies ({name} {value}, {low} to {high})",
        False: "the class probabilities are no better than the class frequencies so far "
        "({name} {value}, {low} to {high})",
    }
)
_DISAGREEMENT = messages(
    {
        True: "the disagreement probability is worse than a constant ({name} {value}, {low} to {high})",
        False: "the disagreement probability is no better than a constant so far ({name} {value}, {low} to {high})",
    }
)


def evaluation_warnings(metrics: dict[str, Estimate], paired: Sample) -> list[str]:
    """Warnings that follow from the estimates.

    Args:
        metrics: of an evaluation, by name.
        paired: the cases with two labels.
    """
    return [*_impossible(metrics["DL"], paired), *_unusable_bins(metrics), *_without_skill(metrics)]


def _impossible(dispersion: Estimate, paired: Sample) -> list[str]:
    """EL − CL is a mean of squares where labels and predictions are independent given the image, so never negative."""
    if dispersion.se is None:
        return []
    high = dispersion.value + float(stdtrit(paired.n_clusters - 1, 1 - _LEVEL)) * dispersion.se
    if not high < 0:
        return []
    return [
        Message(
            "DL is {value:.4f} ({low:.4f} to {high:.4f}), which is impossible for an honest "
            "prediction: were these labels used to make it?",
            value=dispersion.value,
            low=dispersion.low,
            high=dispersion.high,
        )
    ]


def _unusable_bins(metrics: dict[str, Estimate]) -> list[str]:
    texts: list[str] = []
    for name in ("CL", "CL_paired", "CL_D"):
        lonely = metrics[name].singleton_mass
        if lonely > UNUSABLE_SHARE and isnan(metrics[name].value):
            texts.append(
                Message(
                    "{name} is undefined: no bin holds two cases (or two patients) to compare; take fewer bins, "
                    "or more cases or patients",
                    name=name,
                )
            )
        elif lonely > UNUSABLE_SHARE:
            texts.append(
                Message(
                    "{singleton_mass:.0%} of the weight of {name} is in bins that it cannot use, with one case "
                    "(or one patient) each, which count as 0: take fewer bins",
                    singleton_mass=lonely,
                    name=name,
                )
            )
    return texts


def _without_skill(metrics: dict[str, Estimate]) -> list[str]:
    """Predictions that are not shown to be better than a constant."""
    texts: list[str] = []
    for name, sentences in (("skill", _CLASSES), ("skill_D", _DISAGREEMENT)):
        estimate = metrics[name]
        if estimate.low is None or estimate.high is None or not np.isfinite(estimate.value) or estimate.low > 0:
            continue
        shown = {"value": f"{estimate.value:.3f}", "low": f"{estimate.low:.3f}", "high": f"{estimate.high:.3f}"}
        texts.append(Message(sentences[estimate.high < 0], name=name, **shown))
    return texts
