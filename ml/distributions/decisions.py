"""Decision quantities of predictive distributions.

A single Dirichlet has closed forms. A mixture has its mixture CDF, its members' weighted probabilities, and for
the labels still needed the single Dirichlet with the same first two moments. Points are members without spread.
"""

from typing import Literal

import numpy as np
from scipy.special import betainc, betaincinv, expit, gammainc, gammaincinv, gammaln, ndtr

from ml.distributions.families import (
    DirichletCpe,
    PredictiveDistribution,
    has_concentration,
    members_of,
    moment_matched,
)
from ml.util.arrays import FloatArray, gini

# Beyond these α0·f the quantile functions lose their digits and the limits are exact to more of them.
SMALL_SHAPE, LARGE_SHAPE = 1e-8, 1e12
# below this ln x the power law of the gamma distribution's lower tail is exact
_LOG_TINY = -25.0
# z of a two-sided 95 % normal interval
_Z95 = 1.959963984540054
_TAILS = (0.025, 0.975)
_TIGHT = {"xatol": 1e-10, "xrtol": 1e-12, "fatol": 0.0}


def _members(distribution: PredictiveDistribution) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Class probabilities (S, N, K), concentrations and weights (S, N)."""
    probs, a, log_weights = members_of(distribution)
    return probs, np.exp(np.clip(a, -700, 700)) if has_concentration(distribution) else a, np.exp(log_weights)


def class_intervals(distribution: PredictiveDistribution) -> FloatArray:
    """Equal-tailed 95 % intervals (N, K, 2) of each class's true probability.

    The marginal of Dir(α0 f) is Beta(α0 f_k, α0 (1 − f_k)). Where a shape is below 1e-8 its limit is used,
    a coin that is 1 with probability f_k; above α0 = 1e12 the normal limit. A mixture's ends are the smallest
    x at which its CDF reaches the level.
    """
    if not isinstance(distribution, DirichletCpe):
        return _mixture_intervals(distribution)
    probs = distribution.class_probs
    log_alpha = np.clip(distribution.log_concentration, -700, 700)
    alpha = np.exp(log_alpha)[:, None]
    first, second = alpha * probs, alpha * (1 - probs)
    coin = np.minimum(first, second) < SMALL_SHAPE
    sure = np.broadcast_to(alpha > LARGE_SHAPE, probs.shape)
    safe = ~(coin | sure)
    result = np.empty((*probs.shape, 2))
    spread = np.sqrt(probs * (1 - probs) / (alpha + 1))
    for side, (level, sign) in enumerate(zip(_TAILS, (-1, 1), strict=True)):
        bound = np.where(level <= 1 - probs, 0.0, 1.0)
        bound[safe] = betaincinv(first[safe], second[safe], level)
        bound[sure] = np.clip(probs + sign * _Z95 * spread, 0, 1)[sure]
        result[..., side] = bound
    return result


def _mixture_intervals(distribution: PredictiveDistribution) -> FloatArray:
    from scipy.optimize import elementwise  # slow to load

    probs, alpha, weights = _members(distribution)
    n_classes = probs.shape[2]
    # one row per (case, class), one column per member
    by_cell = np.moveaxis(probs, 0, -1).reshape(-1, len(probs))
    alpha, weights = (np.repeat(values.T, n_classes, axis=0) for values in (alpha, weights))
    if (alpha > LARGE_SHAPE).all():  # points: no root to find
        order = np.argsort(by_cell, axis=1)
        reached = np.take_along_axis(weights, order, axis=1).cumsum(axis=1)
        at = [(reached < level * (1 - 1e-12)).sum(axis=1, keepdims=True) for level in _TAILS]
        ends = [np.take_along_axis(np.take_along_axis(by_cell, order, axis=1), place, axis=1) for place in at]
        return np.concatenate(ends, axis=1).reshape(-1, n_classes, 2)

    def above(x: FloatArray, cell: FloatArray, level: FloatArray) -> FloatArray:
        rows = cell.astype(np.intp)
        shares = weights[rows] * _marginal_cdf(x[..., None], by_cell[rows], alpha[rows])
        return np.asarray(shares.sum(axis=-1) - level)

    cells = np.repeat(np.arange(len(by_cell), dtype=np.float64), len(_TAILS))
    level = np.tile(np.array(_TAILS), len(by_cell))
    at_zero = above(np.zeros(cells.shape), cells, level) >= 0
    # a root finder needs a change of sign, and below zero the CDF is zero
    low = np.where(at_zero, -1.0, 0.0)
    root = elementwise.find_root(above, (low, np.ones(cells.shape)), args=(cells, level), tolerances=_TIGHT)
    return np.where(at_zero, 0.0, np.clip(root.x, 0.0, 1.0)).reshape(-1, n_classes, 2)


def _marginal_cdf(x: FloatArray, probs: FloatArray, alpha: FloatArray) -> FloatArray:
    """CDF of Beta(α0 f, α0 (1 − f)), with its limits."""
    finite = np.minimum(alpha, LARGE_SHAPE)
    first, second = finite * probs, finite * (1 - probs)
    coin = np.minimum(first, second) < SMALL_SHAPE
    inside = np.clip(x, 0.0, 1.0)
    beta = betainc(np.where(coin, 1.0, first), np.where(coin, 1.0, second), inside)
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (x - probs) / np.sqrt(probs * (1 - probs) / (alpha + 1))
    # 0 / 0 at a point without spread, where the CDF has reached one
    normal = np.where(np.isnan(scaled), 1.0, ndtr(scaled))
    cdf = np.where(alpha > LARGE_SHAPE, normal, np.where(coin, np.where(x < 1, 1 - probs, 1.0), beta))
    return np.asarray(np.where(x < 0, 0.0, np.where(x >= 1, 1.0, cdf)), dtype=np.float64)


def expected_gain(distribution: PredictiveDistribution) -> FloatArray:
    """Expected fall (N,) of the squared error Σ_k (q_k − f_k)² from one more label.

    Σ_c f_c |E[q | c] − f|², the variance of the posterior mean; for one Dirichlet (1 − Σf²)/(α0 + 1)².
    """
    probs = distribution.class_probs
    if isinstance(distribution, DirichletCpe):
        return np.asarray(gini(probs) * expit(-distribution.log_concentration) ** 2)
    gain = np.zeros(len(probs))
    for label in range(probs.shape[1]):
        label_counts = np.zeros(probs.shape, dtype=np.int64)
        # a label that no member thinks possible has no posterior, and no weight
        label_counts[probs[:, label] > 0, label] = 1
        gain += probs[:, label] * ((distribution.posterior(label_counts).class_probs - probs) ** 2).sum(axis=1)
    return gain


def further_labels_expected(distribution: PredictiveDistribution, target_error: float) -> FloatArray:
    """Labels (N,) still needed: max(0, ⌈φ/τ − α0⌉).

    For a mixture α0 is that of the Dirichlet with its mean and DPE, whose error φ/(α0 + m) after m labels is the
    best of all estimates that are linear in the labels: the mixture itself needs no more. Infinite where labels
    cannot help, since the distribution has no spread.

    Raises:
        ValueError: ``target_error`` is not positive.
    """
    if not target_error > 0:
        raise ValueError(f"target_error must be positive, got {target_error}")
    single = distribution if isinstance(distribution, DirichletCpe) else moment_matched(distribution)
    alpha = np.exp(np.clip(single.log_concentration, -700, 700))
    needed = np.ceil(single.own_disagreement_probs / target_error - alpha)
    return np.asarray(np.maximum(0.0, needed))


def majority_prob(distribution: PredictiveDistribution) -> FloatArray:
    """Probability (N,) that the leading class is the largest.

    With independent gammas G_j of shapes α0 f_j it is ∫₀¹ Π_{j≠k} F_j(F_k⁻¹(u)) du, integrated in one
    dimension. Below α0 f = 1e-8 the limit is a coin, f_k; above α0 = 1e12 the leader is certain unless tied.
    A mixture's is the weighted mean of its members'.
    """
    probs, alpha, weights = _members(distribution)
    leaders = distribution.class_probs.argmax(axis=1)
    result = np.zeros(len(leaders))
    # nodes and weights of the double exponential rule
    t = np.linspace(-3.2, 3.2, 161)
    inner = np.pi * np.sinh(t)
    density = np.pi * np.cosh(t) * expit(inner) * expit(-inner)
    rule = expit(inner), density / density.sum()
    for member in range(len(probs)):
        for row, leader in enumerate(leaders):
            share = _prob_largest(probs[member, row], float(alpha[member, row]), int(leader), rule)
            result[row] += weights[member, row] * share
    return np.minimum(result, 1.0)


def consensus_probs(distribution: PredictiveDistribution, of: Literal[2, 5] = 5) -> FloatArray:
    """Probabilities (N, K) that at least four of five further annotators, or both of two, name each class.

    P(kⁿ), that the next n all name k, is Π_{i<n} (α0 f_k + i)/(α0 + i); that at least four of five do has the
    probability 5 P(k⁴) − 4 P(k⁵). They name one class at most: 1 − Σ_k is the probability of a split, which of two
    annotators is the disagreement probability.

    >>> consensus_probs(DirichletCpe([[0.5, 0.5]], [0.0])).round(3)
    array([[0.383, 0.383]])
    """
    probs, a, log_weights = members_of(distribution)
    runs = [probs]
    for n in range(1, of):
        apart = (a - np.log(n))[..., None]
        runs.append(runs[-1] * (expit(apart) * probs + expit(-apart)))
    named = runs[1] if of == 2 else 5 * runs[3] - 4 * runs[4]
    return np.asarray((np.exp(log_weights)[..., None] * named).sum(axis=0))


def _prob_largest(probs: FloatArray, alpha: float, leader: int, rule: tuple[FloatArray, FloatArray]) -> float:
    nodes, weights = rule
    if alpha > LARGE_SHAPE:
        best = probs.max()
        return 1.0 / np.count_nonzero(probs == best) if probs[leader] == best else 0.0
    if alpha * probs[leader] < SMALL_SHAPE:
        return float(probs[leader])
    shapes = np.delete(alpha * probs, leader)
    # a gamma of subnormal shape lies at 0, contrary to gammainc
    below = _share_below(shapes[shapes >= np.finfo(np.float64).tiny], alpha * probs[leader], nodes)
    return min(1.0, float(weights @ below))


def _share_below(others: FloatArray, leader: float, nodes: FloatArray) -> FloatArray:
    """Probability that gammas lie below the leader's quantiles."""
    # a gamma of a tiny shape has quantiles below the smallest float;
    # there F(x) = x^s / Γ(s + 1) is exact, and its logarithm is computed
    quantiles = gammaincinv(leader, nodes)
    log_quantiles = (np.log(nodes) + gammaln(leader + 1)) / leader
    tiny = log_quantiles < _LOG_TINY
    direct = gammainc(others[:, None], np.where(tiny, 1.0, quantiles))
    limit = np.exp(np.minimum(0.0, others[:, None] * log_quantiles - gammaln(others + 1)[:, None]))
    return np.asarray(np.where(tiny, limit, direct).prod(axis=0))
