"""Annotators by name: the fit of their matrices, the posterior of a case, and whether one has changed."""

import json
import tracemalloc
from itertools import product

import numpy as np
import pytest
import scipy.stats
from scipy.special import gammaln, softmax

from experiments.worlds.named_reader_worlds import N_CLASSES, World, world
from ml.annotations import Annotations
from ml.annotators import posterior
from ml.annotators.choosing import choose_readers
from ml.annotators.confusions import ReaderModel
from ml.annotators.drift import drift_paths, excess_log_loss, weekly_bands
from ml.annotators.fitting import (
    Anchor,
    FitInputs,
    case_log_likelihoods,
    fit_rates,
    fit_readers,
    held_out_gain,
    left_out,
    log_prior,
    next_label_losses,
    opinion_counts,
)
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
from ml.metrics.betting_monitor import FLOOR, LARGEST
from ml.util.arrays import FloatArray, IntArray

IDENTITY = np.eye(N_CLASSES)


def long_labels(drawn: World) -> Annotations:
    return Annotations(drawn.case, drawn.annotator, drawn.label, len(drawn.logits), drawn.answers.shape[1], N_CLASSES)


def prior_of(drawn: World) -> DirichletCpe:
    return DirichletCpe(softmax(drawn.logits / 1.5, axis=1), np.full(len(drawn.logits), 1.0))


def material_of(drawn: World, prior: PredictiveDistribution | None = None) -> FitInputs:
    return FitInputs(Opinions.of(prior or prior_of(drawn)), long_labels(drawn))


def some_matrices(n_readers: int, seed: int) -> FloatArray:
    rng = np.random.default_rng(seed)
    return 0.7 * IDENTITY + 0.3 * rng.dirichlet(np.ones(N_CLASSES), size=(n_readers, N_CLASSES))


def penalised_log_likelihood(material: FitInputs, confusions: FloatArray, anchor: Anchor) -> float:
    """The fit's objective at given matrices (A, K, K)."""
    prior = log_prior(confusions, anchor.pseudo_counts(len(confusions)))
    return float(case_log_likelihoods(material, confusions).sum()) + prior


def em_step(material: FitInputs, confusions: FloatArray, anchor: Anchor) -> FloatArray:
    """Matrices (A, K, K) after a step of expectation–maximisation."""
    counts = opinion_counts(material, confusions, left_out(material, confusions)[0])
    counts = counts + anchor.pseudo_counts(len(confusions))
    return np.asarray(counts / counts.sum(axis=2, keepdims=True))


@pytest.mark.parametrize("members", [1, 3])
def test_a_step_never_lowers_the_penalised_likelihood(members: int) -> None:
    drawn = world("biased half", "confusions", 4, 200, 0)
    prior: PredictiveDistribution = prior_of(drawn)
    if members > 1:
        noisy = np.random.default_rng(0).normal(size=(members, *drawn.logits.shape)) + drawn.logits
        prior = DirichletMixtureCpe(softmax(noisy, axis=2), np.full(noisy.shape[:2], 1.0))
    material, anchor = material_of(drawn, prior), Anchor(IDENTITY, 5.0)
    confusions = some_matrices(4, 1)
    values = [penalised_log_likelihood(material, confusions, anchor)]
    for _ in range(25):
        confusions = em_step(material, confusions, anchor)
        values.append(penalised_log_likelihood(material, confusions, anchor))
    assert (np.diff(values) >= -1e-9).all()
    assert values[-1] > values[0] + 1


def test_the_fit_is_where_a_step_changes_nothing() -> None:
    material, anchor = material_of(world("novice", "confusions", 3, 300, 0)), Anchor(IDENTITY, 10.0)
    made = fit_readers(material, anchor, tolerance=1e-13)
    here = material.adjusted(made.shift)
    np.testing.assert_allclose(em_step(here, made.confusions, anchor), made.confusions, atol=2e-4)
    best = penalised_log_likelihood(here, made.confusions, anchor)
    for moved in ((0.02, 0.0), (-0.02, 0.0), (0.0, 0.05), (0.0, -0.05)):
        other = material.adjusted((made.shift[0] + moved[0], made.shift[1] + moved[1], made.shift[2]))
        assert penalised_log_likelihood(other, made.confusions, anchor) < best


