"""Evaluations whose weights differ join bins without a pair; everywhere else CL is the formula bin by bin."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from ml.metrics import calibration_loss, evaluate
from ml.metrics.binned import Binned
from ml.metrics.cases import select_sample
from tests.ml.test_metrics import draw

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def joined_bins(f: Floats, n_bins: int, w: Floats, g: Counts) -> Counts:
    """Bin (n, K) of each case, where bins without a pair of two clusters join the next ones below, from the top."""
    bins = np.minimum((f * n_bins).astype(int), n_bins - 1)
    for k in range(f.shape[1]):
        groups: list[list[int]] = [[]]
        for b in range(n_bins - 1, -1, -1):
            groups[-1].append(b)
            groups += [[]] if len(set(g[np.isin(bins[:, k], groups[-1]) & (w > 0)])) >= 2 else []
        left = groups.pop()
        groups = [*groups[:-1], groups[-1] + left] if groups else [left]
        for group in groups:
            bins[np.isin(bins[:, k], group), k] = group[0]
    return bins


@pytest.mark.parametrize("clustered", [False, True])
def test_evaluations_with_uneven_weights_join_bins_without_a_pair(clustered: bool) -> None:
    """CL of an evaluation is the enumeration of pairs in joined bins; with even weights, the formula bin by bin."""
    y, f = draw(8, n=40, low=1)
    rng = np.random.default_rng(8)
    w = rng.uniform(0.3, 8, 40)
    g = rng.integers(0, 12, 40) if clustered else np.arange(40)
    cluster = g if clustered else None
    joined, total = joined_bins(f, 15, w, g), 0.0
    d = y / y.sum(1, keepdims=True) - f
    for k, b in itertools.product(range(3), range(15)):
        members = np.flatnonzero(joined[:, k] == b)
        pairs = [(i, j) for i, j in itertools.permutations(members, 2) if g[i] != g[j]]
        weight = sum(w[i] * w[j] for i, j in pairs)
        if weight > 0:
            total += w[members].sum() / w.sum() * sum(w[i] * w[j] * d[i, k] * d[j, k] for i, j in pairs) / weight
    found = evaluate(y, f, sample_weight=w, cluster=cluster).metrics["CL"]
    assert found.value == pytest.approx(total, abs=1e-12)
    assert found.singleton_mass > 0
    assert found.value != pytest.approx(calibration_loss(y, f, sample_weight=w, cluster=cluster).value, abs=1e-6)
    even = evaluate(y, f, sample_weight=np.full(40, 2.0), cluster=cluster).metrics["CL"].value
    assert even == pytest.approx(calibration_loss(y, f, cluster=cluster).value, abs=1e-12)


@pytest.mark.parametrize("clustered", [False, True])
def test_what_pairs_add_to_the_error_is_their_enumeration_and_counts_once(clustered: bool) -> None:
    """Of an estimate Σu_g + Σψ_gh the jackknife's variance has that of ψ twice, and CL_φ's error has it once."""
    rng = np.random.default_rng(4)
    dpe, differ, w = rng.uniform(0, 1, 60), rng.integers(0, 2, 60).astype(float), rng.uniform(0.3, 8, 60)
    # patients of neighbours, whose cells are in one bin
    dpe.sort()
    g = np.arange(60) // 3 if clustered else np.arange(60)
    dpe = np.repeat(dpe[::3], 3) if clustered else dpe
    sample = select_sample(np.ones(60, dtype=bool), w, g if clustered else None)
    binned = Binned.of(differ[:, None], dpe[:, None], sample, 4, "uniform", "pair", joining=True)
    replicates = binned.replicates("pair")
    moved = replicates.value - replicates.without
    curvature, variance = 0.0, 0.0
    for b in range(4):
        rows = np.flatnonzero(np.minimum((dpe * 4).astype(int), 3) == b)
        mean = np.average(differ[rows] - dpe[rows], weights=w[rows])
        above = {h: (w * (differ - dpe - mean))[rows[g[rows] == h]].sum() for h in set(g[rows])}
        pairs = sum(w[i] * w[j] for i, j in itertools.permutations(rows, 2) if g[i] != g[j])
        for h, k in itertools.permutations(above, 2):
            psi = 2 * w[rows].sum() / (w.sum() * pairs) * above[h] * above[k]
            curvature += moved[h] * moved[k] * psi
            variance += psi**2 / 2
    found = binned.quadratic_part("pair", replicates)
    assert found.curvature == pytest.approx(curvature, rel=1e-9)
    assert found.variance == pytest.approx(variance, rel=1e-9)
    jackknife = replicates.standard_error()
    assert jackknife is not None
    assert binned.estimate("pair").se == pytest.approx(max(jackknife**2 - variance, variance) ** 0.5, rel=1e-9)
    assert variance > 0.05 * jackknife**2
