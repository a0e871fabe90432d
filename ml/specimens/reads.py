"""Worth of one more blinded read of each cell of a specimen.

A read moves the mean of the group's share by a random amount of variance v_i = Σ_l C_il² / p_il,
C_il = E_π[Cov(q_ig, q_il | π)]/n + Cov_π(S̄, μ_il): through its own cell, and through the specimen's mix.
"""

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from ml.dataframes import refuse_row_names
from ml.specimens.cells import Members, Threshold
from ml.specimens.own_mix import MixDraws
from ml.util.arrays import FloatArray, IntArray

# of the kept sweeps every so many serve the moments, which need no more
_THINNED = 4
# of a batch: normal, with variance one
_MOVES = (-1.61, -0.87, -0.4, 0.0, 0.4, 0.87, 1.61)
# share of a variance that a read leaves at least
_LEFT = 1e-3


def value_reads(
    members: Members, draws: MixDraws, membership: IntArray, n_groups: int
) -> tuple[FloatArray, FloatArray]:
    """Variance v (n, G) of the slide share's mean after one more read of each cell, and means (n, K) of q.

    Members of several draws of the annotators' matrices count as one mixture.
    """
    pooled, n_cells = members.pooled(), draws.kinds.shape[2]
    probs, alpha, mean = pooled.class_probs[0], pooled.concentration[0, ..., None], pooled.mean[0]
    ratios = draws.ratios[::_THINNED].reshape(-1, membership.size)
    kinds = mean[:, None] * ratios
    kinds /= kinds.sum(axis=2, keepdims=True)  # (n, D, K)
    of_kind = pooled.weights[0, ..., None] * probs / np.maximum(mean, 1e-300)  # P(member | kind) (S, n, K)
    # row k of a cell: E[q | kind k] = Σ_s P(s | k) (α_s f_s + e_k) / (α_s + 1)
    part, identity = of_kind / (alpha + 1), np.eye(membership.size)
    given_kind = np.einsum("snk,snl->nkl", part * alpha, probs) + identity * part.sum(axis=0)[:, :, None]
    means = kinds @ given_kind  # μ given each mix (n, D, K)
    products = _products(probs, alpha, of_kind * kinds.mean(axis=1)) - means.transpose(0, 2, 1) @ means / len(ratios)
    to_group = (membership[:, None] == np.arange(n_groups)).astype(np.float64)
    share = (means @ to_group).mean(axis=0)
    covariance = to_group.T @ products / n_cells + (share - share.mean(axis=0)).T @ means / len(ratios)
    class_probs = means.mean(axis=1)
    return (covariance**2 / np.maximum(class_probs, 1e-300)[:, None]).sum(axis=2), class_probs


def _products(probs: FloatArray, alpha: FloatArray, joint: FloatArray) -> FloatArray:
    """E[q_k q_l] (n, K, K) of Dir(α f + e_z), over P(member, kind z) (S, n, K)."""
    weight, scale = joint.sum(axis=2, keepdims=True), 1 / ((alpha + 1) * (alpha + 2))
    crossed = np.einsum("snk,snl->nkl", scale * alpha * joint, probs)
    both = np.einsum("snk,snl->nkl", scale * alpha**2 * weight * probs, probs)
    diagonal = (scale * (2 * joint + alpha * weight * probs)).sum(axis=0)
    return np.asarray(both + crossed + crossed.transpose(0, 2, 1) + np.eye(probs.shape[2]) * diagonal[:, :, None])


def value_for_decision(
    theta: FloatArray, moved: FloatArray, threshold: Threshold, moves: tuple[float, ...] = (-1.0, 1.0)
) -> FloatArray:
    """Expected fall (n,) of the loss of the best decision by reads that give the mean variances v (n,).

    The mean moves by ``moves`` times √v, each as likely, and the rest of the spread of the draws stays around it.
    """
    ordered, mean, variance = np.sort(theta.ravel()), theta.mean(), theta.var()
    if not variance > 0:
        return np.zeros(moved.shape)
    v = np.minimum(moved, (1 - _LEFT) * variance)
    shrunk = np.sqrt(1 - v / variance)
    sides = np.array([mean + (threshold.at - mean - move * np.sqrt(v)) / shrunk for move in moves])
    above = 1 - np.searchsorted(ordered, sides) / ordered.size
    return np.asarray(expected_loss(above.mean(axis=0), threshold) - expected_loss(above, threshold).mean(axis=0))


def value_per_read(theta: FloatArray, moved: FloatArray, readable: float, threshold: Threshold) -> FloatArray:
    """Expected fall (n,) of the loss per read, in the best batch that has a cell and all that move the mean more.

    One read alone seldom changes a decision, even where ten would (Frazier and Powell 2010). Reads of a batch move the
    mean by variances that add up to what is ``readable`` at most.
    """
    order = np.argsort(-moved, kind="stable")
    together = np.minimum(np.cumsum(moved[order]), readable)
    per_read = value_for_decision(theta, together, threshold, _MOVES) / np.arange(1, len(moved) + 1)
    best = np.empty(len(moved))
    best[order] = np.maximum.accumulate(per_read[::-1])[::-1]
    return best


def expected_loss(above: npt.ArrayLike, threshold: Threshold) -> FloatArray:
    """Loss of the better decision at P(share ≥ t), in costs of a false alarm."""
    p = np.asarray(above, dtype=np.float64)
    return np.minimum(threshold.miss_cost * p, 1 - p)


def reads_are_settled(theta: FloatArray, readable: float, threshold: Threshold, delta: float = 0.02) -> bool:
    """Whether all further reads together change the side of the decision with less than δ.

    Reads remove at most the parts of the variance that cells and annotators have (``readable``); the mean then moves by
    as much. The part of sampling stays: an open decision that is settled needs more cells.
    """
    mean, variance = theta.mean(), theta.var()
    if not 0 < readable < np.inf or not variance > 0:
        return True
    v = min(readable, (1 - _LEFT) * variance)
    level = np.quantile(theta, threshold.miss_cost / (1 + threshold.miss_cost))
    flip = threshold.at - mean - (level - mean) * np.sqrt(1 - v / variance)
    return bool(ndtr(-abs(flip) / np.sqrt(v)) < delta)


def choose_reads(values: FloatArray, n_reads: int, cells: tuple[str, ...], ties: FloatArray | None = None) -> list[str]:
    """Identifiers of the cells that are worth most, the best first.

    Reads chosen at once lose nearly nothing against one by one: 35 for 34 (× 10⁻⁴) after ten. Values (n,) are those of
    one group, or a sum that a policy names; ``ties`` (n,) rank cells of equal value. Cells without any value are left
    out.
    """
    refuse_row_names(values=values, ties=ties)
    others = np.zeros(len(cells)) if ties is None else ties
    ranked = sorted(range(len(cells)), key=lambda row: (-values[row], -others[row], cells[row]))
    return [cells[row] for row in ranked[:n_reads] if values[row] > 0 or others[row] > 0]
