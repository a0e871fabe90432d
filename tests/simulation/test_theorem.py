"""Theorem 1, confirmed by simulation."""

from typing import Any

import numpy as np
import pytest

from experiments.theorem import (
    Moments,
    disagreement_error,
    disagreement_lower_end,
    disagreement_optimum,
    posterior_epistemic_error,
    posterior_lower_end,
    posterior_optimum,
)
from ml.distributions.families import DirichletCpe

GRID = np.linspace(-8, 8, 401)


def simulated(biased: bool, seed: int = 0, size: int = 60_000) -> tuple[Any, Any, Moments]:
    """Draws of q around their mean, predicted rightly or with a bias."""
    rng = np.random.default_rng(seed)
    mean = np.array([0.5, 0.3, 0.2])
    q = rng.dirichlet(3.0 * mean, size)[:, None, :]
    f = np.array([[0.35, 0.35, 0.3]]) if biased else q.mean(axis=0)
    return q, f, Moments.of(q, f)


@pytest.mark.parametrize("biased", [False, True])
def test_the_formulas_are_the_simulated_losses(biased: bool) -> None:
    q, f, moments = simulated(biased)
    rng = np.random.default_rng(1)
    for n in (1, 4):
        counts = np.array([rng.multinomial(n, p / p.sum()) for p in q[:, 0]])
        for a in (-2.0, 0.5, 3.0):
            prior = DirichletCpe(np.repeat(f, len(q), axis=0), np.full(len(q), a))
            found = ((prior.posterior(counts).class_probs - q[:, 0]) ** 2).sum(1).mean()
            assert posterior_epistemic_error(moments, a, n)[0] == pytest.approx(found, rel=0.02)
            phi, truth = prior.disagreement_probs[0], 1 - (q[:, 0] ** 2).sum(1)
            error = ((phi - truth) ** 2).mean() - truth.var()
            assert disagreement_error(moments, a)[0] == pytest.approx(error, abs=1e-10)


@pytest.mark.parametrize("biased", [False, True])
def test_optima_and_ends_are_where_a_search_finds_them(biased: bool) -> None:
    _, _, moments = simulated(biased)
    errors = disagreement_error(moments, GRID)
    if np.isfinite(disagreement_optimum(moments)[0]):
        assert GRID[errors.argmin()] == pytest.approx(disagreement_optimum(moments)[0], abs=0.04)
    helpful = GRID[errors <= disagreement_error(moments, 700.0) + 1e-15]
    end = disagreement_lower_end(moments)[0]
    if np.isfinite(end):
        assert helpful.min() == pytest.approx(end, abs=0.05)
    for n in (1, 3):
        errors = posterior_epistemic_error(moments, GRID, n)
        assert GRID[errors.argmin()] == pytest.approx(posterior_optimum(moments)[0], abs=0.04)
        helpful = GRID[errors <= moments.epistemic[0] + 1e-15]
        end = posterior_lower_end(moments, n)[0]
        assert helpful.min() == pytest.approx(end if np.isfinite(end) else GRID[0], abs=0.05)
        assert helpful.max() == GRID[-1]  # never worse further up


def test_an_unbiased_prediction_has_one_optimum_the_true_concentration() -> None:
    _, _, moments = simulated(False)
    assert disagreement_optimum(moments)[0] == pytest.approx(np.log(3.0), abs=0.03)
    assert posterior_optimum(moments)[0] == pytest.approx(disagreement_optimum(moments)[0], abs=1e-9)


def test_limits() -> None:
    sure = Moments(np.array([0.5]), np.array([0.5]), np.array([0.0]))
    assert disagreement_optimum(sure)[0] == np.inf
    assert posterior_optimum(sure)[0] == np.inf
    torn = Moments(np.array([0.5]), np.array([0.0]), np.array([0.5]))
    assert disagreement_optimum(torn)[0] == -np.inf
    assert posterior_lower_end(torn)[0] == -np.inf
