"""Posteriors are scored on labels that did not form them."""

import itertools

import numpy as np
import pytest

from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, PointCpe
from ml.metrics import epistemic_loss
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss, posterior_gain
from tests.ml.test_metrics import Counts, Floats, draw


def enumerate_splits(y: Counts, f: Floats, a: Floats) -> tuple[list[float], list[float]]:
    """Gain and EL′ of each case by taking each single label out in turn."""
    gains, losses = [], []
    for counts, prior, log_a in zip(y, f, a, strict=True):
        labels = np.repeat(np.arange(len(counts)), counts)
        gain, loss = [], []
        for taken in range(len(labels)):
            alpha = np.exp(log_a)
            posterior = (alpha * prior + np.eye(len(counts))[labels[taken]]) / (alpha + 1)
            rest = np.delete(labels, taken)
            squares = [((np.eye(len(counts))[c] - z) ** 2).sum() for c in rest for z in (prior, posterior)]
            gain.append(np.mean(squares[::2]) - np.mean(squares[1::2]))
            if len(rest) >= 2:
                # unbiased for Σ(q − z)²: products of two different labels' errors
                pairs = [
                    (np.eye(len(counts))[b] - posterior) @ (np.eye(len(counts))[c] - posterior)
                    for b, c in itertools.permutations(rest, 2)
                ]
                loss.append(np.mean(pairs))
        gains.append(float(np.mean(gain)))
        if loss:
            losses.append(float(np.mean(loss)))
    return gains, losses


def test_all_splits_equal_enumeration_of_labels() -> None:
    y, f = draw(0, n=30, low=2)
    a = np.random.default_rng(0).normal(0, 1, 30)
    prior = DirichletCpe(f, a)
    gains, losses = enumerate_splits(y, f, a)
    assert posterior_gain(y, prior).value == pytest.approx(np.mean(gains), abs=1e-13)
    found = posterior_epistemic_loss(y, prior)
    assert found.value == pytest.approx(np.mean(losses), abs=1e-13)
    assert found.dropped == (y.sum(1) < 3).sum()


def test_a_point_gains_nothing_and_keeps_its_epistemic_loss() -> None:
    y, f = draw(1, low=3)
    assert posterior_gain(y, PointCpe(f)).value == pytest.approx(0, abs=1e-14)
    assert posterior_epistemic_loss(y, PointCpe(f)).value == pytest.approx(epistemic_loss(y, f).value, abs=1e-13)


def test_gain_and_loss_agree_with_the_truth_in_simulation() -> None:
    rng = np.random.default_rng(2)
    n, k, alpha = 40_000, 4, 3.0
    f = rng.dirichlet(np.ones(k), n)
    q = np.clip(np.array([rng.dirichlet(alpha * row + 1e-9) for row in f]), 0, 1)
    y = np.array([rng.multinomial(4, row / row.sum()) for row in q])
    prior = DirichletCpe(f, np.full(n, np.log(alpha)))
    exact = exact_posterior_epistemic_loss(y, q, prior)
    estimated = posterior_epistemic_loss(y, prior)
    assert estimated.se is not None
    assert abs(estimated.value - exact.value) < 4 * estimated.se
    gain = posterior_gain(y, prior)
    truth = ((q - f) ** 2).sum(1).mean() - exact.value
    assert gain.se is not None
    assert abs(gain.value - truth) < 4 * gain.se
    # what the distribution itself promises: (1 − Σf²)/(α0 + 1)² less error
    assert gain.value == pytest.approx(((1 - (f**2).sum(1)) / (alpha + 1) ** 2).mean(), abs=4 * gain.se)


def test_a_mixture_of_equal_members_is_the_single_dirichlet() -> None:
    y, f = draw(3, low=1)
    a = np.full(len(y), 0.5)
    single, mixture = DirichletCpe(f, a), DirichletMixtureCpe(np.stack([f, f]), np.stack([a, a]))
    assert posterior_gain(y, mixture).value == pytest.approx(posterior_gain(y, single).value, abs=1e-14)


def test_shapes_that_do_not_fit_are_refused() -> None:
    y, f = draw(4)
    with pytest.raises(ValueError, match="do not fit"):
        posterior_gain(y[:5], PointCpe(f))
    with pytest.raises(ValueError, match="one shape"):
        exact_posterior_epistemic_loss(y, f[:, :2] / f[:, :2].sum(1, keepdims=True), PointCpe(f))
