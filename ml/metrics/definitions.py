"""Metrics as data: mean, bins, constant, labels and range."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from ml.metrics.binned import Binned
from ml.metrics.cases import Sample
from ml.metrics.jackknife import (
    DIFFERENCE,
    EPISTEMIC_LOSS,
    LINEAR,
    SHARE,
    SQUARED_LOSS,
    Bounds,
    Estimate,
    EstimateDocument,
    ReaderPart,
    Replicates,
    root,
    skill_replicates,
    to_estimate,
    to_skill,
)
from ml.metrics.sums import Debias

#: Frequencies and probabilities in bins: of the classes, or of the disagreement of two annotators.
Bins = Literal["classes", "disagreement"]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Metric:
    """A mean, a calibration loss, a skill, or a root."""

    name: str  # in evaluations: the symbol of the paper
    long_name: str  # in evaluations, next to the symbol
    order: int  # labels that a case needs
    mean: str | None = None  # name among ``MEANS``
    bins: Bins | None = None  # of its calibration loss
    skill: bool = False  # 1 − mean / loss of the constant
    plugin: bool = False  # always in the plug-in form
    curved: bool = False  # its interval allows for pairs of clusters
    root_of: str | None = None  # metric whose root it is
    term: Bounds | None = None  # of a mean: range of a case's term; None for differences
    limits: Bounds | None = None  # of others: range of the quantity
    sampled: bool = True  # whether its interval allows for terms that no case had

    def form(self, debias: Debias) -> Debias:
        """Form of the metric in an evaluation of a form."""
        return "none" if self.plugin else debias

    @property
    def own_bins(self) -> Bins:
        """Bins of a metric that has some."""
        if self.bins is None:
            raise ValueError(f"{self.name} has no bins")
        return self.bins

    def mean_name(self, debias: Debias) -> str | None:
        """Name of the mean in a form: EL has a plug-in."""
        return "EL_plugin" if self.mean == "EL" and self.form(debias) == "none" else self.mean

    def ends(self, form: Debias) -> Bounds | None:
        """Range of the ends in a form: a debiased loss may be as far below 0 as above."""
        if self.limits is None or form == "none":
            return self.limits
        return Bounds(-self.limits.high, self.limits.high)


METRICS = (
    Metric("agreement", "expected_accuracy", 1, mean="agreement", term=SHARE),
    Metric("L", "expected_loss", 1, mean="L", term=SQUARED_LOSS),
    Metric("skill", "skill", 1, mean="L", bins="classes", skill=True, term=SQUARED_LOSS),
    Metric("CL", "calibration_loss", 1, bins="classes", curved=True, limits=SQUARED_LOSS),
    Metric("CL_plugin", "calibration_loss_plugin", 1, bins="classes", plugin=True, limits=SQUARED_LOSS),
    Metric("CE", "calibration_error", 1, root_of="CL"),
    Metric("EL", "epistemic_loss", 2, mean="EL", term=EPISTEMIC_LOSS),
    Metric("EL_plugin", "epistemic_loss_plugin", 2, mean="EL", plugin=True, term=SQUARED_LOSS),
    Metric("CL_paired", "calibration_loss_paired", 2, bins="classes", limits=SQUARED_LOSS),
    Metric("DL", "dispersion_loss", 2, mean="EL", bins="classes", limits=SQUARED_LOSS),
    Metric("DL_plugin", "dispersion_loss_plugin", 2, mean="EL", bins="classes", plugin=True, limits=SQUARED_LOSS),
    Metric("L_D", "disagreement_loss", 2, mean="L_D", term=SHARE),
    Metric("skill_D", "disagreement_skill", 2, mean="L_D", bins="disagreement", skill=True, term=SHARE),
    Metric("CL_D", "disagreement_calibration_loss", 2, bins="disagreement", curved=True, limits=SHARE),
    Metric("CL_D_plugin", "disagreement_calibration_loss_plugin", 2, bins="disagreement", plugin=True, limits=SHARE),
    Metric("CE_D", "disagreement_calibration_error", 2, root_of="CL_D"),
    Metric("L_D_minus_max", "disagreement_loss_minus_max", 2, mean="L_D_minus_max", limits=DIFFERENCE),
    Metric("L_D_minus_gini", "disagreement_loss_minus_gini", 2, mean="L_D_minus_gini", limits=DIFFERENCE),
    Metric("accuracy", "accuracy", 3, mean="accuracy", term=SHARE),
)
BY_NAME: Mapping[str, Metric] = {metric.name: metric for metric in METRICS}
#: Symbols by long name, of metrics whose names differ.
SYMBOLS: Mapping[str, str] = {
    **{metric.long_name: metric.name for metric in METRICS if metric.long_name != metric.name},
    "ranked_probability_score": "RPS",
    "ranked_probability_skill": "skill_RPS",
    "epistemic_ranked_probability_score": "RPS_epistemic",
}
_LONG_NAMES: Mapping[str, str] = {symbol: name for name, symbol in SYMBOLS.items()}


def with_long_names(values: Mapping[str, _T]) -> dict[str, _T]:
    """Values by metric, also under the long names.

    >>> with_long_names({"L": 0.25, "skill": 0.5})
    {'L': 0.25, 'expected_loss': 0.25, 'skill': 0.5}
    """
    return {key: value for name, value in values.items() for key in (name, _LONG_NAMES.get(name, name))}


def without_long_names(values: Mapping[str, _T]) -> dict[str, _T]:
    """Values by metric, under the symbols alone."""
    return {name: value for name, value in values.items() if name not in SYMBOLS}


class Estimates(dict[str, Estimate]):
    """Estimates by symbol; the long name of a metric finds the same estimate.

    >>> from ml.metrics import evaluate
    >>> metrics = evaluate([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]]).metrics
    >>> metrics["expected_loss"] is metrics["L"], "calibration_error" in metrics, "expected_loss" in list(metrics)
    (True, True, False)
    """

    def __missing__(self, name: str) -> Estimate:
        """The estimate of a long name."""
        return self[SYMBOLS[name]]

    def __contains__(self, name: object) -> bool:
        """Whether a symbol or a long name has an estimate."""
        return super().__contains__(SYMBOLS.get(str(name), name))

    def get(self, name: str, default: Any = None) -> Any:
        """The estimate of a symbol or a long name, or the default."""
        return super().get(SYMBOLS.get(name, name), default)

    def __or__(self, others: Mapping[str, Estimate]) -> "Estimates":  # type: ignore[override]
        """Both sets of estimates."""
        return Estimates({**self, **others})

    def to_dict(self) -> dict[str, EstimateDocument]:
        """Return JSON values: each estimate under its symbol and its long name."""
        return with_long_names({name: estimate.to_dict() for name, estimate in self.items()})


class BinnedSource(ABC):
    """Cases in bins, from which every metric follows."""

    @abstractmethod
    def sample(self, order: int) -> Sample:
        """The cases with so many labels."""

    @abstractmethod
    def mean(self, name: str) -> Replicates:
        """A mean among ``MEANS``."""

    @abstractmethod
    def binned(self, bins: Bins, order: int) -> Binned:
        """Bins of the cases with so many labels; the same object each time."""

    def calibration(self, bins: Bins, order: int, debias: Debias) -> Replicates:
        """CL of the cases with so many labels."""
        return self.binned(bins, order).replicates(debias)

    @abstractmethod
    def disagreements(self) -> float:
        """Σφ̂ over the cases with two labels: how many of as many pairs of labels differ."""

    def constant_loss(self, bins: Bins, order: int) -> Replicates:
        """Loss of the best constant."""
        return self.binned(bins, order).constant_loss()

    def readers(self, metric: Metric, debias: Debias, replicates: Replicates) -> ReaderPart | None:
        """Readers' part of the error; None if unknown."""
        return None


