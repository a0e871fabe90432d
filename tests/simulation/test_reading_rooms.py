"""Reading rooms against closed forms, the tables of what many cells would cost, and Theorem 1."""

import math
from typing import Any

import numpy as np
import pytest

from experiments import RESULTS
from experiments.reading_rooms import MEDIAN_SECONDS, SPREAD, TWICE, Costs, Room, demand, erlang_c, newest
from experiments.scale import CELLS, per_cell, shown, tables
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
from tools.document_numbers import ROOT

MEAN_READING = MEDIAN_SECONDS * math.exp(SPREAD**2 / 2)


def costs(read: float = 0.0, case: float = 0.0) -> Costs:
    return Costs(read, case, 0.0, 0.0)


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """The error by 20 stretches of time, since neighbours wait alike."""
    means = [float(np.mean(part)) for part in np.array_split(np.array(values), 20)]
    return float(np.mean(means)), float(np.std(means, ddof=1)) / math.sqrt(len(means))


@pytest.mark.parametrize(("processes", "load"), [(1, 0.5), (3, 0.7), (12, 0.85)])
def test_cells_without_annotators_wait_as_erlang_says(processes: int, load: float) -> None:
    rate = load * processes
    seen = Room(0, rate, processes, costs(case=1.0), seed=processes).run(60_000)
    mean, error = mean_and_error(seen.case_waits)
    assert mean == pytest.approx(erlang_c(rate, 1.0, processes), abs=4 * error)
    assert seen.busy / seen.seconds == pytest.approx(rate, rel=0.03)


def test_erlang_of_one_process_is_the_textbook_queue() -> None:
    assert erlang_c(0.8, 1.0, 1) == pytest.approx(0.8 / (1 - 0.8))
    assert erlang_c(1.0, 1.0, 2) == pytest.approx(1 / 3)  # worked by hand: a third of all wait, for one second


def read_rate(readers: int, processes: int, cost: float) -> float:
    """Requests per second of a closed room, from the probabilities of n annotators at the API."""
    weights = [1.0]
    for n in range(readers):
        weights.append(weights[-1] * (readers - n) / MEAN_READING * cost / min(n + 1, processes))
    total = sum(weights)
    return sum(min(n, processes) * weight for n, weight in enumerate(weights)) / total / cost


@pytest.mark.parametrize(("readers", "processes"), [(10, 1), (30, 2)])
def test_annotators_who_come_back_load_the_api_as_the_closed_form_says(readers: int, processes: int) -> None:
    expected = read_rate(readers, processes, cost=0.5)
    seen = Room(readers, 2 * expected, processes, costs(read=0.5), seed=readers).run(60_000)
    assert len(seen.waits) / seen.seconds == pytest.approx(expected, rel=0.02)


def test_annotators_read_no_more_than_scanners_send() -> None:
    seen = Room(500, 5.0, 1, costs(read=0.001, case=0.001), seed=1).run(40_000)
    assert len(seen.waits) / seen.seconds == pytest.approx(5.0 * (1 + TWICE), rel=0.05)
    assert seen.reading / seen.seconds == pytest.approx(5.0 * (1 + TWICE) * MEAN_READING, rel=0.05)
    assert np.median(seen.empty) > 10 * MEDIAN_SECONDS


def test_the_same_seed_is_the_same_day() -> None:
    first, second = (Room(50, 3.0, 1, costs(read=0.02, case=0.02), seed=3).run(2_000) for _ in range(2))
    assert first == second


def test_cores_are_what_requests_cost() -> None:
    needed = demand(12.0, Costs(0.01, 0.02, 0.003, 0.006))
    assert needed == pytest.approx({"api": 12 * 0.01 + 10 * 0.02, "postgres": 0.096})


def test_the_document_has_the_tables_of_the_newest_figures() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert max(RESULTS.glob("*_scale.md")).read_text() == tables()
    assert [row for row in tables().splitlines() if row and row not in page] == []


def test_a_result_that_is_missing_is_named() -> None:
    with pytest.raises(SystemExit, match=r"run `python -m benchmarks\.no_such --save` first"):
        newest("no_such")


def test_a_cell_costs_what_its_case_and_its_labels_do() -> None:
    costs = newest("unit_costs")["figures"]
    costs["store a case"] |= {"api_seconds": 0.02, "wal_bytes": 9_000.0}
    costs["lease and label"] |= {"api_seconds": 0.05, "wal_bytes": 10_000.0}
    found = {what: value for what, value, _ in per_cell(costs)}
    assert found["API, 1.2 leases and labels: core time"] == pytest.approx(0.06)
    assert found["WAL"] == pytest.approx(9_000 + 1.2 * 10_000)
    assert shown(CELLS[0] * found["WAL"], "B") == "21 MB"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (25.6, "s", "26 s"),
        (25_600, "s", "7.1 h"),
        (2.5e7, "s", "290 days"),
        (5.3e12, "B", "5.3 TB"),
        (1e6, "", "1,000,000"),
    ],
)
def test_quantities_have_two_digits(value: float, unit: str, said: str) -> None:
    assert shown(value, unit) == said


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
