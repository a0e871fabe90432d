"""Laws of a disagreement probability that is put back into the distribution it belongs to."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import expit

from ml.calibration.disagreement_map import match_disagreement
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, gini, softmax_probs


def case(seed: int, n: int = 30, k: int = 4, members: int = 0) -> tuple[Any, Any, Any]:
    """Logits from flat to nearly certain, concentrations from tiny to large, and DPEs anywhere."""
    rng = np.random.default_rng(seed)
    shape = (members, n) if members else (n,)
    logits = rng.normal(0, 1, (*shape, k)) * rng.choice([0.3, 2.0, 8.0], n)[:, None]
    return logits, rng.normal(0, 3, shape), rng.uniform(1e-4, 0.9 * (1 - 1 / k), n)


def own(logits: Any, a: Any) -> Any:
    family = DirichletCpe if logits.ndim == 2 else DirichletMixtureCpe
    return family(softmax_probs(logits), a)


@pytest.mark.parametrize("members", [0, 3])
def test_what_a_distribution_says_already_changes_nothing(members: int) -> None:
    logits, a, _ = case(0, members=members)
    again, same = match_disagreement(logits, a, own(logits, a).disagreement_probs)
    np.testing.assert_allclose(again, logits, rtol=1e-6)
    np.testing.assert_allclose(own(again, same).class_probs, own(logits, a).class_probs, atol=1e-9)
    np.testing.assert_allclose(own(again, same).disagreement_probs, own(logits, a).disagreement_probs, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), members=st.sampled_from([0, 3]))
def test_one_distribution_says_what_is_wanted_and_a_label_still_counts(seed: int, members: int) -> None:
    """φ is that of the distribution; the weight of labels falls by less than a factor e; the leader stays."""
    logits, a, wanted = case(seed, members=members)
    flat, moved = match_disagreement(logits, a, wanted)
    said = own(flat, moved).disagreement_probs
    reachable = gini(np.full(4, 0.25)) * expit(np.maximum(a + 1, 0)).reshape(-1, len(wanted)).mean(axis=0)
    np.testing.assert_allclose(said, np.minimum(wanted, reachable), rtol=1e-6)
    assert (moved <= np.maximum(a + 1, 0) + 1e-12).all()
    for n in (1, 2, 9):
        assert (expit(np.log(n) - moved) >= expit(np.log(n) - a) / np.e * (1 - 1e-12)).all()
    np.testing.assert_array_equal(flat.argmax(axis=-1), logits.argmax(axis=-1))
    # flattened only where the concentration rose as far as it may
    flattened = (flat != logits).any(axis=-1)
    assert (moved[flattened] >= np.maximum(a + 1, 0)[flattened] - 1e-9).all()


def test_the_vectorised_solution_is_that_of_one_case_at_a_time() -> None:
    logits, a, wanted = case(3, n=60)
    flat, moved = match_disagreement(logits, a, wanted)
    for u, was, target, served, a_served in zip(logits, a, wanted, flat, moved, strict=True):
        highest = max(was + 1, 0.0)

        def missing(log_a: float, sharpness: float = 1.0, u: Any = u, target: float = target) -> float:
            return float(expit(log_a) * gini(softmax_probs(sharpness * u)) - target)

        if missing(highest) >= 0:
            assert a_served == pytest.approx(brentq(missing, -60, highest, xtol=1e-12), abs=1e-6)
            np.testing.assert_array_equal(served, u)
        elif missing(highest, 1e-9) > 0:
            sharpness = brentq(partial(missing, highest), 1e-9, 1, xtol=1e-14)
            np.testing.assert_allclose(served, sharpness * u, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("members", [0, 3])
def test_the_disagreement_that_is_served_rises_with_the_one_that_is_wanted(members: int) -> None:
    logits, a, _ = case(5, members=members)
    served = np.array(
        [own(*match_disagreement(logits, a, np.full(30, w))).disagreement_probs for w in np.linspace(1e-4, 0.74, 40)]
    )
    assert (np.diff(served, axis=0) >= -1e-12).all()


def test_equal_members_are_put_back_like_one_of_them() -> None:
    logits, a, wanted = case(7)
    flat, moved = match_disagreement(logits, a, wanted)
    many, shifted = match_disagreement(np.stack([logits] * 3), np.stack([a] * 3), wanted)
    for member in range(3):
        np.testing.assert_allclose(many[member], flat, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(shifted[member], moved, atol=1e-6)


def test_what_no_distribution_reaches_is_approached_without_harm() -> None:
    """Certain predictions, tiny and huge concentrations: finite numbers, probabilities that sum to one."""
    logits = np.array([[800.0, 0.0, -800.0], [0.0, 0.0, 0.0], [30.0, 0.0, 0.0]])
    for a in (-40.0, 0.0, 40.0):
        for wanted in (1e-9, 0.3, 1 - 1e-9):
            flat, moved = match_disagreement(logits, np.full(3, a), np.full(3, wanted))
            assert np.isfinite(flat).all()
            assert np.isfinite(moved).all()
            np.testing.assert_allclose(softmax_probs(flat).sum(axis=1), 1)
