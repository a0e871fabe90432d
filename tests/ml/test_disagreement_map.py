"""A map of disagreement probabilities mends what is over-dispersed, keeps the order, and leaves alone what is right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import check_grad

from ml.calibration.disagreement_map import IDENTITY, DisagreementMap, fit_disagreement_map, fit_map, pair_loss
from ml.calibration.optimise import FitError
from ml.metrics import disagreement_calibration_loss, disagreement_loss


def problem(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, two a case, of blends of two classes with known probability of disagreement 2w(1 − w)."""
    rng = np.random.default_rng(seed)
    w = np.where(rng.random(n) < 0.5, rng.uniform(0, 0.05, n), rng.uniform(0.1, 0.5, n))
    first = rng.binomial(2, w)
    return np.stack([first, 2 - first], axis=1), 2 * w * (1 - w)


def spread_out(dpe: np.ndarray) -> np.ndarray:
    """Too high where high, too low where low."""
    odds = dpe / (1 - dpe)
    return np.asarray(odds**1.7 / (odds**1.7 + 0.5))


def names(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def test_over_dispersed_probabilities_are_mended_on_new_cases() -> None:
    counts, dpe = problem(6000, 0)
    found = fit_disagreement_map(spread_out(dpe), counts, names(6000))
    new_counts, new_dpe = problem(6000, 1)
    before, after = spread_out(new_dpe), found(spread_out(new_dpe))
    assert np.abs(after - new_dpe).mean() < 0.25 * np.abs(before - new_dpe).mean()
    assert disagreement_loss(new_counts, after).value < disagreement_loss(new_counts, before).value
    bad, good = (disagreement_calibration_loss(new_counts, dpe).value for dpe in (before, after))
    assert good < 0.1 * bad


def test_what_is_right_is_hardly_moved() -> None:
    counts, dpe = problem(6000, 2)
    found = fit_disagreement_map(dpe, counts, names(6000))
    assert np.abs(found(dpe) - dpe).mean() < 0.01


@given(low=st.floats(0, 5), high=st.floats(0, 5), offset=st.floats(-5, 5))
def test_no_map_turns_an_order_round(low: float, high: float, offset: float) -> None:
    mapped = DisagreementMap(low, high, offset)(np.linspace(0, 1, 301))
    assert (np.diff(mapped) >= -1e-15).all()
    assert ((mapped >= 0) & (mapped <= 1)).all()


def test_the_identity_changes_nothing_and_no_help_keeps_it() -> None:
    dpe = np.linspace(0.001, 0.999, 99).reshape(3, 33)
    np.testing.assert_allclose(IDENTITY(dpe), dpe, atol=1e-14)
    rng = np.random.default_rng(3)
    counts = np.stack([np.full(40, 2), np.zeros(40, dtype=int)], axis=1)
    counts[rng.permutation(40)[:8]] = (1, 1)
    assert fit_disagreement_map(np.full(40, 0.2), counts, names(40), seed=1) is IDENTITY


def test_the_fit_is_a_minimum_within_its_bounds() -> None:
    counts, dpe = problem(800, 4)
    differ = (counts.min(axis=1) == 1).astype(float)
    found = fit_map(spread_out(dpe), differ)

    def loss(x: np.ndarray) -> float:
        return float(pair_loss(DisagreementMap(*x).logits(spread_out(dpe)), differ).mean())

    best = np.array([found.low, found.high, found.offset])
    for step in (*np.eye(3), *-np.eye(3)):
        other = best + 1e-3 * step
        if (other[:2] >= 0).all():
            assert loss(other) >= loss(best) - 1e-9
    assert check_grad(loss, lambda x: np.zeros(3), best) < 1e-3 or 0 in best[:2]


@pytest.mark.parametrize("labels", [1, 2])
def test_too_few_labels_are_refused(labels: int) -> None:
    with pytest.raises(FitError, match="two labels"):
        fit_disagreement_map(np.full(9, 0.2), np.array([[labels, 0]] * 9), names(9))
    with pytest.raises(FitError, match="several patients"):
        fit_disagreement_map(np.full(20, 0.2), np.array([[2, 0]] * 20), ["one"] * 20)
