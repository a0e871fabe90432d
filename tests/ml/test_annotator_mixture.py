"""The model of names mixed with the exchangeable one: class bias, weight, answers and intervals."""

import json

import numpy as np
import pytest
from scipy.special import softmax

from experiments.worlds.named_reader_worlds import N_CLASSES, world
from ml.annotations import Annotations
from ml.annotators.choosing import stacking_weight
from ml.annotators.confusions import ReaderModel
from ml.annotators.fitting import (
    Anchor,
    FitInputs,
    case_log_likelihoods,
    fit_readers,
    next_label_losses,
    shift_slopes,
)
from ml.annotators.posterior import Component, Opinions, mixed_answers
from ml.distributions.decisions import class_intervals
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe
from ml.util.arrays import FloatArray
from tests.ml.test_annotators import by_all_opinions, dirichlet, labels_of, material_of, some_confusions, some_matrices


@pytest.mark.parametrize("members", [1, 3])
def test_the_slopes_of_spread_and_class_bias_are_those_of_the_likelihood(members: int) -> None:
    drawn, rng = world("biased half", "confusions", 4, 60, 0), np.random.default_rng(0)
    noisy = rng.normal(size=(members, *drawn.logits.shape)) + drawn.logits
    material = material_of(drawn, DirichletMixtureCpe(softmax(noisy, axis=2), np.ones(noisy.shape[:2])))
    confusions, at = some_matrices(4, 1), np.concatenate([[0.2, -0.3], rng.normal(size=N_CLASSES) / 3])

    def value(x: FloatArray) -> float:
        return float(case_log_likelihoods(material.adjusted((x[0], x[1], x[2:])), confusions).sum())

    shift = (at[0], at[1], at[2:])
    found = shift_slopes(material.adjusted(shift), confusions, shift)
    numeric = [(value(at + step) - value(at - step)) / 2e-5 for step in 1e-5 * np.eye(len(at))]
    np.testing.assert_allclose(found, numeric, atol=1e-5)


def test_a_class_bias_never_lowers_the_likelihood_and_undoes_what_the_panel_adds() -> None:
    """A release predicts answers; opinions are rarer in the class that annotators call too often."""
    rng, n, over = np.random.default_rng(1), 1500, 0.4
    f = rng.beta(1.5, 3.0, n)
    share = rng.beta(3 * f, 3 * (1 - f))
    label = (rng.random((n, 3)) < (share + over * (1 - share))[:, None]).astype(np.int64)
    said = f + over * (1 - f)
    prior = DirichletCpe(np.stack([1 - said, said], axis=1), np.full(n, np.log(3)))
    long = Annotations(np.repeat(np.arange(n), 3), np.tile(np.arange(3), n), label.ravel(), n, 3, 2)
    material, matrix = FitInputs(Opinions.of(prior), long), np.array([[1 - over, over], [0.0, 1.0]])
    pulled = Anchor(matrix, np.inf)
    before = case_log_likelihoods(material, np.tile(matrix, (3, 1, 1))).sum()
    made = fit_readers(material, pulled)
    after = case_log_likelihoods(material.adjusted(made.shift), made.confusions).sum()
    again = fit_readers(material, pulled, made, tolerance=1e-12)
    assert before + 10 < after <= case_log_likelihoods(material.adjusted(again.shift), again.confusions).sum() + 1e-6
    assert made.shift[2].sum() == pytest.approx(0, abs=1e-9)
    off = [
        np.abs(opinions.class_probs[0, :, 1] - f).mean()
        for opinions in (Opinions.of(prior), material.adjusted(made.shift).opinions)
    ]
    assert off[1] < off[0] / 3


def test_the_weight_of_names_is_the_best_on_left_out_labels_and_zero_without_a_gain() -> None:
    rng = np.random.default_rng(0)
    named, alike = rng.normal(size=(2, 300))
    weight = stacking_weight(named, alike)
    values = [
        np.logaddexp(np.log(w) + named, np.log1p(-w) + alike).sum() for w in (weight, weight - 0.01, weight + 0.01)
    ]
    assert 0 < weight < 1
    assert values[0] > max(values[1:])
    assert stacking_weight(alike - 0.1, alike) == stacking_weight(alike, alike) == 0.0
    assert stacking_weight(alike + 0.1, alike) == 1.0
    # labels that only one of the models allows
    assert 0 < stacking_weight(np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])) < 1