def test_what_is_expected_before_a_label_is_the_posterior_without_it() -> None:
    drawn = world("alike", "confusions", 5, 60, 0)
    long, prior, confusions = long_labels(drawn), prior_of(drawn), some_matrices(5, 2)
    expected, log_likelihood, _ = left_out(FitInputs(Opinions.of(prior), long), confusions)
    whole = named_posterior(Opinions.of(prior), long, confusions)
    np.testing.assert_allclose(log_likelihood, whole.log_likelihood, atol=1e-12)
    np.testing.assert_allclose(case_log_likelihoods(material_of(drawn), confusions), whole.log_likelihood, atol=1e-12)
    for label in range(0, len(long.case), 17):
        kept = np.arange(len(long.case)) != label
        without = Annotations(long.case[kept], long.annotator[kept], long.label[kept], 60, 5, N_CLASSES)
        before = named_posterior(Opinions.of(prior), without, confusions).opinion_probs[long.case[label]]
        np.testing.assert_allclose(expected[label], before, atol=1e-13)


def test_an_infinitely_strong_pull_is_alike_and_moves_nobody() -> None:
    material = material_of(world("novice", "confusions", 3, 200, 0))
    made = fit_readers(material, Anchor(IDENTITY, np.inf))
    assert (made.confusions == IDENTITY).all()
    strong = fit_readers(material, Anchor(IDENTITY, 1e7), made)
    np.testing.assert_allclose(strong.confusions, np.tile(IDENTITY, (3, 1, 1)), atol=1e-3)


def test_a_rate_finds_who_says_something_else() -> None:
    drawn = world("novice", "confusions", 4, 1500, 0)
    made = fit_rates(material_of(drawn), (1 - IDENTITY) / (N_CLASSES - 1))
    kept = np.einsum("akk->ak", made.confusions).mean(axis=1)
    assert kept[0] == pytest.approx(0.6, abs=0.12)
    assert kept[1:].min() > 0.9


@pytest.mark.slow
def test_names_are_used_where_they_predict_left_out_labels() -> None:
    """And named experts are the population."""
    drawn = world("biased half", "confusions", 4, 400, 0)
    chosen = choose_readers(prior_of(drawn), long_labels(drawn), list("abcd"), experts=["c", "d"])
    assert chosen.kind != "alike"
    assert chosen.losses[chosen.kind] == min(chosen.losses.values()) < chosen.losses["alike"] - 0.01
    assert chosen.model.names == tuple("abcd")
    # a and b call class 2 by the name of class 1
    assert chosen.model.confusions[:2, 2, 1].min() > 0.15 > chosen.model.confusions[2:, 2, 1].max()
    shares = chosen.model.n_labels[2:] / chosen.model.n_labels[2:].sum()
    expected = np.einsum("a,akl->kl", shares, chosen.model.confusions[2:])
    np.testing.assert_allclose(chosen.model.population, expected, atol=1e-12)


