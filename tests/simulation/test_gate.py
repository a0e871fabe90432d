"""The gate, the alarm and intervals for new readers, in worlds whose truth is known."""

import numpy as np
import pytest
from scipy.stats import binom

from experiments.reader_coverage import ASKED, Panel, coverage, run
from experiments.worlds.gate_trials import Looks, joined, passes
from experiments.worlds.gate_worlds import N_CASES, World, draw_partition, true_change, worlds
from experiments.worlds.monitored_years import CALIBRATED, WORLDS, YEAR, alarm_days, series, year
from experiments.worlds.monitored_years import World as Year
from experiments.worlds.reader_worlds import DESIGNS, Design, truths, world_of
from experiments.worlds.reader_worlds import worlds as reader_worlds
from ml.metrics.betting_monitor import LEVEL
from ml.metrics.cases import observed_disagreement, squared_terms, statistic_terms

#: Runs of the heavy test.
MANY = 1_000


def world(name: str) -> World:
    return next(found for found in worlds() if found.name == name)


def share(name: str, runs: int, looks: Looks = "new") -> float:
    return float(np.mean([passes(world(name), seed, looks) > 0 for seed in range(runs)]))


def allowed(goal: tuple[float, float], runs: int) -> tuple[float, float]:
    """The goal with three Monte-Carlo errors around it."""
    low, high = (end + sign * 3 * (end * (1 - end) / runs) ** 0.5 for end, sign in zip(goal, (-1, 1), strict=True))
    return low, high


@pytest.mark.slow
@pytest.mark.parametrize("name", ["better by .047 in both", "worse by .01 in L"])
def test_better_candidates_pass_and_worse_ones_do_not(name: str) -> None:
    low, high = allowed(world(name).passes, 40)
    assert low <= share(name, 40) <= high


@pytest.mark.slow
def test_what_one_bad_annotator_carries_is_refused_and_looking_again_helps_nobody() -> None:
    assert share("lives on one annotator", 40) <= 0.2
    # the same labels ten times: whoever fails at the first level fails at all stricter ones
    found = [passes(world("another seed"), seed, "same") for seed in range(40)]
    assert set(found) <= {0, 1}


@pytest.mark.heavy
def test_the_gate_reaches_its_goals() -> None:
    found = {one.name: share(one.name, MANY) for one in worlds()}
    print(found)
    for one in worlds():
        low, high = allowed(one.passes, MANY)
        assert low <= found[one.name] <= high, one.name


@pytest.mark.slow
@pytest.mark.ci
def test_joined_partitions_keep_first_labels_first() -> None:
    rng = np.random.default_rng(0)
    one, two = (draw_partition(world("identical"), rng, n) for n in (30, 20))
    both = joined(one, two)
    assert (both.case[:50] == np.arange(50)).all()
    assert (both.counts() == np.concatenate([one.counts(), two.counts()])).all()
    assert (both.counts(2) == np.concatenate([one.counts(2), two.counts(2)])).all()
    assert len(set(both.patient)) == len(set(one.patient)) + len(set(two.patient))


TRUE = {
    "better by .047 in both": (-0.047, -0.047),
    "better by .03 in L": (-0.03, 0.0),
    "identical": (0.0, 0.0),
    "worse by .01 in L": (0.01, 0.0),
    "worse by .01 in L_φ": (0.0, 0.01),
}


@pytest.mark.slow
def test_candidates_are_worth_what_their_names_say() -> None:
    for name, wanted in TRUE.items():
        here = world(name)
        assert true_change(here, here.fit(draw_partition(here, np.random.default_rng(0)), None)) == pytest.approx(
            wanted, abs=1e-4
        )
    other = world("another seed")
    assert true_change(other, other.fit(draw_partition(other, np.random.default_rng(0)), None)) == pytest.approx(
        (0, 0), abs=2e-3
    )


@pytest.mark.slow
def test_what_is_true_is_what_labels_say_of_many_cases() -> None:
    here = world("lives on one annotator")
    rng = np.random.default_rng(1)
    candidate = here.fit(draw_partition(here, rng, 20_000), None)
    part = draw_partition(here, rng, 200_000)
    first = np.zeros_like(part.true_probs, dtype=np.int64)
    first[part.case[:200_000], part.label[:200_000]] = 1
    counts = part.counts()
    twice = counts.sum(axis=1) == 2
    sides = [side.predict(part.logits) for side in (here.champion, candidate)]
    before, after = (squared_terms(first, side.class_probs) for side in sides)
    observed = observed_disagreement(counts[twice])
    old, new = (statistic_terms(observed, side.disagreement_probs[twice]) for side in sides)
    weight = 1 / part.pi[twice]
    found = float((after - before).mean()), float(weight @ (new - old) / weight.sum())
    assert found == pytest.approx(true_change(here, candidate), abs=4e-3)
    assert found[0] < -0.015  # it is better, by one annotator's labels alone
    assert here.fit(draw_partition(here, rng, 20_000), 4).moved < 0.02