def some_mixture(k: int, weight: float, rng: np.random.Generator) -> ReaderModel:
    bias = rng.normal(size=k) / 3
    matrices, spread = some_confusions(3, k, rng), np.diag(rng.uniform(0, 0.01, k))
    alike = ReaderModel((), np.zeros(0, dtype=np.int64), np.zeros((0, k, k)), np.eye(k), -0.1, 0.4)
    parameters = tuple("abc"), np.full(3, 40), matrices, matrices.mean(axis=0), 0.2, -0.3, bias - bias.mean(), spread
    return ReaderModel(*parameters, weight, alike)


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_models_is_what_all_opinions_give(seed: int) -> None:
    """Evidence, answers, disagreement, next label and worth of a label, by enumeration under both models."""
    rng, k = np.random.default_rng(seed), 3
    model, prior = some_mixture(k, 0.3, rng), dirichlet(1, k, rng)
    given = [(r, int(rng.integers(k))) for r in range(seed % 3)]
    long = labels_of([given], 2, k)

    def by_hand(labels: list[tuple[int, int]]) -> tuple[float, FloatArray, float]:
        evidence, mean, same = 0.0, np.zeros(k), 0.0
        for part in model.components(prior, ["a", "b", "c"]):
            f, a = part.opinions.class_probs[0, 0], float(part.opinions.log_concentration[0, 0])
            total, first, second = by_all_opinions(f, np.exp(a), labels, part.confusions)
            evidence += part.weight * total
            mean += part.weight * total * (first @ part.population)
            same += part.weight * total * float((second * (part.population @ part.population.T + part.spread)).sum())
        return float(evidence), mean / evidence, same / float(evidence)

    evidence, mean, same = by_hand(given)
    answers = model.answers(prior, long, ["a", "b"], keep=0.0)
    np.testing.assert_allclose(answers.class_probs[0], mean, atol=1e-12)
    assert answers.disagreement_probs[0] == pytest.approx(1 - same, abs=1e-9)
    after = [by_hand([*given, (2, y)]) for y in range(k)]
    fall = sum(total / evidence * ((moved - mean) ** 2).sum() for total, moved, _ in after)
    assert model.expected_gains(prior, long, ["a", "b"], ["c"])[0, 0] == pytest.approx(fall, abs=1e-12)
    one_more = labels_of([[*given, (2, 1)]], 3, k)
    losses = next_label_losses(prior, one_more, ["a", "b", "c"], model)
    assert losses[-1] == pytest.approx(-np.log(after[1][0] / evidence), abs=1e-12)


def test_without_weight_a_model_is_the_exchangeable_one() -> None:
    rng, k = np.random.default_rng(3), 4
    prior, long = dirichlet(20, k, rng), labels_of([[(0, 1), (1, 2)]] * 20, 2, k)
    model = some_mixture(k, 0.0, rng)
    assert model.exchangeable is not None
    found, alike = (m.answers(prior, long, ["a", "b"]) for m in (model, model.exchangeable))
    assert found == alike
    served = ReaderModel.alike(k).answers(prior, long, ["a", "b"])
    np.testing.assert_allclose(served.class_probs, prior.posterior(long.counts()).class_probs, atol=1e-12)
    full, again = (some_mixture(k, 1.0, np.random.default_rng(5)) for _ in range(2))
    assert full.answers(prior, long, ["a", "b"]) == again.answers(prior, long, ["a", "b"])


def test_intervals_are_those_of_many_draws_of_the_matrices() -> None:
    """In two classes; and wider than with the matrices taken as known."""
    rng, draws = np.random.default_rng(0), 400
    mean, rests_on = np.array([[0.8, 0.2], [0.3, 0.7]]), np.array([25.0, 15.0])
    opinions, long = Opinions.of(DirichletCpe(np.array([[0.4, 0.6]]), np.array([3.0]))), labels_of([[(0, 1)]], 1, 2)
    variance = np.diag(2 * mean[:, 0] * mean[:, 1] / (rests_on + 1))
    drawn = np.stack([rng.dirichlet(row * n, draws) for row, n in zip(mean, rests_on, strict=True)], axis=1)
    known, certain = Component(opinions, mean[None], mean, np.zeros((2, 2))), np.zeros((2, 2))
    by_draws = mixed_answers([Component(opinions, mean[None], one, certain, 1 / draws) for one in drawn], long)
    at_once = mixed_answers([Component(opinions, mean[None], mean, variance)], long)
    wide, found, narrow = (class_intervals(one)[0, 0] for one in (by_draws, at_once, mixed_answers([known], long)))
    np.testing.assert_allclose(found, wide, atol=0.02)
    assert np.diff(wide) > 1.2 * np.diff(narrow)


def test_a_model_of_an_earlier_version_is_read() -> None:
    model = some_mixture(3, 0.4, np.random.default_rng(0))
    document = json.loads(json.dumps(model.to_dict()))
    assert ReaderModel.from_dict(document) == model
    later = ("class_bias", "population_spread", "weight", "exchangeable")
    earlier = ReaderModel.from_dict({key: value for key, value in document.items() if key not in later})
    assert (earlier.weight, earlier.exchangeable) == (1.0, None)
    assert not earlier.class_bias.any()
    assert not earlier.population_spread.any()
    with pytest.raises(ValueError, match=r"weight must be in \[0, 1\]"):
        ReaderModel.from_dict(document | {"weight": 1.5})