def test_hundreds_of_annotators_take_little_memory() -> None:
    """A crowd of 300 has 7,500 parameters; nothing may be as large as their square, here 450 MB."""
    rng = np.random.default_rng(0)
    drawn = world("alike", "confusions", 4, 300, 0)
    labels = long_labels(drawn)
    crowd = Annotations(labels.case, rng.integers(300, size=len(labels.case)), labels.label, 300, 300, N_CLASSES)
    tracemalloc.start()
    fit_readers(FitInputs(Opinions.of(prior_of(drawn)), crowd), Anchor(IDENTITY, 10.0), tolerance=1e-3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


@pytest.mark.slow
def test_annotators_who_are_alike_stay_alike() -> None:
    drawn = world("alike", "confusions", 4, 400, 0)
    chosen = choose_readers(prior_of(drawn), long_labels(drawn), list("abcd"))
    assert chosen.kind == "alike"
    assert chosen.model.names == ()
    np.testing.assert_array_equal(chosen.model.population, IDENTITY)


def test_somebody_unknown_answers_like_the_population() -> None:
    model = ReaderModel(("a",), np.array([30]), some_matrices(1, 0), some_matrices(1, 1)[0], 0.1, -0.2)
    np.testing.assert_array_equal(model.matrices(["nobody", "a"]), np.stack([model.population, model.confusions[0]]))
    assert model.matrices([]).shape == (0, N_CLASSES, N_CLASSES)


def test_a_model_is_read_back_to_the_last_bit() -> None:
    model = ReaderModel(("a", "b"), np.array([30, 2]), some_matrices(2, 0), some_matrices(1, 1)[0], 0.1, -0.2)
    back = ReaderModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert back.to_dict() == model.to_dict()
    alike = ReaderModel.alike(N_CLASSES)
    assert ReaderModel.from_dict(json.loads(json.dumps(alike.to_dict()))).to_dict() == alike.to_dict()


def test_what_is_no_model_is_refused() -> None:
    document = ReaderModel.alike(3).to_dict()
    with pytest.raises(ValueError, match="of version 9"):
        ReaderModel.from_dict(document | {"version": 9})
    with pytest.raises(ValueError, match="population missing"):
        ReaderModel.from_dict({key: value for key, value in document.items() if key != "population"})
    with pytest.raises(ValueError, match="is named twice"):
        ReaderModel(("a", "a"), np.zeros(2, dtype=np.int64), some_matrices(2, 0), IDENTITY)


def test_too_little_to_choose_by_is_refused() -> None:
    drawn = world("alike", "confusions", 2, 30, 0)
    with pytest.raises(ValueError, match="at least 3 are needed"):
        choose_readers(prior_of(drawn), long_labels(drawn), ["a", "b"], np.zeros(30, dtype=np.int64))
    with pytest.raises(ValueError, match="no label by z"):
        choose_readers(prior_of(drawn), long_labels(drawn), ["a", "b"], experts=["z"])


@pytest.mark.parametrize(("situation", "passes"), [("biased half", True), ("alike", False)])
def test_names_are_used_only_where_they_predict_the_next_label_of_cases_that_no_fit_saw(
    situation: str, passes: bool
) -> None:
    fitted_on, held_out = world(situation, "confusions", 4, 600, 0), world(situation, "confusions", 4, 1500, 1)
    names, anchor = list("abcd"), Anchor(IDENTITY, 10.0)
    made = fit_readers(material_of(fitted_on), anchor)
    n_labels = np.bincount(fitted_on.annotator)
    population = np.einsum("a,akl->kl", n_labels / n_labels.sum(), made.confusions)
    model = ReaderModel(tuple(names), n_labels, made.confusions, population, *made.shift)
    alike = fit_readers(material_of(fitted_on), Anchor(IDENTITY, np.inf))
    respread = ReaderModel((), n_labels[:0], made.confusions[:0], IDENTITY, *alike.shift)
    gain = held_out_gain(prior_of(held_out), long_labels(held_out), names, (model, respread))
    assert gain.passed is passes
    assert gain.over_served.n == (long_labels(held_out).per_case >= 2).sum()


def test_the_loss_of_a_label_is_that_of_the_posterior_of_the_others() -> None:
    drawn = world("alike", "confusions", 3, 40, 0)
    long, prior = long_labels(drawn), prior_of(drawn)
    losses = next_label_losses(prior, long, list("abc"), ReaderModel.alike(N_CLASSES))
    counts = long.counts()
    for label in range(0, len(losses), 11):
        case, k = long.case[label], long.label[label]
        others = counts.copy()
        others[case, k] -= 1
        assert losses[label] == pytest.approx(-np.log(prior.posterior(others).class_probs[case, k]), abs=1e-12)


def labels_of(labels: list[list[tuple[int, int]]], n_readers: int, n_classes: int) -> Annotations:
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
    return labels_of(given, n_readers, n_classes)


def dirichlet(n: int, k: int, rng: np.random.Generator) -> DirichletCpe:
    return DirichletCpe(rng.dirichlet(np.ones(k), size=n), rng.normal(size=n) * 2)


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
    named, alike = named_posterior(Opinions.of(prior), long, identity), prior.posterior(long.counts())
    np.testing.assert_allclose(named.answer_probs(np.eye(k)), alike.class_probs, rtol=0, atol=1e-12)
    differ = named.disagreement_probs(np.eye(k), np.eye(k))
    np.testing.assert_allclose(differ, alike.disagreement_probs, rtol=0, atol=1e-12)
    np.testing.assert_allclose(named.log_likelihood, prior.log_likelihood(long.counts()), rtol=0, atol=1e-10)


def by_all_opinions(
    f: FloatArray, alpha: float, given: list[tuple[int, int]], confusions: FloatArray
) -> list[FloatArray]:
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
    evidence, mean, products = by_all_opinions(f, np.exp(a), given, confusions)
    found = named_posterior(
        Opinions.of(DirichletCpe(f[None], np.array([a]))), labels_of([given], n_readers, k), confusions
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
    before = named_posterior(Opinions.of(prior), labels_of([[]], 1, k), confusions)
    chance = before.answer_probs(confusions[0])[0]
    after = [named_posterior(Opinions.of(prior), labels_of([[(0, y)]], 1, k), confusions) for y in range(k)]
    mean = sum(p * found.opinion_probs[0] for p, found in zip(chance, after, strict=True))
    np.testing.assert_allclose(mean, before.opinion_probs[0], atol=1e-14)
    np.testing.assert_allclose(np.exp([found.log_likelihood[0] for found in after]), chance, atol=1e-14)
    population = some_confusions(1, k, rng)[0]
    now = before.answer_probs(population)[0]
    moved = [((found.answer_probs(population)[0] - now) ** 2).sum() for found in after]
    fall = sum(p * square for p, square in zip(chance, moved, strict=True))
    assert before.worth(confusions[0], population)[0] == pytest.approx(fall, abs=1e-14)


def test_answers_as_dirichlets_keep_mean_and_disagreement() -> None:
    rng = np.random.default_rng(5)
    k, confusions, population = 4, some_confusions(2, 4, rng), some_confusions(1, 4, rng)[0]
    long = labels_of([[(0, 1), (1, 3)]] * 9, 2, k)
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
    long = labels_of([[(r, int(rng.integers(k))) for r in range(5)] for _ in range(30)], 5, k)
    exact = named_posterior(prior, long, confusions)
    assert not exact.dropped.any()
    monkeypatch.setattr(posterior, "MAX_STATES", keep if keep < n_count_vectors(5, k) else 10)
    kept = named_posterior(prior, long, confusions)
    off = np.abs(kept.opinion_probs - exact.opinion_probs).max()
    assert (kept.dropped > 0).any()
    assert off <= kept.dropped.max()
    monkeypatch.setattr(posterior, "MAX_STATES", 0)
    monkeypatch.setattr(posterior, "top_k_weights", lambda a, b, c, d, _: top_k_weights(a, b, c, d, 10_000))
    sparse = named_posterior(prior, long, confusions)
    np.testing.assert_allclose(sparse.opinion_products, exact.opinion_products, atol=1e-13)
    np.testing.assert_allclose(sparse.log_likelihood, exact.log_likelihood, atol=1e-12)
    assert not sparse.dropped.any()


def test_hundreds_of_classes_take_little_memory() -> None:
    """A million count vectors may follow from those that were kept: they are weighed and not written out."""
    rng, k = np.random.default_rng(7), 120
    prior = Opinions.of(DirichletCpe(rng.dirichlet(np.full(k, 0.02), 8), np.ones(8)))
    confusions = np.stack([(1 - s) * np.eye(k) + s / k for s in (0.1, 0.4)])
    long = labels_of([[(r % 2, int(rng.integers(k))) for r in range(3)] for _ in range(8)], 2, k)
    tracemalloc.start()
    found = named_posterior(prior, long, confusions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_allclose(found.opinion_probs.sum(axis=1), 1)
    assert (found.dropped < 0.01).all()
    assert peak < 300e6


def test_a_label_that_nothing_allows_is_taken_at_its_word() -> None:
    prior = DirichletCpe(np.array([[1.0, 0.0]]), np.array([0.0]))
    long = labels_of([[(0, 1)]], 1, 2)
    found = named_posterior(Opinions.of(prior), long, np.eye(2)[None])
    assert found.log_likelihood[0] == -np.inf
    np.testing.assert_allclose(found.opinion_probs, prior.posterior(np.array([[0, 1]])).class_probs)


def test_a_label_that_no_member_allows_still_has_answers() -> None:
    """The mean that the moments have, not an error: a case page must open whatever the label."""
    probs = np.array([[[1.0, 0.0, 0.0]], [[0.6, 0.4, 0.0]]])
    opinions = Opinions(probs, np.array([[1.0], [0.5]]), np.log([[0.3], [0.7]]))
    long = labels_of([[(0, 2), (1, 2)]], 2, 3)
    identity = np.array([np.eye(3)] * 2)
    for population in (np.eye(3), 0.9 * np.eye(3) + 0.1 / 3):
        seen = answer_distribution(opinions, long, identity, population)
        exact = named_posterior(opinions, long, identity)
        np.testing.assert_allclose(seen.class_probs, exact.answer_probs(population), rtol=1e-12)
        assert np.isfinite(class_intervals(seen)).all()


def test_what_does_not_fit_together_is_refused() -> None:
    prior = Opinions.of(dirichlet(2, 3, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="prior of 2 cases and 3 classes, labels of 1 and 3"):
        named_posterior(prior, labels_of([[(0, 1)]], 1, 3), np.eye(3)[None])


def test_rounding_lifts_no_probability_above_one() -> None:
    prior = Opinions.of(DirichletCpe(np.array([[1.0, 0.0]]), np.array([-5.0])))
    swapped = np.array([[0.0, 1.0], [1.0, 0.0]])
    answers = answer_distribution(prior, labels_of([[(0, 0)]], 1, 2), np.eye(2)[None], swapped)
    assert answers.member_class_probs.max() <= 1.0
    np.testing.assert_allclose(class_intervals(answers)[0, 1], [1.0, 1.0], atol=1e-9)


K, PER_DAY = 8, 15


def year_of(
    rng: np.random.Generator, days: int, *, careless: float = 0.0, from_day: int = 0
) -> tuple[FloatArray, IntArray]:
    """Excess losses of who answers as predicted, and from a day on takes a class at random now and then."""
    n = days * PER_DAY
    probs, day = rng.dirichlet(np.full(K, 0.3), n), np.repeat(np.arange(days), PER_DAY)
    label = (rng.random(n)[:, None] > probs.cumsum(axis=1)).sum(axis=1).clip(0, K - 1)
    label = np.where((rng.random(n) < careless) & (day >= from_day), rng.integers(K, size=n), label)
    return excess_log_loss(probs, label), day


def test_the_excess_is_zero_on_average_for_somebody_who_answers_as_predicted_and_stays_in_its_range() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(K, 0.2), 50)
    every = np.stack([excess_log_loss(probs, np.full(50, label)) for label in range(K)], axis=1)
    assert (probs * every).sum(axis=1) == pytest.approx(0, abs=1e-12)
    assert every.max() <= LARGEST
    assert every.min() >= -np.log(K)
    certain = excess_log_loss(np.eye(K)[:1], np.array([1]))
    assert certain == pytest.approx(-np.log(FLOOR))


def test_the_bands_of_all_weeks_contain_their_expectation_together_and_are_no_band_of_everything() -> None:
    """Of 40 half-years at level .5 at most half may have a week outside; a band is at most 2.5 times Student.s."""
    rng, missed = np.random.default_rng(1), 0
    for _ in range(40):
        excess, day = year_of(rng, 56)
        bands = weekly_bands(excess, day // 7, K, level=0.5)
        missed += any(not band.low <= 0 <= band.high for band in bands)
        first = excess[day < 7]
        student = scipy.stats.t.ppf(1 - 0.25 / 2, len(first) - 1) * first.std(ddof=1) / np.sqrt(len(first))
        assert bands[0].high - bands[0].low < 2.5 * 2 * student
    assert missed <= 0.5 * 40


def test_bands_contain_the_mean_are_narrower_with_more_units_and_wider_from_week_to_week() -> None:
    rng = np.random.default_rng(2)
    excess, day = year_of(rng, 28)
    for band in weekly_bands(excess, day // 7, K):
        assert band.low < band.mean < band.high
    (all_in_one,) = weekly_bands(excess, np.zeros(len(excess), dtype=np.int64), K)
    (half,) = weekly_bands(excess[: len(excess) // 4], np.zeros(len(excess) // 4, dtype=np.int64), K)
    assert all_in_one.high - all_in_one.low < half.high - half.low
    same = np.tile(excess[:105], 5)
    widths = [band.high - band.low for band in weekly_bands(same, np.repeat(np.arange(5), 105), K)]
    assert (np.diff(widths) >= 0).all()
    assert widths[-1] > widths[0]


def test_who_becomes_careless_is_told_and_who_does_not_is_left_alone() -> None:
    """One of five takes a class at random in a fifth of the answers from day 60 on."""
    rng = np.random.default_rng(3)
    series = [year_of(rng, 150, careless=0.2 * (who == 2), from_day=60) for who in range(5)]
    paths = drift_paths([excess for excess, _ in series], [day for _, day in series], K)
    alarms = [path.alarm_day() for path in paths]
    assert [day is None for day in alarms] == [True, True, False, True, True]
    assert alarms[2] is not None
    assert 60 <= alarms[2] < 110


def test_habits_of_their_own_are_no_drift() -> None:
    """Who is careless from the first day on has an excess in each week and no alarm."""
    excess, day = year_of(np.random.default_rng(4), 150, careless=0.3)
    (path,) = drift_paths([excess], [day], K)
    assert path.alarm_day() is None
    assert weekly_bands(excess, day // 7, K)[0].low > 0


def test_what_was_seen_stays_when_weeks_are_added() -> None:
    excess, day = year_of(np.random.default_rng(5), 70, careless=0.3, from_day=40)
    early = np.flatnonzero(day < 49)
    assert weekly_bands(excess, day // 7, K)[:7] == weekly_bands(excess[early], day[early] // 7, K)
    (before,), (after,) = (drift_paths([excess[rows]], [day[rows]], K) for rows in (early, slice(None)))
    np.testing.assert_allclose(after.log_capital[: len(before.day)], before.log_capital)


@pytest.mark.parametrize("excess", [[-3.0], [9.0], [np.nan]])
def test_an_excess_out_of_its_range_is_refused(excess: list[float]) -> None:
    with pytest.raises(ValueError, match="excess"):
        weekly_bands(np.array(excess), np.zeros(1, dtype=np.int64), K)


def test_weeks_that_go_back_are_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        weekly_bands(np.zeros(2), np.array([1, 0]), K)
