"""Intervals that know of skewness, of few and unequal clusters and of ranges: laws, and coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, t

from ml.metrics import disagreement_loss, epistemic_loss, expected_squared_loss, triage_recall
from ml.metrics.jackknife import SHARE, Bounds, degrees_of_freedom, skewed_interval, skewness


def spread(seed: int, count: int) -> tuple[np.ndarray, float]:
    """What clusters add to an error, skewed, and its standard error."""
    influence = np.random.default_rng(seed).standard_gamma(0.7, count)
    influence -= influence.mean()
    return influence, float(np.sqrt((influence**2).sum()))


@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.floats(0.05, 0.95), st.floats(0.01, 0.3))
def test_a_mirrored_quantity_has_the_mirrored_interval(seed: int, count: int, share: float, size: float) -> None:
    influence, se = spread(seed, count)
    influence, se = influence * size / se, size
    low, high = skewed_interval(share, se, influence, count)
    other_low, other_high = skewed_interval(-share, se, -influence, count)
    np.testing.assert_allclose([other_low, other_high], [-high, -low], atol=1e-9)
    low, high = skewed_interval(share, se, influence, count, SHARE)
    other_low, other_high = skewed_interval(1 - share, se, -influence, count, SHARE)
    np.testing.assert_allclose([other_low, other_high], [1 - high, 1 - low], atol=1e-9)
    assert 0 <= low <= share <= high <= 1 or abs(skewness(influence)) > 0.3


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 50))
def test_the_unit_of_a_quantity_does_not_matter(seed: int, unit: float) -> None:
    influence, se = spread(seed, 30)
    for bounds, scaled in ((None, None), (Bounds(-9.0, 40.0), Bounds(-9.0 * unit, 40.0 * unit))):
        expected = np.array(skewed_interval(3.0, se, influence, 30, bounds)) * unit
        found = skewed_interval(3.0 * unit, se * unit, influence * unit, 30, scaled)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("count", [2, 10, 400])
def test_clusters_that_are_alike_and_not_skewed_give_students_t(count: int) -> None:
    influence = np.resize([1.0, -1.0], count) / count
    se = float(np.sqrt((influence**2).sum()))
    half = t.ppf(0.975, count - 1) * se
    np.testing.assert_allclose(skewed_interval(0.3, se, influence, count), [0.3 - half, 0.3 + half], rtol=1e-12)


def test_degrees_of_freedom_are_those_of_the_variance() -> None:
    """2 V²/Var(V) of variances that were drawn again and again, where chance decides which clusters matter."""
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 1, (2000, 1000)) * np.where(rng.random((2000, 1000)) < 0.05, 10, 0.3)
    variances = (draws**2).sum(axis=1)
    true = 2 * variances.mean() ** 2 / variances.var()
    assert np.median([degrees_of_freedom(row) for row in draws]) == pytest.approx(true, rel=0.1)
    assert true < 50
    alike = [degrees_of_freedom(rng.normal(0, 1, 400)) for _ in range(100)]
    assert np.median(alike) == pytest.approx(399, rel=0.05)
    assert degrees_of_freedom(np.array([1.0, *np.zeros(99)])) == pytest.approx(2, rel=0.03)


def test_the_transformed_ends_are_quantiles() -> None:
    """The cubic of Hall at both ends is what Student's t says."""
    influence, se = spread(3, 50)
    a, quantile = skewness(influence), t.ppf(0.975, degrees_of_freedom(influence))
    low, high = skewed_interval(2.0, se, influence, 50)
    for end, sign in ((low, 1), (high, -1)):
        studentised = (2.0 - end) / se
        cubic = studentised + a * studentised**2 / 3 + a**2 * studentised**3 / 27 + a / 6
        assert cubic == pytest.approx(sign * quantile, rel=1e-9)


@pytest.mark.parametrize("yes", [0, 1])
def test_where_all_terms_are_equal_the_interval_is_clopper_and_pearsons(yes: int) -> None:
    n = 40
    y = np.tile([[1, 1]] if yes else [[2, 0]], (n, 1))
    found = disagreement_loss(y, np.zeros(n))
    ends = [0.025 ** (1 / n), 1.0] if yes else [0.0, 1 - 0.025 ** (1 / n)]
    np.testing.assert_allclose(np.array([found.low, found.high], float), ends, rtol=1e-9)
    halves = expected_squared_loss(np.tile([1, 0], (n, 1)), np.full((n, 2), 0.5))
    exact = [beta.ppf(0.025, n / 4, 3 * n / 4 + 1), beta.ppf(0.975, n / 4 + 1, 3 * n / 4)]
    np.testing.assert_allclose(np.array([halves.low, halves.high], float), 2 * np.array(exact), rtol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_intervals_keep_the_range(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.multinomial(2, [0.9, 0.1], n)
    f = rng.dirichlet([5, 1], n)
    weight = rng.choice([1.0, 10.0], n)
    bounded = [
        (disagreement_loss(y, 1 - (f**2).sum(1), sample_weight=weight), 1),
        (expected_squared_loss(y, f, sample_weight=weight), 2),
    ]
    if (y == 1).any():
        bounded += [(row, 1) for row in triage_recall(y, f[:, 1], [0.1, 0.5, 1.0], sample_weight=weight)]
    for estimate, top in bounded:
        assert 0 <= estimate.low <= estimate.high <= top, estimate


@pytest.mark.slow
def test_skewed_means_are_covered_on_both_sides() -> None:
    """Rare large values: plain t misses above far too often, the transformed interval on neither side."""
    rng = np.random.default_rng(1)
    missed = np.zeros((2, 2))
    runs = 3000
    values = (np.array([0.05, 1.8, -0.1]), [0.86, 0.06, 0.08])
    truth = float(values[0] @ values[1])
    for _ in range(runs):
        x = rng.choice(values[0], 150, p=values[1])
        influence = (x - x.mean()) / len(x)
        se = float(np.sqrt((influence**2).sum() * len(x) / (len(x) - 1)))
        half = t.ppf(0.975, len(x) - 1) * se
        for row, (low, high) in enumerate(
            ((x.mean() - half, x.mean() + half), skewed_interval(x.mean(), se, influence, len(x)))
        ):
            missed[row] += [truth > high, truth < low]
    plain, found = missed / runs
    assert plain[0] > 0.04
    assert max(found) < 0.035
    assert 0.94 <= 1 - found.sum() <= 0.99


def test_signed_estimates_may_leave_the_range() -> None:
    y, f = np.tile([[2, 0], [1, 1]], (20, 1)), np.tile([[0.75, 0.25]], (40, 1))
    assert epistemic_loss(y, f).low < 0
