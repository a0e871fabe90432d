"""One annotator next to the others: few labels brand nobody, many tell, and the arithmetic is as defined."""

import numpy as np
import pytest
from scipy.stats import beta

from ml.agreement.one_annotator import (
    agreement_with_others,
    log_score_surplus,
    rate_of_all,
    shrunk_confusions,
    shrunk_mean,
    shrunk_share,
    soft_confusions,
)
from ml.util.arrays import FloatArray, IntArray

K = 4


def drawn(rng: np.random.Generator, n: int, said: FloatArray | None = None) -> tuple[FloatArray, IntArray]:
    """Posteriors of n cases and the answers of somebody who follows them, through a matrix where one is given."""
    others = rng.dirichlet(np.full(K, 0.4), size=n)
    classes = np.array([rng.choice(K, p=row) for row in others])
    if said is not None:
        classes = np.array([rng.choice(K, p=said[k]) for k in classes])
    return others, classes


def test_a_share_is_the_posterior_of_a_beta_prior() -> None:
    pulled = shrunk_share(3, 4, 0.9, strength=10)
    assert pulled.value == pytest.approx((3 + 9) / 14)
    assert (pulled.low, pulled.high) == pytest.approx(beta(12, 2).interval(0.95))
    none = shrunk_share(0, 0, 0.3)
    assert (none.value, none.n) == (0.3, 0)
    assert 0 < rate_of_all(0, 0) < 1


def test_a_mean_lies_between_its_own_and_everybodys_and_nears_its_own() -> None:
    means = [shrunk_mean(np.ones(n), 1.0, 0.0, spread=0.5).value for n in (1, 10, 1000)]
    assert means == sorted(means)
    assert means[0] == pytest.approx(1 / (1 + 4))
    assert means[-1] > 0.99


def test_soft_confusions_by_hand() -> None:
    others = np.array([[0.7, 0.3], [0.2, 0.8]])
    counts = soft_confusions(others, np.array([0, 0]))
    assert counts.tolist() == [pytest.approx([0.9, 0.0]), pytest.approx([1.1, 0.0])]
    said, expected = agreement_with_others(others, np.array([0, 1]))
    assert said.tolist() == [0.7, 0.8]
    assert expected.tolist() == pytest.approx([0.58, 0.68])


def test_whoever_answers_like_the_others_has_no_surplus() -> None:
    others, answers = drawn(np.random.default_rng(0), 40_000)
    said, expected = agreement_with_others(others, answers)
    assert abs(np.mean(said - expected)) < 0.005
    assert abs(np.mean(log_score_surplus(others, answers))) < 0.02


def test_permuting_classes_permutes_confusions() -> None:
    others, answers = drawn(np.random.default_rng(1), 200)
    order = np.array([2, 0, 3, 1])
    place = np.argsort(order)
    counts, permuted = soft_confusions(others, answers), soft_confusions(others[:, order], place[answers])
    np.testing.assert_allclose(permuted, counts[np.ix_(order, order)])
    found, again = shrunk_confusions(counts, counts * 5), shrunk_confusions(permuted, permuted * 5)
    np.testing.assert_allclose(again.value, found.value[np.ix_(order, order)])
    np.testing.assert_allclose(found.value.sum(axis=1), 1)


@pytest.mark.parametrize("n", [10, 50, 300])
def test_few_labels_brand_nobody_who_is_like_the_others(n: int) -> None:
    rng = np.random.default_rng(n)
    everybody = soft_confusions(*drawn(rng, 4000))
    named = [shrunk_confusions(soft_confusions(*drawn(rng, n)), everybody).notable.any() for _ in range(200)]
    assert np.mean(named) <= 0.05


def test_many_labels_tell_who_differs() -> None:
    rng, said = np.random.default_rng(7), np.eye(K)
    said[0] = [0.6, 0.4, 0, 0]
    everybody = soft_confusions(*drawn(rng, 4000))
    found = shrunk_confusions(soft_confusions(*drawn(rng, 400, said)), everybody)
    assert np.argwhere(found.notable).tolist() == [[0, 1]]
    assert found.low[0, 1] > found.everybody[0, 1]


def test_intervals_of_shares_cover() -> None:
    rng = np.random.default_rng(3)
    inside = []
    for _ in range(2000):
        rate = rng.beta(8, 2)  # as the prior says
        pulled = shrunk_share(rng.binomial(30, rate), 30, 0.8, strength=10)
        inside.append(pulled.low <= rate <= pulled.high)
    assert 0.93 <= np.mean(inside) <= 0.97


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="hits 3 of 2"):
        shrunk_share(3, 2, 0.5)
    with pytest.raises(ValueError, match="deviation 0"):
        shrunk_mean(np.ones(2), 0, 0.0)
    with pytest.raises(ValueError, match=r"\(3, 2\) and \(2,\)"):
        soft_confusions(np.ones((3, 2)), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match="classes 0 to 1"):
        log_score_surplus(np.ones((1, 2)), np.array([2]))
    with pytest.raises(ValueError, match="shapes"):
        shrunk_confusions(np.ones((2, 2)), np.ones((3, 3)))
