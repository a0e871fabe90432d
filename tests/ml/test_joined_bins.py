"""Evaluations whose weights differ join bins without a pair; everywhere else CL is the formula bin by bin."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from ml.metrics import calibration_loss, evaluate
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
    found = evaluate(y, f, weights=w, cluster=cluster).metrics["CL"]
    assert found.value == pytest.approx(total, abs=1e-12)
    assert found.singleton_mass > 0
    assert found.value != pytest.approx(calibration_loss(y, f, sample_weight=w, cluster=cluster).value, abs=1e-6)
    even = evaluate(y, f, weights=np.full(40, 2.0), cluster=cluster).metrics["CL"].value
    assert even == pytest.approx(calibration_loss(y, f, cluster=cluster).value, abs=1e-12)
