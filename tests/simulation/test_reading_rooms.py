"""The simulation of reading rooms against closed forms, where there are any."""

import math

import numpy as np
import pytest

from experiments.reading_rooms import MEDIAN_SECONDS, SPREAD, TWICE, Costs, Room, demand, erlang_c

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
