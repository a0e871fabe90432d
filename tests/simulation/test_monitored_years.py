"""A champion that has not changed alarms in no more years than the level says; one that has is found."""

import numpy as np
import pytest
from scipy.stats import binom

from experiments.worlds.monitored_years import CALIBRATED, WORLDS, YEAR, World, alarm_days, series, year
from ml.metrics.betting_monitor import LEVEL

CHANGED, FOLLOWED = 100, 100


def alarms(world: World, years: int) -> int:
    found = [alarm_days(series(year(world, seed, YEAR), YEAR)) for seed in range(years)]
    return sum(any(day is not None for day in days) for days in found)


def delay(world: World, seed: int) -> float:
    """Days from the change to the first alarm, ∞ without one; an alarm before the change fails."""
    days = CHANGED + FOLLOWED
    found = [day for day in alarm_days(series(year(world, seed, days, CHANGED), days)) if day is not None]
    assert not any(day < CHANGED for day in found)
    return min(found, default=np.inf) - CHANGED + 1


@pytest.mark.parametrize(
    ("world", "years"),
    [(WORLDS[1], 2), (WORLDS[5], 2), *(pytest.param(world, 60, marks=pytest.mark.heavy) for world in WORLDS)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_an_unchanged_champion_alarms_in_no_more_years_than_the_level(world: World, years: int) -> None:
    assert binom.sf(alarms(world, years) - 1, years, LEVEL) > 0.001


@pytest.mark.parametrize(("runs", "days"), [(3, 70), pytest.param(30, 42, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("sharpness", [CALIBRATED, 2 * CALIBRATED])
def test_a_tenth_of_the_labels_in_another_class_is_found_within_weeks(sharpness: float, runs: int, days: int) -> None:
    world = World("changed", sharpness)
    assert np.median([delay(world, seed) for seed in range(runs)]) <= days
