"""Triage curves count disagreements without bias, and their intervals cover."""

import numpy as np
import pytest

from ml.metrics.triage_curves import net_benefit, net_benefit_difference, triage_recall, uncertainty_scores
from tests.ml.test_metrics import Counts, Floats, draw


def cases(n: int, seed: int) -> tuple[Counts, Floats]:
    """Two labels each; the score is the true disagreement probability, noisily seen."""
    rng = np.random.default_rng(seed)
    q = rng.beta(0.5, 0.5, n)
    positive = rng.binomial(2, q)
    return np.stack([positive, 2 - positive], axis=1), 2 * q * (1 - q) + rng.normal(0, 0.1, n)


def test_everything_sent_catches_everything_and_nothing_nothing() -> None:
    y, f = draw(0)
    none, half, everything = triage_recall(y, f[:, 0], [0, 0.5, 1])
    assert none.value == 0
    assert everything.value == pytest.approx(1)
    assert everything.se == pytest.approx(0, abs=1e-12)
    assert none.value < half.value < everything.value


def test_recall_is_what_counting_gives() -> None:
    y, score = cases(200, 0)
    order = np.argsort(-score)
    differ = (y == 1).all(axis=1)
    for k in (10, 50, 120):
        (found,) = triage_recall(y, score, [k / 200])
        assert found.value == pytest.approx(differ[order[:k]].sum() / differ.sum(), abs=1e-12)


def test_ties_are_sent_in_equal_shares() -> None:
    y, _ = cases(400, 1)
    for capacity, found in zip([0.1, 0.37], triage_recall(y, np.zeros(400), [0.1, 0.37]), strict=True):
        assert found.value == pytest.approx(capacity, abs=1e-12)


def test_a_weight_of_two_equals_the_case_twice() -> None:
    y, score = cases(60, 2)
    w = np.where(np.arange(60) % 2 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(60), w.astype(int))
    weighted = triage_recall(y, score, [0.2, 0.6], sample_weight=w)
    repeated = triage_recall(y[twice], score[twice], [0.2, 0.6])
    for a, b in zip(weighted, repeated, strict=True):
        assert a.value == pytest.approx(b.value, abs=1e-12)


def test_net_benefit_of_everybody_is_the_mean_disagreement_less_its_cost() -> None:
    y, score = cases(500, 3)
    differ = (y == 1).all(axis=1).mean()
    assert net_benefit(y, score, 1.0, 0.25).value == pytest.approx(differ - (1 - differ) / 3, abs=1e-12)
    assert net_benefit(y, score, 0.0, 0.25).value == 0


def test_the_difference_of_two_rules_is_the_difference_of_their_benefits() -> None:
    y, score = cases(800, 4)
    other = np.random.default_rng(0).random(800)
    gap = net_benefit_difference(y, score, other, 0.3, 0.2)
    a, b = net_benefit(y, score, 0.3, 0.2), net_benefit(y, other, 0.3, 0.2)
    assert gap.value == pytest.approx(a.value - b.value, abs=1e-12)
    assert gap.low is not None
    assert gap.low > 0  # a score that sees disagreement beats chance
    assert net_benefit_difference(y, score, score, 0.3, 0.2).se == pytest.approx(0, abs=1e-12)


def test_both_simple_rules_rank_two_classes_alike() -> None:
    _, f = draw(5, k=2)
    scores = uncertainty_scores(f)
    np.testing.assert_array_equal(np.argsort(scores["entropy"]), np.argsort(scores["max probability"]))


def test_bad_input_is_refused() -> None:
    y, score = cases(10, 0)
    with pytest.raises(ValueError, match="capacities"):
        triage_recall(y, score, [1.2])
    with pytest.raises(ValueError, match="scores"):
        triage_recall(y, score[:5], [0.5])
    with pytest.raises(ValueError, match="two labels"):
        triage_recall([[1, 0]], [0.5], [0.5])
    with pytest.raises(ValueError, match="no disagreement"):
        triage_recall([[2, 0], [0, 2]], [0.5, 0.1], [0.5])
    with pytest.raises(ValueError, match="threshold"):
        net_benefit(y, score, 0.5, 1.0)


@pytest.mark.heavy
def test_intervals_of_recall_and_benefit_cover() -> None:
    runs, n = 1500, 400
    big, score = cases(400_000, 99)
    truth = [e.value for e in triage_recall(big, score, [0.1, 0.3, 0.6])]
    benefit = net_benefit(big, score, 0.3, 0.2).value
    hits = np.zeros(4)
    for run in range(runs):
        y, s = cases(n, 1000 + run)
        found = [*triage_recall(y, s, [0.1, 0.3, 0.6]), net_benefit(y, s, 0.3, 0.2)]
        hits += [float(e.low <= t <= e.high) for e, t in zip(found, [*truth, benefit], strict=True)]  # type: ignore[operator]
    assert ((hits / runs > 0.92) & (hits / runs < 0.98)).all(), hits / runs