def metric_replicates(metric: Metric, source: BinnedSource, debias: Debias) -> Replicates:
    """Compute a metric that is no root, with its leave-one-cluster-out values."""
    form, mean = metric.form(debias), metric.mean_name(debias)
    if mean is None:
        return source.calibration(metric.own_bins, metric.order, form)
    if metric.skill:
        return skill_replicates(source.mean(mean), source.constant_loss(metric.own_bins, metric.order))
    if metric.bins is not None:
        return source.mean(mean) - source.calibration(metric.bins, metric.order, form)
    return source.mean(mean)


def metric_values(source: BinnedSource, debias: Debias) -> dict[str, float]:
    """Compute the value of every metric, by name."""
    values: dict[str, float] = {}
    for metric in METRICS:
        if metric.root_of is None:
            values[metric.name] = metric_replicates(metric, source, debias).value
        else:
            values[metric.name] = float(np.sqrt(np.maximum(values[metric.root_of], 0.0)))
    return values


def metric_estimate(metric: Metric, source: BinnedSource, debias: Debias) -> Estimate:
    """Estimate a metric that is no root, with its interval."""
    form, replicates = metric.form(debias), metric_replicates(metric, source, debias)
    readers = source.readers(metric, form, replicates)
    term = metric.term if metric.sampled else None
    if metric.skill and metric.mean is not None:
        loss, constant = source.mean(metric.mean), source.constant_loss(metric.own_bins, metric.order)
        unseen = None
        if metric.bins == "disagreement":  # constant's loss (1 − d)² of the rarer answer, from d(1 − d)
            unseen = float((1 + np.sqrt(np.maximum(1 - 4 * constant.value, 0.0))) ** 2 / 4)
        return to_skill(loss, constant, source.sample(metric.order), term, unseen=unseen, readers=readers)
    lonely, quadratic, gaps = 0.0, LINEAR, None
    if metric.bins is not None:
        binned = source.binned(metric.bins, metric.order)
        lonely = binned.singleton_mass(form)
        quadratic = binned.quadratic_part(form, replicates) if metric.curved else LINEAR
        gaps = binned.mean_gaps_squared if metric.mean is None and metric.sampled else None
    return to_estimate(
        replicates,
        source.sample(metric.order),
        lonely,
        term=SQUARED_LOSS if term == EPISTEMIC_LOSS and form == "none" else term,
        limits=metric.ends(form),
        quadratic=quadratic,
        includes=gaps,
        readers=readers,
    )


def metric_estimates(source: BinnedSource, debias: Debias, metrics: Iterable[Metric] = METRICS) -> Estimates:
    """Estimate metrics, by name; a root follows the metric whose root it is."""
    estimates = Estimates()
    for metric in metrics:
        if metric.root_of is None:
            estimates[metric.name] = metric_estimate(metric, source, debias)
        else:
            estimates[metric.name] = root(estimates[metric.root_of])
    return estimates
