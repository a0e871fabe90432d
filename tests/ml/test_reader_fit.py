"""Fit of annotators' matrices: the likelihood never falls, its slope is right, and left-out labels choose."""

import json
import tracemalloc

import numpy as np
import pytest
from scipy.special import softmax

from experiments.worlds.named_reader_worlds import N_CLASSES, World, world
from ml.annotations import Annotations
from ml.annotators.choosing import choose_readers
from ml.annotators.confusions import ReaderModel
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
from ml.annotators.posterior import Opinions, named_posterior
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, PredictiveDistribution
from ml.util.arrays import FloatArray

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
        other = material.adjusted((made.shift[0] + moved[0], made.shift[1] + moved[1]))
        assert penalised_log_likelihood(other, made.confusions, anchor) < best


def test_what_is_expected_before_a_label_is_the_posterior_without_it() -> None:
    drawn = world("alike", "confusions", 5, 60, 0)
    long, prior, confusions = long_labels(drawn), prior_of(drawn), some_matrices(5, 2)
    expected, log_likelihood = left_out(FitInputs(Opinions.of(prior), long), confusions)
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
