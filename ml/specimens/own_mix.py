"""Own mix of a specimen: a Gibbs sampler over its class mix and the kind of each of its cells.

π ~ Dir(κ m), z_i | π ∝ f_i ∘ π / m, π | z ~ Dir(κ m + counts(z)). The kind z_i tilts the prediction,
q_i | z_i ~ Dir(α_i f_i + e_{z_i}): which kind of cell was sampled, never what experts answer about one cell. Of a
mixture of Dirichlets the same is exact: the kind follows the mean, the member s has probability w_s f_sz given it.

Sources: Saerens, Latinne and Decaestecker 2002 (label shift by EM), here with the posterior of π; convergence,
Gelman and Rubin 1992 with split chains.
"""

from dataclasses import dataclass
from types import EllipsisType

import numpy as np
import numpy.typing as npt

from ml.specimens.cells import Members
from ml.util.arrays import FloatArray, IntArray

CHAINS, SWEEPS, KEPT = 50, 60, 20
#: Sweeps in all after which chains that disagree are not resolved; they are doubled until then.
MOST_SWEEPS = 960
#: Cells below which the mix of the training laboratory is kept.
FEWEST_FOR_OWN_MIX = 20
# draws of Dir(α f) that the draws of one member share, in turn: it does not depend on the kind
_POOL = 500
# shapes below are drawn as U^(1/a), with the exact mean and a variance within 2.5 %
_SMALL_SHAPE = 0.05
# draws of the weights of cells for each draw of q: they are the most of the patient's variance, and cheap
_WEIGHTINGS = 4
# cells at once, which bounds the memory
_BLOCK = 256


@dataclass(frozen=True)
class MixDraws:
    """Draws of T sweeps of C chains, in canonical order."""

    kinds: npt.NDArray[np.int8]  # (T, C, n) class number z of each cell
    ratios: FloatArray  # (T, C, K) π / m
    draw_of_chain: npt.NDArray[np.intp]  # (C,) draw of the annotators' matrices that a chain uses


