"""Detects drift of images and labels from the release's reference, per site."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, ndtr

from app.metrics.dataset import EvaluationDataset
from app.metrics.schemas import DriftOut, MixChangeOut
from ml.messages import Message, Number, messages
from ml.metrics.cases import class_frequencies, numbers_of
from ml.metrics.homogeneity_test import ClassMixChange, estimate_mix_change, mix_change_of_patients
from ml.release.card import ReferenceDocument
from ml.release.ood_detector import FAMILIAR_SHARE
from ml.util import number_format
from ml.util.arrays import FloatArray, IntArray

#: Stain farther from the reference than this many of its standard deviations is warned about.
STAIN_LIMIT = 1.0
#: The same for the features of the network, root mean square over all of them.
FEATURE_LIMIT = 0.5
#: Probability of chance below which a share is warned about.
P_LIMIT = 0.001
#: The mix of labels: probability of chance, and total variation, that are warned about. In simulated laboratories with
#: patients who differ this alarms without drift less than once in 1,000 looks (`experiments/class_mix.py`).
MIX_P_LIMIT, MIX_LIMIT = 0.0003, 0.05
# patients from whom a variance between patients can be told, for so small a probability
_MIN_CLUSTERS = 20
_MIN_CASES = 20
_FEATURES, _STAIN, _UNLIKE, _MIX = messages(
    (
        "the network's features{where} have moved by {moved:.1f} standard deviations of the reference",
        "the stain{where} has moved by {abs} standard deviations of the reference",
        "{n_cases:.1%} of the images{where} are out of distribution ({expected:.1%} expected)",
        "the mix of labels{where} differs from the reference by {distance:.0%} (total variation)",
    )
)
# all cases, or positions
_Rows = slice | npt.NDArray[np.intp]


@dataclass(frozen=True)
class _CaseLabels:
    """Labels of N cases: one class for most, frequencies for those without a first planned read."""

    # (N,) class, −1 where it is among the others
    first: IntArray
    # (N,) row of the others, −1 where it is none of them
    other: IntArray
    # (M, K) of the others
    frequencies: FloatArray

    @cached_property
    def complete(self) -> bool:
        """Whether something was said of each case."""
        return bool(((self.first >= 0) | (self.other >= 0)).all())

    def sums(self, first: IntArray, other: IntArray, numbers: npt.NDArray[np.intp]) -> FloatArray:
        """Sums (G, K) of the frequencies of some cases, by the numbers (n,) of their patients."""
        n_classes, several = self.frequencies.shape[1], np.flatnonzero(first < 0)
        size, at_first = (int(numbers.max()) + 1) * n_classes, numbers * n_classes + first
        if several.size:
            at_first = at_first[first >= 0]
        sums = np.bincount(at_first, minlength=size).astype(np.float64)
        at = numbers[several, None] * n_classes + np.arange(n_classes)
        sums += np.bincount(at.ravel(), self.frequencies[other[several]].ravel(), sums.size)
        return sums.reshape(-1, n_classes)


def measure_drift(columns: EvaluationDataset, reference: ReferenceDocument | None) -> list[DriftOut]:
    """Drift of all cases, and of each site with at least 20 of them."""
    if reference is None or len(columns) == 0:
        return []
    groups: list[tuple[str | None, _Rows]] = [(None, slice(None))] if len(columns) >= _MIN_CASES else []
    for number, name in sorted(columns.sites.items(), key=lambda item: item[1]):
        inside = np.flatnonzero(columns.site == number)
        if inside.size >= _MIN_CASES:
            groups.append((name, inside))
    # Two labels of each case that triage selected would shift the mix towards the hard cases without any drift.
    first = np.asarray(columns.first_class)
    others = np.flatnonzero((first < 0) & (columns.n_labels > 0))
    other = np.full(len(first), -1)
    other[others] = np.arange(others.size)
    labels = _CaseLabels(first, other, class_frequencies(columns.label_counts[others]))
    return [_measure_group_drift(site, columns, rows, labels, reference) for site, rows in groups]


def _measure_group_drift(
    site: str | None, data: EvaluationDataset, rows: _Rows, labels: _CaseLabels, reference: ReferenceDocument
) -> DriftOut:
    flags, stain = (
        data.out_of_distribution[rows],
        _stain_shift(data.stain[rows] if isinstance(rows, slice) else np.take(data.stain, rows, axis=0), reference),
    )
    n_cases, checked, unfamiliar = len(flags), int((flags >= 0).sum()), int((flags > 0).sum())
    expected = reference.get("false_alarm_rate") or 1 - FAMILIAR_SHARE  # of releases before there were several checks
    chance = float(bdtrc(unfamiliar - 1, checked, expected)) if unfamiliar else 1.0
    mix = _label_shift(labels, data, rows, reference)
    moved, p_moved = _feature_shift(data.feature_distance[rows], reference)
    where = "" if site is None else Message(" at site {site}", site=site)
    warnings = []
    if moved is not None and moved > FEATURE_LIMIT and p_moved < P_LIMIT:
        warnings.append(Message(_FEATURES, where=where, moved=moved))
    if stain is not None and max(abs(value) for value in stain) > STAIN_LIMIT:
        warnings.append(Message(_STAIN, where=where, abs=Number(number_format.change(max(stain, key=abs), 1))))
    if chance < P_LIMIT:
        warnings.append(Message(_UNLIKE, n_cases=unfamiliar / checked, where=where, expected=expected))
    if mix is not None and _is_notable_mix_change(mix):
        warnings.append(Message(_MIX, where=where, distance=mix.distance))
    return DriftOut(
        site=site,
        n_cases=n_cases,
        stain_shift=stain,
        feature_shift=moved,
        unfamiliar_share=unfamiliar / checked if checked else None,
        label_shift=None if mix is None else mix.distance,
        label_p_value=None if mix is None else mix.p_value,
        mix_change=_largest_mix_change(data, rows, reference),
        warnings=warnings,
    )


def _is_notable_mix_change(mix: ClassMixChange) -> bool:
    sure = mix.p_value is not None and mix.p_value < MIX_P_LIMIT and mix.n_clusters >= _MIN_CLUSTERS
    return sure and mix.distance > MIX_LIMIT


def _stain_shift(stain: FloatArray, reference: ReferenceDocument) -> list[float] | None:
    measured = np.flatnonzero(~np.isnan(stain @ np.ones(3)))
    if measured.size == 0:
        return None
    spread = np.maximum(np.array(reference["stain_sd"]), 1e-6)
    return [
        float(v)
        for v in (np.ones(measured.size) @ stain[measured] / measured.size - np.array(reference["stain_mean"])) / spread
    ]


def _feature_shift(distance: FloatArray, reference: ReferenceDocument) -> tuple[float | None, float]:
    # With features whitened by the training cells, a mean that has moved by δ adds |δ|²/D to the mean of d²/D, and so
    # does a larger spread: its root is reported, in standard deviations of one feature.
    finite_distances, mean = distance[np.isfinite(distance)], reference.get("distance_sq_mean")
    spread, n_reference = reference.get("distance_sq_sd"), reference.get("n_distance")
    if finite_distances.size < 2 or mean is None or spread is None or n_reference is None:
        return None, 1.0
    squared = np.square(finite_distances)
    excess = float(squared.mean()) - mean
    error = np.sqrt(squared.var(ddof=1) / finite_distances.size + spread**2 / n_reference)
    chance = float(ndtr(-excess / error)) if error > 0 else float(excess <= 0)
    return float(np.sqrt(max(excess, 0.0))), chance


def _label_shift(
    labels: _CaseLabels, data: EvaluationDataset, rows: _Rows, reference: ReferenceDocument
) -> ClassMixChange | None:
    """The mix of labels compared with the reference's: every labelled case counts once."""
    first, other, cluster = labels.first[rows], labels.other[rows], data.cluster[rows]
    if not labels.complete:
        labelled = np.flatnonzero((first >= 0) | (other >= 0))
        first, other, cluster = first[labelled], other[labelled], cluster[labelled]
    if first.size == 0 or reference["n_labels"] == 0:
        return None
    sums = labels.sums(first, other, numbers_of(cluster))
    return mix_change_of_patients(sums, np.array(reference["label_share"]), reference["n_labels"])


def _largest_mix_change(data: EvaluationDataset, rows: _Rows, reference: ReferenceDocument) -> MixChangeOut | None:
    """The class whose share of the predicted cells has changed most."""
    if reference["n_labels"] == 0:
        return None
    share, n_labels = np.array(reference["label_share"]), reference["n_labels"]
    mix = estimate_mix_change(data.class_probs[rows], data.cluster[rows], share, n_labels)
    if mix is None:
        return None
    most = int(np.abs(mix.change).argmax())
    change, low, high = (float(values[most]) for values in (mix.change, mix.low, mix.high))
    return MixChangeOut(class_code=data.classes[most], change=change, low=low, high=high)
