"""Whoever is quick reads most of one queue, and what is measured is theirs; with drawn annotators it is the pool's."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.worlds.queue_laboratory import Bias
from tests.simulation.drawn_laboratory import PEOPLE, QUANTITIES, DrawnLaboratory, Person

#: The same people, and nobody is away.
ALL_COME = tuple(replace(person, away=range(0)) for person in PEOPLE)


def simulated(
    n_laboratories: int, *, draws: bool, people: tuple[Person, ...] = PEOPLE
) -> tuple[dict[str, Bias], float]:
    """Relative bias of each quantity for the pool, and the share of answers by whoever was drawn."""
    seeds = range(5000, 5000 + n_laboratories)
    evenings = [DrawnLaboratory(seed, draws=draws, people=people).run() for seed in seeds]
    estimated, pool = [evening.estimated() for evening in evenings], [evening.pool for evening in evenings]
    as_drawn = sum(evening.n_as_drawn for evening in evenings) / sum(evening.n_answered for evening in evenings)
    return {name: _bias([row[name] for row in estimated], [row[name] for row in pool]) for name in QUANTITIES}, as_drawn


def _bias(values: list[float], truths: list[float]) -> Bias:
    differences, scale = np.array(values) - np.array(truths), float(np.mean(truths))
    return Bias(float(differences.mean()) / scale, float(differences.std(ddof=1)) / len(values) ** 0.5 / scale)


def z(bias: Bias) -> float:
    return bias.value / bias.error


@pytest.mark.slow
def test_one_queue_measures_whoever_is_quick_and_draws_measure_the_pool() -> None:
    """A few laboratories each, half a minute."""
    queue, _ = simulated(5, draws=False)
    drawn, as_drawn = simulated(5, draws=True)
    print(queue, drawn, as_drawn)
    assert queue["L"].value > 0.2
    assert queue["A"].value < -0.1
    assert abs(drawn["L"].value) < 0.1
    assert abs(drawn["A"].value) < 0.06
    assert 0.93 < as_drawn < 1  # somebody was away, and what they left was taken by others


@pytest.mark.heavy
def test_draws_are_unbiased_for_the_pool() -> None:
    """Order 1 and pairs, in eighty laboratories each; ten minutes."""
    queue, _ = simulated(80, draws=False)
    drawn, as_drawn = simulated(80, draws=True, people=ALL_COME)
    print(queue, drawn, as_drawn)
    assert z(queue["L"]) > 10
    assert z(queue["A"]) < -10
    assert z(queue["D"]) > 3
    assert all(abs(z(drawn[name])) < 3.5 for name in QUANTITIES), drawn
    assert as_drawn > 0.99


@pytest.mark.heavy
def test_what_others_take_of_somebody_who_is_away_moves_little() -> None:
    """Who comes first takes most of it: a twentieth of the answers, and a twelfth of what one queue is off by."""
    drawn, as_drawn = simulated(40, draws=True)
    print(drawn, as_drawn)
    assert abs(drawn["L"].value) < 0.06
    assert abs(drawn["A"].value) < 0.03
    assert 0.93 < as_drawn < 0.98
