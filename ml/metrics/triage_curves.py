"""Triage operating curve and net benefit of second reads.

A case's observed disagreement φ̂ is a U-statistic, so that sums over
cases are unbiased whatever number of labels a case has.

``label_counts`` (N, K) are used with n ≥ 2 labels, ``scores`` (N,) send
the highest first, ``sample_weight`` (N,) is of order 2, and ``cluster``
(N,) is the patient of each case.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit, xlogy

from ml.dataframes import same_rows
from ml.metrics.cases import (
    Sample,
    check_clusters,
    check_weights,
    effective_size,
    observed_disagreement,
    select_sample,
)
from ml.metrics.jackknife import SHARE, Estimate, Replicates, binomial_interval, mean_replicates, to_estimate
from ml.util.arrays import FloatArray, as_class_probs, as_label_counts


def uncertainty_scores(class_probs: npt.ArrayLike) -> dict[str, FloatArray]:
    """1 − largest probability, and entropy in nats, (N,) each."""
    probs = as_class_probs(class_probs)
    return {"max probability": 1 - probs.max(axis=1), "entropy": -xlogy(probs, probs).sum(axis=1)}


@dataclass(frozen=True)
class _Ranked:
    sample: Sample
    order: npt.NDArray[np.intp]  # (n,) highest score first
    observed: FloatArray  # (n,) φ̂
    group: npt.NDArray[np.intp]  # (n,) number of the score
    tied: FloatArray  # weight of each score
    before: FloatArray  # weight of all higher ones
    places: FloatArray  # (n,) weight up to each case

    @classmethod
    def of(
        cls,
        label_counts: npt.ArrayLike,
        scores: npt.ArrayLike,
        sample_weight: npt.ArrayLike | None,
        cluster: npt.ArrayLike | None,
    ) -> "_Ranked":
        same_rows(label_counts=label_counts, scores=scores, sample_weight=sample_weight, cluster=cluster)
        counts = as_label_counts(label_counts)
        score = np.asarray(scores, dtype=np.float64)
        if score.shape != (len(counts),) or np.isnan(score).any():
            raise ValueError(f"scores must be {len(counts)} numbers without NaN, got shape {score.shape}")
        weight, groups = check_weights(sample_weight, len(counts)), check_clusters(cluster, len(counts))
        sample = select_sample(counts.sum(axis=1) >= 2, weight, groups)
        if sample.weight.sum() <= 0:
            raise ValueError("no case has two labels: disagreements cannot be counted")
        kept = score[sample.rows]
        order = np.argsort(-kept, kind="stable")
        ordered = kept[order]
        numbers = np.zeros(order.size, dtype=np.intp)
        np.cumsum(ordered[1:] != ordered[:-1], out=numbers[1:])
        tied = np.asarray(np.bincount(numbers, sample.weight[order]), dtype=np.float64)
        group = np.empty_like(numbers)
        group[order] = numbers
        places = np.cumsum(sample.weight[order])
        observed = observed_disagreement(counts[sample.rows])
        return cls(sample, order, observed, group, tied, np.cumsum(tied) - tied, places)

    def sent(self, capacity: float) -> tuple[FloatArray, float]:
        """Share (n,) sent of each case, and mean φ̂ at the threshold."""
        # Cases of one score are sent in equal shares, as if in random order.
        budget = capacity * self.sample.weight.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(self.tied > 0, np.clip((budget - self.before) / self.tied, 0.0, 1.0), 0.0)
        return share[self.group], self._threshold_mean(budget)

    def _threshold_mean(self, budget: float) -> float:
        position = int(np.searchsorted(self.places, budget))
        half = max(1, int(np.sqrt(len(self.order)) / 2))
        near = self.order[max(0, position - half) : position + half]
        weight = self.sample.weight[near]
        return float(weight @ self.observed[near] / weight.sum()) if weight.sum() > 0 else 0.0


def triage_recall(
    label_counts: npt.ArrayLike,
    scores: npt.ArrayLike,
    capacities: npt.ArrayLike,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> list[Estimate]:
    """Share of all disagreements caught at each capacity, a share of cases.

    Recall(c) = Σ_sent w φ̂ / Σ w φ̂. The influence of a case is
    [s_i (φ̂_i − m) + c m − R φ̂_i] / mean φ̂, s_i whether it is sent and m the
    mean φ̂ at the threshold (Lorenz ordinate, Beach and Davidson 1983). The
    interval is Clopper and Pearson's for the disagreements caught among those
    seen; with weights or clusters, for an effective number of them (Korn and
    Graubard 1998, Survey Methodology 24:193).

    Raises:
        ValueError: bad shapes, capacities out of range, or no disagreement.
    """
    shares = np.asarray(capacities, dtype=np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("capacities must be a list of shares between 0 and 1")
    ranked = _Ranked.of(label_counts, scores, sample_weight, cluster)
    sample, observed = ranked.sample, ranked.observed
    mean = float(sample.weight @ observed / sample.weight.sum())
    if mean == 0:
        raise ValueError("no two labels of a case differ: there is no disagreement to catch")
    estimates = []
    for capacity in shares:
        sent, at_threshold = ranked.sent(float(capacity))
        value = float(sample.weight @ (sent * observed) / (sample.weight @ observed))
        influence = (sent * (observed - at_threshold) + capacity * at_threshold - value * observed) / mean
        spread = mean_replicates(influence, sample)
        replicates = Replicates(value, spread.without + (value - spread.value))
        estimate = to_estimate(replicates, sample, bounds=SHARE)
        if estimate.low is not None and 0 < capacity < 1:
            low, high = share_interval(sent * observed, observed, sample)
            estimate = replace(estimate, low=low, high=high)
        estimates.append(estimate)
    return estimates


def share_interval(part: FloatArray, whole: FloatArray, sample: Sample) -> tuple[float, float]:
    """Korn and Graubard's 95 % interval of Σ w part / Σ w whole, which counts part of the whole (n,) of each case."""
    weight = sample.weight * whole
    value, n_seen, of_cluster = float(sample.weight @ part / weight.sum()), whole.sum(), sample.per_cluster(weight)
    spread = float((sample.per_cluster(sample.weight * (part - value * whole)) ** 2).sum())
    squares = spread / (value * (1 - value)) if 0 < value < 1 and spread > 0 else float((of_cluster**2).sum())
    # what happened not to be seen may be as heavy as the heaviest case
    unseen = sample.weight.max() ** 2 - float(weight @ weight) / n_seen
    n = weight.sum() ** 2 / (squares + max(unseen, 0.0))
    full, grouped = stdtrit(np.maximum(np.array([n_seen, effective_size(of_cluster)]) - 1, 1.0), 0.975)
    low, high = binomial_interval(np.array([value]), np.array([min(n * (full / grouped) ** 2, n_seen)]))
    return float(low[0]), float(high[0])


