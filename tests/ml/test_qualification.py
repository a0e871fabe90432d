"""Who passes a qualification: readers like the others do, those who guess or confuse a class do not."""

import numpy as np
import pytest

from ml.agreement.one_annotator import agreement_with_others
from ml.agreement.qualification import (
    CLEAR_FROM,
    LEAST_SLIPS,
    LEVEL,
    balanced_choice,
    judge_answers,
    like_the_others,
    pass_rates,
    slip_rate,
)
from ml.util.arrays import FloatArray, IntArray

K, N = 4, 40


def cells(seed: int = 0, n: int = N) -> FloatArray:
    """Posteriors of balanced cells, one fifth of them borderline."""
    rng = np.random.default_rng(seed)
    many = rng.dirichlet(np.full(K, 0.15), size=3000) * 0.97 + 0.03 / K
    return many[balanced_choice(many, n, 0.2, rng)]


def drawn(rng: np.random.Generator, probs: FloatArray) -> IntArray:
    return np.array([rng.choice(K, p=row) for row in probs])


def passes(seed: int, habit: FloatArray, runs: int = 60) -> float:
    rng = np.random.default_rng(seed)
    found = []
    for run in range(runs):
        posterior = cells(1000 * seed + run)
        found.append(
            judge_answers(posterior, drawn(rng, like_the_others(posterior, LEAST_SLIPS) @ habit), LEAST_SLIPS).passed
        )
    return float(np.mean(found))


def test_somebody_like_the_others_passes() -> None:
    assert passes(11, np.eye(K), 120) >= 0.95


def test_somebody_who_guesses_does_not() -> None:
    assert passes(2, np.full((K, K), 1 / K)) <= 0.10


@pytest.mark.parametrize("k", range(K))
def test_somebody_who_takes_one_class_for_another_half_of_the_time_does_not(k: int) -> None:
    habit = np.eye(K)
    habit[k, k] = habit[k, (k + 1) % K] = 0.5
    assert passes(3 + k, habit) <= 0.10


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_small_set_brands_nobody(n: int) -> None:
    rng, failed = np.random.default_rng(n), []
    for seed in range(150):
        posterior = cells(seed, n)
        failed.append(not judge_answers(posterior, drawn(rng, like_the_others(posterior, 0.05)), 0.05).passed)
    assert np.mean(failed) <= LEVEL + 3 * np.sqrt(LEVEL / 150)


def test_one_slip_decides_nothing() -> None:
    sure = np.full((N, K), 0.001) + np.eye(K)[np.arange(N) % K] * 0.996
    answers = np.arange(N) % K
    answers[0] = 1
    assert judge_answers(sure, answers, LEAST_SLIPS).passed


def test_permuting_classes_and_cells_changes_no_verdict() -> None:
    posterior = cells()
    answers = drawn(np.random.default_rng(5), posterior)
    order, classes = np.random.default_rng(6).permutation(N), np.array([2, 0, 3, 1])
    place = np.argsort(classes)
    one, other = (
        judge_answers(posterior, answers, 0.05),
        judge_answers(posterior[order][:, classes], place[answers[order]], 0.05),
    )
    assert other.mean == pytest.approx(one.mean)
    assert other.of_pool == pytest.approx(one.of_pool)
    assert (other.low, other.high) == pytest.approx((one.low, one.high))
    assert other.p == pytest.approx(one.p, abs=0.06)  # other draws
    assert judge_answers(posterior, answers, 0.05) == judge_answers(posterior, answers, 0.05)


def test_the_numbers_by_hand() -> None:
    posterior = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    verdict = judge_answers(posterior, np.array([0, 1, 0]), 0.0)
    _, expected = agreement_with_others(posterior, np.zeros(3, dtype=np.int64))
    assert verdict.mean == pytest.approx((0.9 + 0.8 + 0.5) / 3)
    assert verdict.of_pool == pytest.approx(expected.mean())
    assert verdict.low < verdict.difference < verdict.high


def test_the_difference_of_somebody_like_the_others_is_zero_on_average() -> None:
    posterior, rng = cells(7), np.random.default_rng(7)
    like = like_the_others(posterior, 0.05)
    found = [judge_answers(posterior, drawn(rng, like), 0.05) for _ in range(100)]
    assert abs(np.mean([verdict.difference for verdict in found])) < 0.02
    inside = [verdict.low <= 0 <= verdict.high for verdict in found]
    assert np.mean(inside) >= 0.85


def test_slips_of_the_pool_are_found() -> None:
    rng = np.random.default_rng(8)
    posterior = np.concatenate([cells(seed) for seed in range(60)])
    for slips in (0.05, 0.2):
        said = drawn(rng, like_the_others(posterior, slips))
        assert slip_rate(posterior, said) == pytest.approx(slips, abs=0.03)
    assert slip_rate(posterior, posterior.argmax(axis=1)) == LEAST_SLIPS


def test_pass_rates_say_what_a_set_can_tell() -> None:
    large, small = pass_rates(cells(9), LEAST_SLIPS), pass_rates(cells(9, 8), LEAST_SLIPS)
    assert min(large.like_the_others, small.like_the_others) >= 0.95
    assert large.guessing <= 0.10
    assert large.confusing.max() <= 0.15
    assert np.nanmax(small.confusing) > 0.3
    with pytest.raises(ValueError, match="too few"):
        pass_rates(cells(9)[:1], LEAST_SLIPS)
    with pytest.raises(ValueError, match="too few"):
        judge_answers(cells(9)[:1], np.array([0]), LEAST_SLIPS)


def test_a_choice_is_balanced_and_has_its_share_of_borderline_cells() -> None:
    rng = np.random.default_rng(10)
    many = rng.dirichlet(np.full(K, 0.3), size=2000)
    chosen = many[balanced_choice(many, 40, 0.25, rng)]
    assert (chosen.max(axis=1) < CLEAR_FROM).sum() == 10
    assert np.ptp(np.bincount(chosen.argmax(axis=1), minlength=K)) <= 2
    few = many[:10]
    rows = balanced_choice(few, 40, 0.5, rng)
    assert len(set(rows.tolist())) == len(rows) <= 10
    assert balanced_choice(np.zeros((0, K)), 5, 0.2, rng).size == 0
    with pytest.raises(ValueError, match="share"):
        balanced_choice(few, 4, 1.5, rng)