@pytest.mark.slow
def test_a_refit_of_a_champion_that_is_right_is_a_little_worse() -> None:
    here = world("refitted on the same labels")
    changes = [
        true_change(here, here.fit(draw_partition(here, np.random.default_rng(seed)), None)) for seed in range(10)
    ]
    assert 0 <= np.mean(changes) < 0.004
    assert len(draw_partition(here, np.random.default_rng(0)).pi) == N_CASES


CHANGED, FOLLOWED = 100, 100


def alarms(world: Year, years: int) -> int:
    found = [alarm_days(series(year(world, seed, YEAR), YEAR)) for seed in range(years)]
    return sum(any(day is not None for day in days) for days in found)


def delay(world: Year, seed: int) -> float:
    """Days from the change to the first alarm at eight patients a day, ∞ without; an alarm before the change fails."""
    days = CHANGED + FOLLOWED
    units = series(year(world, seed, days, CHANGED, per_day=8), days)
    found = [day for day in alarm_days(units) if day is not None]
    assert not any(day < CHANGED for day in found)
    return min(found, default=np.inf) - CHANGED + 1


@pytest.mark.parametrize(
    ("world", "years"),
    [(WORLDS[1], 2), (WORLDS[5], 2), *(pytest.param(world, 60, marks=pytest.mark.heavy) for world in WORLDS)],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_an_unchanged_champion_alarms_in_no_more_years_than_the_level(world: Year, years: int) -> None:
    assert binom.sf(alarms(world, years) - 1, years, LEVEL) > 0.001


@pytest.mark.parametrize(("runs", "days"), [(9, 45), pytest.param(30, 30, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("sharpness", [CALIBRATED, 2 * CALIBRATED])
def test_a_tenth_of_the_labels_in_another_class_is_found_within_weeks(sharpness: float, runs: int, days: int) -> None:
    world = Year("changed", sharpness)
    assert np.median([delay(world, seed) for seed in range(runs)]) <= days


def panel(name: str, design: Design, readers: int, runs: int) -> Panel:
    world, found = world_of(name), Panel(name, design, readers)
    run(found, world, truths(world, blocks=12, n_readers=1_000), runs)
    return found


@pytest.mark.parametrize(("design", "readers"), [("crossed", 5), ("service", 8)])
def test_new_readers_are_covered_and_were_not(design: Design, readers: int) -> None:
    found = panel("leaning", design, readers, 30)
    for name in ASKED:
        assert coverage(found, name)[1] >= 0.8, name  # 24 of 30: one in ten thousand at 93 %
    assert coverage(found, "L")[0] <= 0.9
    assert coverage(found, "L_D")[0] <= 0.95


@pytest.mark.heavy
@pytest.mark.parametrize("design", list(DESIGNS))
@pytest.mark.parametrize("world", [world.name for world in reader_worlds() if world.goal])
def test_coverage_reaches_its_goal(world: str, design: Design) -> None:
    found = panel(world, design, 8, 400)
    for name in ASKED:
        _, new, error = coverage(found, name)
        assert 0.93 - 3 * error <= new <= 0.97 + 3 * max(error, 0.0085), (name, new)


def test_truth_is_that_of_many_readers_and_cases() -> None:
    """Of the readings themselves, without the estimators: squared loss and agreement of very many readers."""
    world = world_of("confusing")
    aims, rng = truths(world, blocks=12, n_readers=1_000), np.random.default_rng(5)
    study = DESIGNS["crossed"](world, 300, rng)
    probs = study.before[0]
    loss = 1 - 2 * probs[study.case, study.label] + (probs**2).sum(axis=1)[study.case]
    agreeing = probs.argmax(axis=1)[study.case] == study.label
    assert loss.mean() == pytest.approx(aims["L"], abs=0.06)
    assert agreeing.mean() == pytest.approx(aims["agreement"], abs=0.06)
