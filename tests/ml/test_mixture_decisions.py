"""Decisions from mixtures and ensembles agree with simulation and with a single Dirichlet where they must."""

from typing import Any

import numpy as np
import pytest

from ml.distributions.decisions import class_intervals, expected_gain, further_labels_expected, majority_prob
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    has_concentration,
    moment_matched,
)


def mixture(seed: int = 0, s: int = 4, n: int = 3, k: int = 3) -> DirichletMixtureCpe:
    rng = np.random.default_rng(seed)
    return DirichletMixtureCpe(rng.dirichlet(np.ones(k), (s, n)), rng.normal(1, 1, (s, n)), rng.normal(0, 1, (s, n)))


def draws(prior: DirichletMixtureCpe, row: int, size: int = 200_000) -> Any:
    rng = np.random.default_rng(9)
    members = rng.choice(len(prior.log_weights), size, p=np.exp(prior.log_weights[:, row]))
    alpha = np.exp(prior.member_log_concentration[members, row])[:, None] * prior.member_class_probs[members, row]
    gammas = rng.standard_gamma(alpha)
    return gammas / gammas.sum(axis=1, keepdims=True)


def test_intervals_and_majority_of_a_mixture_agree_with_simulation() -> None:
    prior = mixture()
    intervals, majority = class_intervals(prior), majority_prob(prior)
    for row in range(3):
        q = draws(prior, row)
        for k in range(3):
            for end, level in zip(intervals[row, k], (0.025, 0.975), strict=True):
                # a Dirichlet with a tiny shape has much of its mass within 1e-9 of an end
                assert (q[:, k] < end - 1e-9).mean() < level + 0.002
                assert (q[:, k] <= end + 1e-9).mean() > level - 0.002
        leader = prior.class_probs[row].argmax()
        assert majority[row] == pytest.approx((q.argmax(axis=1) == leader).mean(), abs=0.004)


def test_the_gain_of_a_mixture_is_the_variance_of_its_posterior_mean() -> None:
    prior = mixture(1)
    rng = np.random.default_rng(0)
    gain = expected_gain(prior)
    for row in range(3):
        q = draws(prior, row)
        labels = (rng.random((len(q), 1)) > q.cumsum(axis=1)).sum(axis=1).clip(max=2)
        means = np.array([q[labels == c].mean(axis=0) for c in range(3)])
        shares = np.bincount(labels, minlength=3) / len(q)
        found = (shares[:, None] * (means - q.mean(axis=0)) ** 2).sum()
        assert gain[row] == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("a", [-25.0, -3.0, 0.0, 2.0, 8.0, 30.0])
def test_equal_members_decide_like_a_single_dirichlet(a: float) -> None:
    f = np.array([[0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]])
    log_a = np.full(3, a)
    single, both = DirichletCpe(f, log_a), DirichletMixtureCpe(np.stack([f, f]), np.stack([log_a, log_a]))
    np.testing.assert_allclose(class_intervals(both), class_intervals(single), atol=2e-6)
    np.testing.assert_allclose(majority_prob(both), majority_prob(single), atol=1e-9)
    np.testing.assert_allclose(expected_gain(both), expected_gain(single), atol=1e-12)
    if a < 20:  # beyond, α0 is lost in the rounding of φ
        np.testing.assert_allclose(
            further_labels_expected(both, 0.01)[:2], further_labels_expected(single, 0.01)[:2], atol=1
        )


def test_points_have_intervals_of_their_own_values_and_gain_nothing() -> None:
    point = PointCpe(np.array([[0.6, 0.3, 0.1]]))
    np.testing.assert_allclose(class_intervals(point)[0], [[0.6, 0.6], [0.3, 0.3], [0.1, 0.1]], atol=1e-9)
    assert expected_gain(point)[0] == 0
    assert majority_prob(point)[0] == 1
    assert further_labels_expected(PointCpe(np.array([[1.0, 0.0]])), 0.01)[0] == 0


def test_an_ensemble_of_points_spans_its_members() -> None:
    members = np.array([[[0.9, 0.1]], [[0.5, 0.5]], [[0.2, 0.8]]])
    prior = EnsembleCpe(members)
    np.testing.assert_allclose(class_intervals(prior)[0], [[0.2, 0.9], [0.1, 0.8]], atol=1e-9)
    assert majority_prob(prior)[0] == pytest.approx(0.5)  # one member ties
    after = [prior.posterior(np.eye(2, dtype=int)[[c]]).class_probs[0] for c in range(2)]
    mean = prior.class_probs[0]
    assert expected_gain(prior)[0] == pytest.approx(
        sum(mean[c] * ((after[c] - mean) ** 2).sum() for c in range(2)), abs=1e-14
    )


def test_moment_matching_keeps_mean_and_disagreement() -> None:
    prior = mixture(2, n=20)
    single = moment_matched(prior)
    np.testing.assert_allclose(single.class_probs, prior.class_probs, atol=1e-15)
    np.testing.assert_allclose(single.disagreement_probs, prior.disagreement_probs, rtol=1e-9)


def test_the_mixture_needs_no_more_labels_than_its_linear_bound_says() -> None:
    """The bound's error φ/(α0 + m) is at least the mixture's own error after m labels."""
    prior = mixture(3, n=1)
    rng = np.random.default_rng(1)
    q = draws(prior, 0, 20_000)
    for m in (1, 3, 8):
        counts = np.array([rng.multinomial(m, row / row.sum()) for row in q])
        many = DirichletMixtureCpe(
            np.repeat(prior.member_class_probs, len(q), axis=1),
            np.repeat(prior.member_log_concentration, len(q), axis=1),
            np.repeat(prior.log_weights, len(q), axis=1),
        )
        error = ((many.posterior(counts).class_probs - q) ** 2).sum(axis=1).mean()
        bound = moment_matched(prior)
        limit = bound.disagreement_probs[0] / (np.exp(bound.log_concentration[0]) + m)
        assert error < limit * 1.02


@pytest.mark.parametrize(
    ("distribution", "learned"),
    [
        (PointCpe(np.array([[0.5, 0.5]])), False),
        (EnsembleCpe(np.array([[[0.5, 0.5]]])), False),
        (DirichletCpe(np.array([[0.5, 0.5]]), np.zeros(1)), True),
        (mixture(), True),
    ],
)
def test_who_has_a_concentration(distribution: PredictiveDistribution, learned: bool) -> None:
    assert has_concentration(distribution) == learned
