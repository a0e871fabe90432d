"""Laws of predictive distributions, and of decisions from them."""

from typing import Any, Literal

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from scipy.stats import beta, betabinom, binom

from ml.distributions.decisions import (
    class_intervals,
    consensus_probs,
    expected_gain,
    further_labels_expected,
    majority_prob,
)
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    gini,
    has_concentration,
    moment_matched,
)

F = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]])
Y = np.array([[2, 1, 0], [0, 0, 3]])


def all_distributions(*order: int) -> list[PointCpe | DirichletCpe | EnsembleCpe | DirichletMixtureCpe]:
    """One of each family, with the classes in another order if one is given."""
    members = np.stack([F, F[:, ::-1], np.roll(F, 1, axis=1)])[..., list(order or range(3))]
    a = np.full((3, 2), 0.7)
    return [PointCpe(members[0]), DirichletCpe(members[0], a[0]), EnsembleCpe(members), DirichletMixtureCpe(members, a)]


def test_dirichlet_posterior_is_the_closed_form_by_hand() -> None:
    # alpha0 = 2: alpha = (1.2, .6, .2), plus counts (2, 1, 0) = (3.2, 1.6, .2) of 5
    posterior = DirichletCpe(F[:1], np.log([2.0])).posterior(Y[:1])
    np.testing.assert_allclose(posterior.class_probs, [[0.64, 0.32, 0.04]], atol=1e-15)
    np.testing.assert_allclose(np.exp(posterior.log_concentration), 5.0, rtol=1e-14)
    np.testing.assert_allclose(posterior.disagreement_probs, 5 / 6 * (1 - 0.64**2 - 0.32**2 - 0.04**2), rtol=1e-14)


def test_no_labels_give_the_prior_back() -> None:
    nothing = np.zeros_like(Y)
    for prior in all_distributions():
        after = prior.posterior(nothing)
        np.testing.assert_allclose(after.class_probs, prior.class_probs, rtol=1e-15)
        np.testing.assert_allclose(after.disagreement_probs, prior.disagreement_probs, rtol=1e-15)
        np.testing.assert_allclose(prior.log_likelihood(nothing), 0, atol=1e-15)


@pytest.mark.parametrize("index", range(4))
def test_updating_twice_equals_updating_once_with_the_sum(index: int) -> None:
    prior, more = all_distributions()[index], np.array([[1, 0, 1], [2, 0, 0]])
    twice, once = prior.posterior(Y).posterior(more), prior.posterior(Y + more)
    np.testing.assert_allclose(twice.class_probs, once.class_probs, rtol=1e-12)
    np.testing.assert_allclose(twice.disagreement_probs, once.disagreement_probs, rtol=1e-12)
    chain = prior.log_likelihood(Y) + prior.posterior(Y).log_likelihood(more)
    np.testing.assert_allclose(chain, prior.log_likelihood(Y + more), rtol=1e-12)


@pytest.mark.parametrize("index", range(4))
def test_permuting_classes_permutes_everything(index: int) -> None:
    order = [2, 0, 1]
    straight, mixed = all_distributions()[index], all_distributions(*order)[index]
    after, permuted = straight.posterior(Y), mixed.posterior(Y[:, order])
    np.testing.assert_allclose(permuted.class_probs, after.class_probs[:, order], rtol=1e-13)
    np.testing.assert_allclose(permuted.disagreement_probs, after.disagreement_probs, rtol=1e-13)


def test_predictive_probability_of_one_label_is_the_mean() -> None:
    for prior in all_distributions():
        for k in range(3):
            label = np.tile(np.eye(3, dtype=int)[k], (2, 1))
            np.testing.assert_allclose(np.exp(prior.log_likelihood(label)), prior.class_probs[:, k], rtol=1e-12)


