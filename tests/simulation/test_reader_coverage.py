"""Intervals for new readers hold what new readers would say; those for these readers do not."""

import numpy as np
import pytest

from experiments.reader_coverage import ASKED, Panel, coverage, run
from experiments.worlds.reader_worlds import DESIGNS, Design, truths, world_of, worlds


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
@pytest.mark.parametrize("world", [world.name for world in worlds() if world.goal])
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
