"""What a single Dirichlet says in closed form: intervals, majority, the worth of one more label.

All functions take class probabilities f (N, K) and log concentration a (N,), of a prior or a posterior.
"""

import numpy as np
from scipy.special import betaincinv, expit, gammainc, gammaincinv, gammaln

from ml.arrays import FloatArray
from ml.distributions import DirichletCpe, gini

# Beyond these α0·f the quantile functions lose their digits and the limits are exact to more of them.
SMALL_SHAPE, LARGE_SHAPE = 1e-8, 1e12
# below this ln x the power law of the gamma distribution's lower tail is exact
_LOG_TINY = -25.0
# z of a two-sided 95 % normal interval
_Z95 = 1.959963984540054


def class_intervals(distribution: DirichletCpe) -> FloatArray:
    """Equal-tailed 95 % intervals (N, K, 2) of each class's true probability.

    The marginal of Dir(α0 f) is Beta(α0 f_k, α0 (1 − f_k)). Where a shape is below 1e-8 its limit is used,
    a coin that is 1 with probability f_k; above α0 = 1e12 the normal limit.
    """
    probs = distribution.class_probs
    log_alpha = np.clip(distribution.log_concentration, -700, 700)
    alpha = np.exp(log_alpha)[:, None]
    first, second = alpha * probs, alpha * (1 - probs)
    coin = np.minimum(first, second) < SMALL_SHAPE
    sure = np.broadcast_to(alpha > LARGE_SHAPE, probs.shape)
    safe = ~(coin | sure)
    result = np.empty((*probs.shape, 2))
    spread = np.sqrt(probs * (1 - probs) / (alpha + 1))
    for side, (level, sign) in enumerate(((0.025, -1), (0.975, 1))):
        bound = np.where(level <= 1 - probs, 0.0, 1.0)
        bound[safe] = betaincinv(first[safe], second[safe], level)
        bound[sure] = np.clip(probs + sign * _Z95 * spread, 0, 1)[sure]
        result[..., side] = bound
    return result


def expected_gain(distribution: DirichletCpe) -> FloatArray:
    """Expected fall (N,) of the squared error Σ_k (q_k − f_k)² from one more label: (1 − Σf²)/(α0 + 1)²."""
    return np.asarray(gini(distribution.class_probs) * expit(-distribution.log_concentration) ** 2)


def further_labels_expected(distribution: DirichletCpe, target_error: float) -> FloatArray:
    """Labels (N,) still needed for an expected squared error of ``target_error``: max(0, ⌈φ/τ − α0⌉).

    Raises:
        ValueError: ``target_error`` is not positive.
    """
    if not target_error > 0:
        raise ValueError(f"target_error must be positive, got {target_error}")
    alpha = np.exp(np.clip(distribution.log_concentration, -700, 700))
    needed = np.ceil(distribution.disagreement_probs / target_error - alpha)
    return np.asarray(np.maximum(0.0, needed))


def _tanh_sinh(half_width: float = 3.2, nodes: int = 161) -> tuple[FloatArray, FloatArray]:
    """Nodes and weights on (0, 1) that tolerate singularities at both ends (double exponential rule)."""
    t = np.linspace(-half_width, half_width, nodes)
    inner = np.pi * np.sinh(t)
    weights = np.pi * np.cosh(t) * expit(inner) * expit(-inner)
    return expit(inner), weights / weights.sum()


def majority_prob(distribution: DirichletCpe) -> FloatArray:
    """Probability (N,) that the leading class has the largest true probability.

    With independent gammas G_j of shapes α0 f_j it is ∫₀¹ Π_{j≠k} F_j(F_k⁻¹(u)) du, integrated in one
    dimension. Below α0 f = 1e-8 the limit is a coin, f_k; above α0 = 1e12 the leader is certain unless tied.
    """
    nodes, weights = _tanh_sinh()
    result = np.empty(len(distribution.class_probs))
    for row, (probs, a) in enumerate(zip(distribution.class_probs, distribution.log_concentration, strict=True)):
        alpha = np.exp(np.clip(a, -700, 700))
        leader = int(probs.argmax())
        if alpha * probs[leader] < SMALL_SHAPE:
            result[row] = probs[leader]
        elif alpha > LARGE_SHAPE:
            result[row] = 1.0 / np.count_nonzero(probs == probs[leader])
        else:
            shapes = np.delete(alpha * probs, leader)
            below = _share_below(shapes[shapes > 0], alpha * probs[leader], nodes)
            result[row] = min(1.0, float(weights @ below))
    return result


def _share_below(others: FloatArray, leader: float, nodes: FloatArray) -> FloatArray:
    """Probability that gammas of shapes ``others`` (J,) all lie below the leader's quantiles (nodes,).

    A gamma of a tiny shape has quantiles below the smallest float; there F(x) = x^s / Γ(s + 1) is exact to all
    digits, and its logarithm is computed instead.
    """
    quantiles = gammaincinv(leader, nodes)
    log_quantiles = (np.log(nodes) + gammaln(leader + 1)) / leader
    tiny = log_quantiles < _LOG_TINY
    direct = gammainc(others[:, None], np.where(tiny, 1.0, quantiles))
    limit = np.exp(np.minimum(0.0, others[:, None] * log_quantiles - gammaln(others + 1)[:, None]))
    return np.asarray(np.where(tiny, limit, direct).prod(axis=0))
