"""Whether names are worth having: how much better the next label is predicted, on cases that no fit has seen."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.agreement.long_labels import LongLabels
from ml.arrays import FloatArray
from ml.distributions.families import PredictiveDistribution
from ml.metrics.jackknife import Estimate, mean_replicates, select_sample, to_estimate
from ml.readers.confusions import ReaderModel
from ml.readers.fitting import Material, left_out


@dataclass(frozen=True)
class HeldOutGain:
    """Fall of the log loss (nats) of a label given the others of its case, averaged over cases with two or more.

    Attributes:
        over_served: from the posterior that takes annotators as alike, as it is served.
        over_alike: from the same with opinions spread anew on the labels that the model was fitted to, so that what is
            left is what names are worth.
    """

    over_served: Estimate
    over_alike: Estimate

    @property
    def passed(self) -> bool:
        """Whether the 95 % interval of both lies above zero."""
        return all(gain.low is not None and gain.low > 0 for gain in (self.over_served, self.over_alike))


def next_label_losses(
    prior: PredictiveDistribution, long: LongLabels, names: Sequence[str], model: ReaderModel
) -> FloatArray:
    """Log loss (M,) of each label given the others of its case, in nats.

    Args:
        prior: a release's predictions of N cases.
        long: M labels of them.
        names: A annotators.
        model: of the annotators.
    """
    confusions = model.matrices(names)
    expected, _ = left_out(Material(model.opinions(prior), long), confusions)
    chance = (expected * confusions[long.annotator, :, long.label]).sum(axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(chance))


def held_out_gain(
    prior: PredictiveDistribution,
    long: LongLabels,
    names: Sequence[str],
    models: tuple[ReaderModel, ReaderModel],
    *,
    weights: FloatArray | None = None,
    cluster: npt.NDArray[np.generic] | None = None,
) -> HeldOutGain:
    """Judge a model of named annotators on labels that no fit used.

    Args:
        prior: a release's predictions of N cases, as they are served.
        long: labels of them.
        names: A annotators of the labels.
        models: the model of names, and annotators taken as alike with opinions spread anew.
        weights: (N,) inverse probabilities that a case has two labels; cases without are left out.
        cluster: (N,) patients.
    """
    served = ReaderModel.alike(long.n_classes)
    losses = [next_label_losses(prior, long, names, model) for model in (models[0], served, models[1])]
    by_case = [np.bincount(long.case, loss, minlength=long.n_cases) / np.maximum(long.per_case, 1) for loss in losses]
    usable = long.per_case >= 2
    if weights is not None:
        usable &= weights > 0
    sample = select_sample(usable, weights, cluster)
    over = [to_estimate(mean_replicates(sample.take(other - by_case[0]), sample), sample) for other in by_case[1:]]
    return HeldOutGain(over[0], over[1])