def sample_own_mix(
    mean: FloatArray,
    mix: FloatArray,
    kappa: float,
    rng: np.random.Generator,
    *,
    own: bool = True,
    chains: int = CHAINS,
    sweeps: int = SWEEPS,
    every: int = 1,
    begin: FloatArray | None = None,
) -> MixDraws:
    """Draw mixes and kinds of cells with means f (B, n, K); of the last sweeps one in ``every`` is kept.

    Chains begin at π / m (C, K), by default drawn from the prior; without ``own`` π stays m.
    """
    n_draws, n_cells, n_classes = mean.shape
    draw_of_chain = np.arange(chains) % n_draws
    by_class = np.ascontiguousarray(mean.transpose(2, 0, 1)[:, draw_of_chain if n_draws > 1 else slice(None)])
    kinds, ratios = np.empty((KEPT, chains, n_cells), dtype=np.int8), np.ones((KEPT, chains, n_classes))
    offsets = n_classes * np.arange(chains)[:, None]
    if begin is None:
        begin = _dirichlet(rng, np.broadcast_to(kappa * mix, (chains, n_classes))) / mix
    ratio = begin if own else ratios[0]
    for left in range(sweeps if own else KEPT * every, 0, -1):
        weights = [ratio[:, k, None] * by_class[k] for k in range(n_classes)]
        level = rng.random((chains, n_cells)) * sum(weights)
        kind, below = np.zeros((chains, n_cells), dtype=np.int8), np.zeros((chains, n_cells))
        for weight in weights[:-1]:
            below += weight
            kind += level >= below
        if left <= KEPT * every:
            kinds[-((left - 1) // every) - 1], ratios[-((left - 1) // every) - 1] = kind, ratio
        if own:
            counts = np.bincount((kind + offsets).ravel(), minlength=chains * n_classes).reshape(chains, n_classes)
            ratio = _dirichlet(rng, kappa * mix + counts) / mix
    return MixDraws(kinds, ratios, draw_of_chain)


@dataclass(frozen=True)
class QSums:
    """Sums over the cells of each draw of q, by group, and R draws of weights W ~ Dir(κ, 1, …, 1) for each."""

    total: FloatArray  # (G, T, C) Σ q_ig
    squares: FloatArray  # (G, T, C) Σ q_ig²
    weighted: FloatArray  # (G, R, T, C) Σ W_i q_ig / (1 − W_0)
    outside: FloatArray  # (R, T, C) W_0, the weight of cells that were not sampled
    elsewhere: FloatArray  # (G, R, T, C) q_0g, the share among those, q_0 ~ Dir(κ m)

    def of_group(self, group: int) -> "QSums":
        """Sums of one group, without the axis of groups."""
        by_group = (self.total[group], self.squares[group], self.weighted[group])
        return QSums(*by_group, self.outside, self.elsewhere[group])


def sum_expert_shares(
    members: Members, draws: MixDraws, membership: IntArray, mix: FloatArray, kappa: float, rng: np.random.Generator
) -> QSums:
    """Draw q of every cell given its kind, and add up by group; ``membership`` (K,) numbers each class's.

    q = B e_z + (1 − B) p with p ~ Dir(α f), B ~ Beta(1, α), which is Dir(α f + e_z).
    """
    n_groups = int(membership.max()) + 1
    to_group = np.eye(n_groups)[membership]
    shape = draws.kinds.shape[:2]
    total, squares = np.zeros((n_groups, *shape)), np.zeros((n_groups, *shape))
    weighted, mass = np.zeros((n_groups, _WEIGHTINGS, *shape)), np.zeros((_WEIGHTINGS, *shape))
    for start in range(0, draws.kinds.shape[2], _BLOCK):
        cells = slice(start, start + _BLOCK)
        kinds = draws.kinds[:, :, cells]
        p, turns, alpha = _dirichlet_parts(members, draws, cells, to_group, rng)
        kept = np.exp(-rng.standard_exponential(kinds.shape) / alpha)
        weight = rng.standard_exponential((_WEIGHTINGS, *kinds.shape))
        mass += weight.sum(axis=-1)
        group = membership.astype(np.int8)[kinds]
        for g in range(n_groups):
            q = kept * p[g][turns]
            np.add(q, 1 - kept, out=q, where=group == g)
            total[g] += q.sum(axis=2)
            squares[g] += np.einsum("tcn,tcn->tc", q, q)
            weighted[g] += np.einsum("tcn,rtcn->rtc", q, weight)
    outside = rng.standard_gamma(kappa, mass.shape)
    elsewhere = _dirichlet(rng, np.broadcast_to(kappa * (mix @ to_group), (*mass.shape, n_groups)))
    return QSums(total, squares, weighted / mass, outside / (outside + mass), np.moveaxis(elsewhere, -1, 0))


def _dirichlet_parts(
    members: Members, draws: MixDraws, cells: slice, to_group: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, IntArray | EllipsisType, FloatArray]:
    """Draws p ~ Dir(α f) by group (G, R, n), their turns (T, C), and α of the member that each draw of q picks."""
    kinds = draws.kinds[:, :, cells]
    n_sweeps, n_chains, n_cells = kinds.shape
    probs, alpha = members.class_probs[:, :, cells], members.concentration[:, :, cells]
    n_draws, n_members = probs.shape[:2]
    if n_draws == n_members == 1:
        mean = probs[0, 0] @ to_group
        pool = _dirichlet(rng, np.broadcast_to(alpha[0, 0, :, None] * mean, (_POOL, *mean.shape)), mean)
        # no chain meets a draw twice, which would look like chains that disagree
        turns = (np.arange(n_chains) * n_sweeps + np.arange(n_sweeps)[:, None]) % _POOL
        return np.ascontiguousarray(pool.transpose(2, 0, 1)), turns, alpha[0, 0]
    joint = np.cumsum(members.weights[:, :, cells, None] * probs, axis=1)
    draw, cell = draws.draw_of_chain[:, None], np.arange(n_cells)
    level = rng.random(kinds.shape) * joint[draw, -1, cell, kinds]
    member = np.zeros(kinds.shape, dtype=np.intp)
    for s in range(n_members - 1):
        member += level >= joint[draw, s, cell, kinds]
    mean, alpha = (probs @ to_group)[draw, member, cell], alpha[draw, member, cell]
    return np.moveaxis(_dirichlet(rng, alpha[..., None] * mean, mean), -1, 0), ..., alpha


def _dirichlet(rng: np.random.Generator, shapes: FloatArray, fallback: FloatArray | float = 0.0) -> FloatArray:
    """Dirichlet draws over the last axis; ``fallback`` where every gamma is below the smallest float.

    Small shapes are drawn as E (1 + a) U^(1/a), E ~ Exp(1), which takes a tenth of the time.
    """
    small = shapes < _SMALL_SHAPE
    exponents = rng.standard_exponential(shapes.shape)
    seen = small & (exponents < 100 * shapes)
    gammas = np.zeros(shapes.shape)
    gammas[~small] = rng.standard_gamma(shapes[~small])
    a = shapes[seen]
    gammas[seen] = rng.standard_exponential(a.size) * (1 + a) * np.exp(-exponents[seen] / a)
    total = gammas.sum(axis=-1, keepdims=True)
    return np.where(total > 0, gammas / np.where(total > 0, total, 1.0), fallback)


def split_r_hat(draws: FloatArray) -> float:
    """Split R̂ of draws (T, C): √ of the variance of all over that within half chains."""
    half = len(draws) // 2
    halves = np.concatenate([draws[:half], draws[half : 2 * half]], axis=1)
    within = float(halves.var(axis=0, ddof=1).mean())
    between = float(halves.mean(axis=0).var(ddof=1))
    if within + between < 1e-20:
        return 1.0
    return float(np.sqrt((half - 1) / half + between / max(within, 1e-300)))


def effective_number(draws: FloatArray) -> float:
    """Independent draws that would give the mean of draws (T, C) as exactly, from the spread of the chains' means."""
    spread = float(draws.mean(axis=0).var(ddof=1))
    return float(min(draws.size, draws.shape[1] * draws.var() / spread)) if spread > 1e-20 else float(draws.size)