def net_benefit(
    label_counts: npt.ArrayLike,
    scores: npt.ArrayLike,
    capacity: float,
    threshold: float,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Net benefit per case: mean of s [φ̂ − (1 − φ̂) t/(1 − t)].

    A caught disagreement counts 1, a second read that agrees −t/(1 − t), t
    the threshold (Vickers and Elkin 2006). Rules are compared at one
    capacity, the share of cases sent.

    Raises:
        ValueError: bad shapes, or a threshold or capacity out of range.
    """
    if not (0 < threshold < 1 and 0 <= capacity <= 1):
        raise ValueError(f"threshold must lie in (0, 1) and capacity in [0, 1], got {threshold} and {capacity}")
    ranked = _Ranked.of(label_counts, scores, sample_weight, cluster)
    return to_estimate(_benefit(ranked, capacity, threshold), ranked.sample)


def _benefit(ranked: _Ranked, capacity: float, threshold: float) -> Replicates:
    worth = ranked.observed - (1 - ranked.observed) * threshold / (1 - threshold)
    sent, at_threshold = ranked.sent(capacity)
    marginal = at_threshold - (1 - at_threshold) * threshold / (1 - threshold)
    value = mean_replicates(sent * worth, ranked.sample)
    spread = mean_replicates(sent * (worth - marginal), ranked.sample)
    return Replicates(value.value, spread.without + (value.value - spread.value))


def net_benefit_difference(
    label_counts: npt.ArrayLike,
    scores: npt.ArrayLike,
    other_scores: npt.ArrayLike,
    capacity: float,
    threshold: float,
    *,
    sample_weight: npt.ArrayLike | None = None,
    cluster: npt.ArrayLike | None = None,
) -> Estimate:
    """Net benefit of one score less that of another, paired."""
    same_rows(scores=scores, other_scores=other_scores)
    first = _Ranked.of(label_counts, scores, sample_weight, cluster)
    second = _Ranked.of(label_counts, other_scores, sample_weight, cluster)
    difference = _benefit(first, capacity, threshold) - _benefit(second, capacity, threshold)
    return to_estimate(difference, first.sample)