def test_disagreement_is_the_probability_of_two_different_labels() -> None:
    for prior in all_distributions():
        same = sum(np.exp(prior.log_likelihood(np.tile(2 * np.eye(3, dtype=int)[k], (2, 1)))) for k in range(3))
        np.testing.assert_allclose(prior.disagreement_probs, 1 - same, rtol=1e-12)


@given(
    a=st.floats(-8, 8),
    weights=st.lists(st.floats(0.05, 1), min_size=3, max_size=3),
    counts=st.lists(st.integers(0, 6), min_size=3, max_size=3),
)
def test_likelihood_equals_the_gamma_function_form(a: float, weights: list[float], counts: list[int]) -> None:
    f, y = np.array([weights]) / sum(weights), np.array([counts])
    alpha = np.exp(a) * f
    expected = gammaln(np.exp(a)) - gammaln(np.exp(a) + y.sum()) + (gammaln(alpha + y) - gammaln(alpha)).sum()
    np.testing.assert_allclose(DirichletCpe(f, np.array([a])).log_likelihood(y), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("a", [-40.0, -20.0, 0.0, 20.0, 40.0])
def test_extreme_concentrations_reach_their_limits(a: float) -> None:
    prior = DirichletCpe(F, np.full(2, a))
    after = prior.posterior(Y)
    assert np.isfinite(prior.log_likelihood(Y)).all()
    if a == 40:  # a fixed distribution: labels change nothing, likelihood is multinomial
        np.testing.assert_allclose(after.class_probs, F, rtol=1e-15)
        np.testing.assert_allclose(prior.log_likelihood(Y), PointCpe(F).log_likelihood(Y), rtol=1e-14)
        np.testing.assert_allclose(prior.disagreement_probs, 1 - (F**2).sum(axis=1), rtol=1e-14)
    if a == -40:  # the first label decides
        np.testing.assert_allclose(after.class_probs, Y / 3, atol=1e-15)
        np.testing.assert_allclose(prior.disagreement_probs, np.exp(-40) * (1 - (F**2).sum(axis=1)), rtol=1e-12)


def test_tiny_probabilities_keep_their_digits() -> None:
    f = np.array([[1.0, 1e-300]])
    assert gini(f)[0] == pytest.approx(2e-300, rel=1e-12)
    after = DirichletCpe(f, np.array([0.0])).posterior(np.array([[0, 1]]))
    np.testing.assert_allclose(after.class_probs, [[0.5, 0.5]], rtol=1e-15)
    assert np.isfinite(DirichletCpe(f, np.array([0.0])).log_likelihood(np.array([[0, 3]]))).all()


def test_ensemble_posterior_multiplies_likelihoods() -> None:
    members = np.array([[[0.9, 0.1]], [[0.2, 0.8]]])
    after = EnsembleCpe(members).posterior(np.array([[1, 1]]))
    weights = np.array([0.9 * 0.1, 0.2 * 0.8])
    expected = (weights / weights.sum()) @ members[:, 0]
    np.testing.assert_allclose(after.class_probs[0], expected, rtol=1e-14)


@pytest.mark.parametrize(
    ("f", "a"),
    [
        ([[0.5, 0.6]], [0.0]),
        ([[np.nan, 1.0]], [0.0]),
        ([[-0.1, 1.1]], [0.0]),
        ([[0.5, 0.5]], [np.nan]),
        ([[0.5, 0.5]], [0.0, 1.0]),
        ([0.5, 0.5], [0.0]),
    ],
)
def test_bad_parameters_are_named(f: list[object], a: list[float]) -> None:
    with pytest.raises(ValueError, match=r"class_probs|log_concentration"):
        DirichletCpe(np.array(f, dtype=float), np.array(a))


def test_intervals_are_beta_quantiles_and_limits_beyond() -> None:
    d = DirichletCpe(F, np.array([0.0, 3.0]))
    alpha = np.exp(d.log_concentration)[:, None]
    for side, level in enumerate((0.025, 0.975)):
        expected = beta.ppf(level, alpha * F, alpha * (1 - F))
        np.testing.assert_allclose(class_intervals(d)[..., side], expected, rtol=1e-9, atol=1e-12)
    coin = class_intervals(DirichletCpe(np.array([[0.99, 0.01]]), np.array([-40.0])))
    np.testing.assert_array_equal(coin[0], [[1.0, 1.0], [0.0, 0.0]])
    fixed = class_intervals(DirichletCpe(F, np.full(2, 40.0)))
    np.testing.assert_allclose(fixed[..., 0], F, atol=1e-8)
    assert (fixed[..., 0] <= fixed[..., 1]).all()


@settings(max_examples=30, deadline=None)
@given(a=st.floats(-30, 35), w=st.lists(st.floats(0.0, 1), min_size=3, max_size=3).filter(lambda w: sum(w) > 0.1))
@example(a=0.0, w=[1.0, 1.0, 2.2e-309])
def test_intervals_and_majority_stay_in_range(a: float, w: list[float]) -> None:
    d = DirichletCpe(np.array([w]) / sum(w), np.array([a]))
    low, high = class_intervals(d)[0].T
    assert ((low >= 0) & (low <= high) & (high <= 1)).all()
    assert 1 / 3 - 1e-6 <= majority_prob(d)[0] <= 1


def test_gain_of_a_label_is_the_fall_of_the_expected_squared_error() -> None:
    d = DirichletCpe(F, np.array([0.5, 2.0]))
    alpha = np.exp(d.log_concentration)
    before = d.disagreement_probs / alpha  # expected posterior variance, phi / alpha0
    np.testing.assert_allclose(expected_gain(d), before - d.disagreement_probs / (alpha + 1), rtol=1e-12)


def test_further_labels_reach_the_target_error_and_one_fewer_does_not() -> None:
    d = DirichletCpe(F, np.array([0.5, 2.0]))
    needed = further_labels_expected(d, 0.02)
    alpha = np.exp(d.log_concentration)
    assert (d.disagreement_probs / (alpha + needed) <= 0.02).all()
    assert (d.disagreement_probs / (alpha + needed - 1) > 0.02).all()
    assert (further_labels_expected(DirichletCpe(F, np.full(2, 40.0)), 0.02) == 0).all()
    with pytest.raises(ValueError, match="target_error"):
        further_labels_expected(d, 0.0)


@pytest.mark.parametrize("a", [-40.0, -12.0, 0.0, 12.0, 40.0])
@pytest.mark.parametrize("tiny", [1e-300, 1e-12, 0.2])
def test_a_mixture_is_right_at_the_ends_of_the_range(a: float, tiny: float) -> None:
    """Posterior weights, means and DPE of two members against 400-digit arithmetic."""
    members = np.array([[[tiny, 1 - tiny, 0.0]], [[0.5, 0.25, 0.25]]])
    log_a, counts = np.array([[a], [1.0]]), np.array([[2, 1, 0]])
    prior = DirichletMixtureCpe(members, log_a)
    with mpmath.workdps(400):
        likelihood, means, dpes = [], [], []
        for f, log_alpha in zip(members[:, 0], log_a[:, 0], strict=True):
            alpha = mpmath.exp(mpmath.mpf(float(log_alpha)))
            shares = [mpmath.mpf(float(x)) * alpha for x in f]
            total, value = sum(shares), mpmath.mpf(1)
            for k, y in enumerate(counts[0]):
                for step in range(int(y)):
                    value *= shares[k] + step
            for step in range(int(counts.sum())):
                value /= total + step
            likelihood.append(value)
            after = [share + int(y) for share, y in zip(shares, counts[0], strict=True)]
            whole = sum(after)
            means.append([share / whole for share in after])
            spread = 1 - sum((share / whole) ** 2 for share in after)
            dpes.append(whole / (whole + 1) * spread)
        weights = [value / sum(likelihood) for value in likelihood]
        mean = [float(sum(w * m[k] for w, m in zip(weights, means, strict=True))) for k in range(3)]
        dpe = float(sum(w * d for w, d in zip(weights, dpes, strict=True)))
        logs = float(mpmath.log(sum(likelihood) / 2))
    posterior = prior.posterior(counts)
    np.testing.assert_allclose(posterior.class_probs[0], mean, rtol=1e-9, atol=1e-300)
    assert posterior.disagreement_probs[0] == pytest.approx(dpe, rel=1e-9)
    assert prior.log_likelihood(counts)[0] == pytest.approx(logs, rel=1e-11, abs=1e-11)


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


def test_consensus_is_four_of_five_in_every_family_and_the_rest_is_split() -> None:
    point, dirichlet, ensemble, mixture_ = all_distributions()
    np.testing.assert_allclose(consensus_probs(point), binom.sf(3, 5, F), atol=1e-15)
    alpha = np.exp(0.7)
    expected = betabinom.sf(3, 5, alpha * F, alpha * (1 - F))
    np.testing.assert_allclose(consensus_probs(dirichlet), expected, atol=1e-14)
    for mixed, one in ((ensemble, PointCpe), (mixture_, lambda f: DirichletCpe(f, [0.7, 0.7]))):
        members = [consensus_probs(one(f)) for f in mixed.member_class_probs]  # type: ignore[union-attr]
        np.testing.assert_allclose(consensus_probs(mixed), np.mean(members, axis=0), atol=1e-14)
    for distribution in all_distributions():
        assert (consensus_probs(distribution).sum(axis=1) <= 1).all()
    certain = consensus_probs(DirichletCpe([[0.7, 0.3], [0.7, 0.3]], [-700.0, 700.0]))
    np.testing.assert_allclose(certain, [[0.7, 0.3], binom.sf(3, 5, [0.7, 0.3])], atol=1e-12)


def test_two_further_annotators_differ_with_the_disagreement_probability() -> None:
    for distribution in all_distributions():
        both = consensus_probs(distribution, 2)
        np.testing.assert_allclose(1 - both.sum(axis=1), distribution.own_disagreement_probs, atol=1e-14)
        for label in range(both.shape[1]):
            pair = 2 * np.eye(both.shape[1], dtype=np.int64)[[label] * len(both)]
            np.testing.assert_allclose(both[:, label], np.exp(distribution.log_likelihood(pair)), atol=1e-13)


@pytest.mark.parametrize(("of", "at_least", "n_before"), [(5, 4, 0), (2, 2, 0), (5, 4, 2)])
def test_consensus_happens_as_often_as_predicted(of: Literal[2, 5], at_least: int, n_before: int) -> None:
    """Annotators of each of 60,000 cells, before and after labels: in bins, the share of consensus is the mean."""
    rng = np.random.default_rng(4)
    f = rng.dirichlet([2.0, 1.0, 0.5], 60_000)
    alpha = rng.choice([0.3, 2.0, 20.0], len(f))
    truth = np.array([rng.dirichlet(a * row + 1e-12) for a, row in zip(alpha, f, strict=True)])
    named = np.array([rng.multinomial(of, row) for row in truth])
    labels = np.array([rng.multinomial(n_before, row) for row in truth])
    predicted = consensus_probs(DirichletCpe(f, np.log(alpha)).posterior(labels), of)
    masses = np.hstack([predicted, 1 - predicted.sum(axis=1, keepdims=True)])
    seen = np.hstack([named >= at_least, (named < at_least).all(axis=1, keepdims=True)])
    for mass, happened in zip(masses.T, seen.T, strict=True):
        for low in np.arange(0, 1, 0.2):
            inside = (mass >= low) & (mass < low + 0.2)
            error = np.sqrt(max(float((mass[inside] * (1 - mass[inside])).sum()), 1.0)) / max(inside.sum(), 1)
            assert abs(happened[inside].mean() - mass[inside].mean()) < 4 * error if inside.sum() > 50 else True


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
