"""Posterior of cases whose labels have names: laws, and enumeration of all opinions."""

import tracemalloc
from itertools import product

import numpy as np
import pytest
from scipy.special import gammaln

from ml.annotations import Annotations
from ml.annotators import posterior
from ml.annotators.posterior import (
    Opinions,
    answer_distribution,
    count_vectors,
    n_count_vectors,
    named_posterior,
    top_k_weights,
)
from ml.distributions.decisions import class_intervals
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.util.arrays import FloatArray, IntArray


def long_labels(labels: list[list[tuple[int, int]]], n_readers: int, n_classes: int) -> Annotations:
    """Labels of cases as (annotator, class)."""
    rows = [(case, reader, label) for case, given in enumerate(labels) for reader, label in given]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    case, reader, label = table.T
    return Annotations(case, reader, label, len(labels), n_readers, n_classes)


def some_confusions(n_readers: int, n_classes: int, rng: np.random.Generator) -> FloatArray:
    return rng.dirichlet(np.ones(n_classes), size=(n_readers, n_classes)) * 0.5 + 0.5 * np.eye(n_classes)


def some_labels(n_cases: int, n_readers: int, n_classes: int, rng: np.random.Generator) -> Annotations:
    """Zero to three labels a case."""
    given = [
        [(int(r), int(rng.integers(n_classes))) for r in rng.choice(n_readers, int(rng.integers(4)), replace=False)]
        for _ in range(n_cases)
    ]
    return long_labels(given, n_readers, n_classes)


def dirichlet(n: int, k: int, rng: np.random.Generator) -> DirichletCpe:
    return DirichletCpe(rng.dirichlet(np.ones(k), size=n), rng.normal(size=n) * 2)


def counts_of(long: Annotations) -> IntArray:
    return long.counts()


PRIORS = ("dirichlet", "mixture", "ensemble", "point")


def some_prior(kind: str, n: int, k: int, rng: np.random.Generator) -> PredictiveDistribution:
    members, a = rng.dirichlet(np.ones(k), size=(3, n)), rng.normal(size=(3, n))
    made: dict[str, PredictiveDistribution] = {
        "dirichlet": dirichlet(n, k, rng),
        "mixture": DirichletMixtureCpe(members, a, rng.normal(size=(3, n))),
        "ensemble": EnsembleCpe(members),
        "point": PointCpe(members[0]),
    }
    return made[kind]


def test_all_count_vectors_and_what_follows_them() -> None:
    states, following = count_vectors(2, 3), count_vectors(3, 3)
    assert len(states.counts) == n_count_vectors(2, 3) == len(set(map(tuple, states.counts.tolist())))
    for row, vector in enumerate(states.counts):
        for k in range(3):
            assert (following.counts[states.following[row, k]] == vector + np.eye(3, dtype=int)[k]).all()


