"""Metrics of ordered classes against their definitions, label by label, and against statsmodels."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import multinomial
from statsmodels.stats import inter_rater

from ml.metrics.ordinal import (
    epistemic_ranked_probability_score,
    ranked_probability_change,
    ranked_probability_score,
    ranked_probability_skill,
    weighted_kappa,
)
from ml.metrics.sums import Debias

RNG = np.random.default_rng(3)
N, K = 40, 4
F = RNG.dirichlet(np.ones(K), N)
Y = np.stack([RNG.multinomial(row % 4, q) for row, q in enumerate(RNG.dirichlet(np.ones(K), N))])
W = RNG.uniform(1, 3, N)
PATIENTS = RNG.integers(0, 12, N)
ALL = [ranked_probability_score, epistemic_ranked_probability_score, ranked_probability_skill, weighted_kappa]


def _label_score(f: Any, label: int) -> float:
    """The definition: the squared differences of two staircases, for one label."""
    return sum((sum(f[: cut + 1]) - (label <= cut)) ** 2 for cut in range(K - 1))


def test_the_score_is_the_mean_over_the_labels_of_each_case() -> None:
    values, weights = [], []
    for f, y, weight in zip(F, Y, W, strict=True):
        labels = [k for k in range(K) for _ in range(y[k])]
        if labels:
            values.append(np.mean([_label_score(f, label) for label in labels]))
            weights.append(weight)
    found = ranked_probability_score(Y, F, sample_weight=W)
    assert found.value == pytest.approx(np.average(values, weights=weights), abs=1e-12)
    assert (found.n, found.dropped) == (len(values), N - len(values))


@pytest.mark.parametrize("n_labels", [2, 3, 5])
def test_the_score_against_the_histogram_is_unbiased_for_any_number_of_labels(n_labels: int) -> None:
    """Over every outcome of n labels the mean is the squared distance to the true shares, and the plug-in's is not."""
    q, f = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.3, 0.4, 0.2, 0.1])
    truth = ((f.cumsum() - q.cumsum())[:-1] ** 2).sum()
    means: dict[Debias, float] = {"pair": 0.0, "none": 0.0}
    for counts in product(range(n_labels + 1), repeat=K):
        if sum(counts) == n_labels:
            chance = float(multinomial.pmf(counts, n_labels, q))
            for debias in means:
                found = epistemic_ranked_probability_score([counts], [f], debias=debias)
                means[debias] += chance * found.value
    assert means["pair"] == pytest.approx(truth, abs=1e-12)
    assert means["none"] > truth + 0.01


def test_two_classes_have_half_of_the_squared_loss() -> None:
    from ml.metrics import epistemic_loss, expected_squared_loss

    f, y = np.stack([F[:, 0], 1 - F[:, 0]], axis=1), Y[:, :2]
    assert ranked_probability_score(y, f).value == pytest.approx(expected_squared_loss(y, f).value / 2, abs=1e-12)
    assert epistemic_ranked_probability_score(y, f).value == pytest.approx(epistemic_loss(y, f).value / 2, abs=1e-12)


@pytest.mark.parametrize("metric", ALL)
def test_reversing_the_scale_changes_nothing_and_another_order_does(metric: Any) -> None:
    assert metric(Y[:, ::-1], F[:, ::-1]).value == pytest.approx(metric(Y, F).value, abs=1e-12)
    assert abs(metric(Y[:, [1, 0, 3, 2]], F[:, [1, 0, 3, 2]]).value - metric(Y, F).value) > 1e-3


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("groups", [np.arange(N), PATIENTS])
def test_errors_are_those_of_leaving_out_a_patient(metric: Any, groups: Any) -> None:
    usable = Y.sum(axis=1) >= (2 if metric is epistemic_ranked_probability_score else 1)
    kept = []
    for group in np.unique(groups[usable]):
        left = usable & (groups != group)
        kept.append(metric(Y[left], F[left], sample_weight=W[left]).value)
    expected = np.sqrt((len(kept) - 1) / len(kept) * ((np.array(kept) - np.mean(kept)) ** 2).sum())
    assert metric(Y, F, sample_weight=W, cluster=groups).se == pytest.approx(expected, rel=1e-9)


def test_skill_is_zero_for_the_frequencies_and_one_for_certainty() -> None:
    counts = np.eye(K, dtype=int)[RNG.integers(0, K, 50)]
    constant = np.tile(counts.mean(axis=0), (50, 1))
    assert ranked_probability_skill(counts, constant).value == pytest.approx(0, abs=1e-12)
    assert ranked_probability_skill(counts, counts.astype(float)).value == 1
    assert np.isnan(ranked_probability_skill([[1, 0], [2, 0]], [[0.9, 0.1]] * 2).value)


def test_weighted_kappa_equals_statsmodels_with_one_label_per_case() -> None:
    said, seen = F.argmax(axis=1), RNG.integers(0, K, N)
    table = np.zeros((K, K))
    np.add.at(table, (said, seen), 1)
    expected = inter_rater.cohens_kappa(table, wt="quadratic", return_results=False)
    assert weighted_kappa(np.eye(K, dtype=int)[seen], F).value == pytest.approx(expected, abs=1e-12)


def test_weighted_kappa_shares_each_case_among_its_labels_and_equal_leaders() -> None:
    """Two labels of a case are as two cases of half the weight; two leaders are as two predictions of half."""
    counts, probs = np.array([[2, 0, 1], [0, 1, 0], [0, 0, 3]]), np.array([[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.2, 0.6]])
    rows = [(x, y, share) for x, y, share in [(0, 0, 1 / 3), (0, 2, 1 / 6), (1, 0, 1 / 3), (1, 2, 1 / 6)]]
    rows += [(1, 1, 1.0), (2, 2, 1.0)]
    one_hot = np.eye(3)
    spread = weighted_kappa(
        [one_hot[y] for _, y, _ in rows], [one_hot[x] for x, _, _ in rows], sample_weight=[w for _, _, w in rows]
    )
    assert weighted_kappa(counts, probs).value == pytest.approx(spread.value, abs=1e-12)


def test_the_change_is_the_difference_and_its_error_is_paired() -> None:
    other = RNG.dirichlet(np.ones(K), N)
    found = ranked_probability_change(Y, F, other, sample_weight=W)
    first, second = (ranked_probability_score(Y, probs, sample_weight=W) for probs in (F, other))
    assert found.value == pytest.approx(second.value - first.value, abs=1e-12)
    assert ranked_probability_change(Y, F, F).se == 0


def test_tables_with_names_are_refused_since_names_have_no_order() -> None:
    counts: Any = {"low": [1, 0], "high": [0, 1]}
    with pytest.raises(ValueError, match="order"):
        ranked_probability_score(counts, counts)
