"""Whether the mix of classes has changed: patients who differ are no change."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from ml.metrics.homogeneity_test import ClassMixChange, mix_change_of_patients
from ml.util.arrays import FloatArray, IntArray

SHARE = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
N_REFERENCE = 2000


def sums_of_patients(frequencies: FloatArray, cluster: Any) -> FloatArray:
    """Sums (G, K) of the label frequencies (N, K) of each patient's cases."""
    number = np.unique(cluster, return_inverse=True)[1]
    return np.stack([np.bincount(number, column) for column in frequencies.T], axis=1)


def change_of(frequencies: FloatArray, cluster: Any, share: FloatArray, n_reference: float) -> ClassMixChange:
    """The change of cases with label frequencies (N, K) of patients (N,)."""
    return mix_change_of_patients(sums_of_patients(frequencies, cluster), share, n_reference)


def cells(rng: np.random.Generator, n: int, per_patient: int, share: FloatArray = SHARE) -> tuple[FloatArray, IntArray]:
    """One label per cell (N, K) of patients whose own mixes spread around a share."""
    patients = n // per_patient
    mixes = rng.dirichlet(4 * share, patients)
    cluster = np.repeat(np.arange(patients), per_patient)
    labels = (rng.random(n)[:, None] > mixes[cluster].cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.eye(len(share))[labels], cluster


def reference(rng: np.random.Generator) -> FloatArray:
    return np.asarray(cells(rng, N_REFERENCE, 5)[0].mean(axis=0))


def test_of_independent_cells_it_is_pearsons_test() -> None:
    """The two-sample χ² of the same counts, up to the estimate of the variance."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        counts = rng.multinomial(5000, SHARE)
        frequencies = np.repeat(np.eye(6), counts, axis=0)
        before = rng.multinomial(5000, SHARE)
        change = change_of(frequencies, np.arange(5000), before / 5000, 5000)
        expected = chi2_contingency(np.stack([counts, before]), correction=False).pvalue
        assert change.p_value == pytest.approx(expected, abs=0.01)
        assert change.distance == pytest.approx(np.abs(counts - before).sum() / 10_000)


def test_order_of_classes_and_names_of_patients_change_nothing() -> None:
    rng = np.random.default_rng(4)
    frequencies, cluster = cells(rng, 300, 5)
    first = change_of(frequencies, cluster, SHARE, 500)
    order, rows = rng.permutation(6), rng.permutation(300)
    names = np.array([f"patient {number}" for number in cluster])
    again = change_of(frequencies[rows][:, order], names[rows], SHARE[order], 500)
    assert (again.distance, again.p_value) == pytest.approx((first.distance, first.p_value))


def test_patients_who_differ_are_no_drift_and_a_shift_is() -> None:
    rng = np.random.default_rng(5)
    found = [change_of(*cells(rng, 1000, 5), reference(rng), N_REFERENCE) for _ in range(400)]
    chances = np.array([change.p_value for change in found], dtype=np.float64)
    assert 0.03 < (chances < 0.05).mean() < 0.08
    assert np.mean([change.design_effect for change in found]) == pytest.approx(1.8, abs=0.1)  # 1 + 4 · ICC, ICC 1/5
    moved = SHARE + np.array([-0.1, 0.1, 0, 0, 0, 0])
    assert np.mean([change_of(*cells(rng, 1000, 1, moved), SHARE, 1e9).p_value < 3e-4 for _ in range(100)]) > 0.9


def test_few_patients_give_no_chance() -> None:
    change = change_of(np.eye(6)[[0, 1, 1]], np.zeros(3), SHARE, 100)
    assert (change.p_value, change.n_clusters) == (None, 1)