@pytest.mark.parametrize("kind", PRIORS)
def test_annotators_who_say_what_they_think_give_the_posterior_of_counts(kind: str) -> None:
    rng = np.random.default_rng(0)
    n, k = 200, 5
    prior, long = some_prior(kind, n, k, rng), some_labels(n, 4, k, rng)
    identity = np.tile(np.eye(k), (4, 1, 1))
    named, alike = named_posterior(Opinions.of(prior), long, identity), prior.posterior(counts_of(long))
    np.testing.assert_allclose(named.answer_probs(np.eye(k)), alike.class_probs, rtol=0, atol=1e-12)
    differ = named.disagreement_probs(np.eye(k), np.eye(k))
    np.testing.assert_allclose(differ, alike.disagreement_probs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(named.log_likelihood, prior.log_likelihood(counts_of(long)), rtol=0, atol=1e-10)


def _brute_force(f: FloatArray, alpha: float, given: list[tuple[int, int]], confusions: FloatArray) -> list[FloatArray]:
    """Likelihood, E[q] and E[q qᵀ] by all opinions z."""
    k = len(f)
    evidence, mean, products = 0.0, np.zeros(k), np.zeros((k, k))
    for opinions in product(range(k), repeat=len(given)):
        counts = np.bincount(np.array(opinions, dtype=int), minlength=k)
        shapes = alpha * f + counts
        sequence = np.exp((gammaln(shapes) - gammaln(alpha * f)).sum() + gammaln(alpha) - gammaln(alpha + len(given)))
        weight = sequence * np.prod([confusions[r, z, y] for z, (r, y) in zip(opinions, given, strict=True)])
        total = shapes.sum()
        evidence += weight
        mean += weight * shapes / total
        products += weight * (np.outer(shapes, shapes) + np.diag(shapes)) / (total * (total + 1))
    return [np.array(evidence), mean / evidence, products / evidence]


@pytest.mark.parametrize("seed", range(6))
def test_it_is_what_all_opinions_give(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, n_readers = 3, 3
    f, a, confusions = rng.dirichlet(np.ones(k)), float(rng.normal()), some_confusions(n_readers, k, rng)
    given = [(r, int(rng.integers(k))) for r in rng.permutation(n_readers)[: seed % 4].tolist()]
    evidence, mean, products = _brute_force(f, np.exp(a), given, confusions)
    found = named_posterior(
        Opinions.of(DirichletCpe(f[None], np.array([a]))), long_labels([given], n_readers, k), confusions
    )
    assert found.log_likelihood[0] == pytest.approx(np.log(evidence), abs=1e-12)
    np.testing.assert_allclose(found.opinion_probs[0], mean, atol=1e-13)
    np.testing.assert_allclose(found.opinion_products[0], products, atol=1e-13)
    together = 1 - sum((confusions[0].T @ products @ confusions[1])[y, y] for y in range(k))
    assert found.disagreement_probs(confusions[0], confusions[1])[0] == pytest.approx(together, abs=1e-13)


def test_the_prior_is_the_mean_of_what_labels_will_say() -> None:
    """Over the answers of a named annotator, weighted as predicted, the posterior averages to the prior."""
    rng = np.random.default_rng(4)
    k, confusions, prior = 4, some_confusions(1, 4, rng), dirichlet(1, 4, rng)
    before = named_posterior(Opinions.of(prior), long_labels([[]], 1, k), confusions)
    chance = before.answer_probs(confusions[0])[0]
    after = [named_posterior(Opinions.of(prior), long_labels([[(0, y)]], 1, k), confusions) for y in range(k)]
    mean = sum(p * found.opinion_probs[0] for p, found in zip(chance, after, strict=True))
    np.testing.assert_allclose(mean, before.opinion_probs[0], atol=1e-14)
    np.testing.assert_allclose(np.exp([found.log_likelihood[0] for found in after]), chance, atol=1e-14)
    population = some_confusions(1, k, rng)[0]
    now = before.answer_probs(population)[0]
    fall = sum(
        p * ((found.answer_probs(population)[0] - now) ** 2).sum() for p, found in zip(chance, after, strict=True)
    )
    assert before.worth(confusions[0], population)[0] == pytest.approx(fall, abs=1e-14)


def test_answers_as_dirichlets_keep_mean_and_disagreement() -> None:
    rng = np.random.default_rng(5)
    k, confusions, population = 4, some_confusions(2, 4, rng), some_confusions(1, 4, rng)[0]
    long = long_labels([[(0, 1), (1, 3)]] * 9, 2, k)
    for kind in ("dirichlet", "mixture"):
        opinions = Opinions.of(some_prior(kind, 9, k, rng))
        exact = named_posterior(opinions, long, confusions)
        answers = answer_distribution(opinions, long, confusions, population)
        np.testing.assert_allclose(answers.class_probs, exact.answer_probs(population), atol=1e-9)
        differ = exact.disagreement_probs(population, population)
        np.testing.assert_allclose(answers.disagreement_probs, differ, atol=1e-8)


@pytest.mark.parametrize("keep", [1, 4, 1000])
def test_the_heaviest_count_vectors_are_kept_and_the_rest_is_told(keep: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    k, confusions, prior = 4, some_confusions(5, 4, rng), Opinions.of(dirichlet(30, 4, rng))
    long = long_labels([[(r, int(rng.integers(k))) for r in range(5)] for _ in range(30)], 5, k)
    exact = named_posterior(prior, long, confusions)
    assert not exact.dropped.any()
    monkeypatch.setattr(posterior, "MAX_STATES", keep if keep < n_count_vectors(5, k) else 10)
    kept = named_posterior(prior, long, confusions)
    off = np.abs(kept.opinion_probs - exact.opinion_probs).max()
    assert (kept.dropped > 0).any()
    assert off <= kept.dropped.max()
    monkeypatch.setattr(posterior, "MAX_STATES", 0)
    monkeypatch.setattr("ml.annotators.posterior.top_k_weights", _all_of_them)
    sparse = named_posterior(prior, long, confusions)
    np.testing.assert_allclose(sparse.opinion_products, exact.opinion_products, atol=1e-13)
    np.testing.assert_allclose(sparse.log_likelihood, exact.log_likelihood, atol=1e-12)
    assert not sparse.dropped.any()


def _all_of_them(
    f: FloatArray, a: FloatArray, likelihood: FloatArray, labels: IntArray, _: int
) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    return top_k_weights(f, a, likelihood, labels, 10_000)


def test_hundreds_of_classes_take_little_memory() -> None:
    """A million count vectors may follow from those that were kept: they are weighed and not written out."""
    rng, k = np.random.default_rng(7), 120
    prior = Opinions.of(DirichletCpe(rng.dirichlet(np.full(k, 0.02), 8), np.ones(8)))
    confusions = np.stack([(1 - s) * np.eye(k) + s / k for s in (0.1, 0.4)])
    long = long_labels([[(r % 2, int(rng.integers(k))) for r in range(3)] for _ in range(8)], 2, k)
    tracemalloc.start()
    found = named_posterior(prior, long, confusions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found.opinion_probs.sum(axis=1), 1)
    assert (found.dropped < 0.01).all()
    assert peak < 300e6


def test_a_label_that_nothing_allows_is_taken_at_its_word() -> None:
    prior = DirichletCpe(np.array([[1.0, 0.0]]), np.array([0.0]))
    long = long_labels([[(0, 1)]], 1, 2)
    found = named_posterior(Opinions.of(prior), long, np.eye(2)[None])
    assert found.log_likelihood[0] == -np.inf
    np.testing.assert_allclose(found.opinion_probs, prior.posterior(np.array([[0, 1]])).class_probs)


def test_a_label_that_no_member_allows_still_has_answers() -> None:
    """The mean that the moments have, not an error: a case page must open whatever the label."""
    probs = np.array([[[1.0, 0.0, 0.0]], [[0.6, 0.4, 0.0]]])
    opinions = Opinions(probs, np.array([[1.0], [0.5]]), np.log([[0.3], [0.7]]))
    long = long_labels([[(0, 2), (1, 2)]], 2, 3)
    identity = np.array([np.eye(3)] * 2)
    for population in (np.eye(3), 0.9 * np.eye(3) + 0.1 / 3):
        seen = answer_distribution(opinions, long, identity, population)
        exact = named_posterior(opinions, long, identity)
        np.testing.assert_allclose(seen.class_probs, exact.answer_probs(population), rtol=1e-12)
        assert np.isfinite(class_intervals(seen)).all()


def test_what_does_not_fit_together_is_refused() -> None:
    prior = Opinions.of(dirichlet(2, 3, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="prior of 2 cases and 3 classes, labels of 1 and 3"):
        named_posterior(prior, long_labels([[(0, 1)]], 1, 3), np.eye(3)[None])


def test_rounding_lifts_no_probability_above_one() -> None:
    prior = Opinions.of(DirichletCpe(np.array([[1.0, 0.0]]), np.array([-5.0])))
    swapped = np.array([[0.0, 1.0], [1.0, 0.0]])
    answers = answer_distribution(prior, long_labels([[(0, 0)]], 1, 2), np.eye(2)[None], swapped)
    assert answers.member_class_probs.max() <= 1.0
    np.testing.assert_allclose(class_intervals(answers)[0, 1], [1.0, 1.0], atol=1e-9)
