"""Do intervals for new readers hold what new readers would say? Beside them, those for the readers who read.

    python -m experiments.reader_coverage --runs 2000 --save

Five populations of readers (experiments/worlds/reader_worlds.py), 5, 8 or 15 of them, who all read all of 300 cases, or
of whom one reads each of 2,000 cases and a second those of high φ and a tenth of the others. The metrics are those of
``evaluate`` and ``--against``, by patient. A run that was ended goes on where it stopped when it is asked for again.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from experiments import RESULTS
from experiments.worlds.reader_worlds import DESIGNS, Design, Study, World, truths, worlds
from ml.metrics import Estimate, Readings, evaluate, paired_changes

READERS = (5, 8, 15)
N_BINS = 10
#: What is asked to cover 93 to 97 %, and what is reported as it is found.
ASKED = ("L", "EL", "L_D", "agreement", "ΔL", "ΔEL", "ΔL_D", "Δagreement")
FOUND = ("CL", "CL_D", "skill", "skill_D")
GOAL = (0.93, 0.97)
#: Runs after which the next panel has its turn.
ROUND = 50


@dataclass
class Panel:
    """What runs of one population, design and number of readers gave, by metric.

    ``these`` and ``new`` count runs in which the interval held the truth, ``above`` and ``below`` those in which the
    truth lay above or below the interval for new readers; ``total`` and ``squares`` are sums of estimates, ``widths``
    those of lengths of both intervals.
    """

    world: str
    design: Design
    readers: int
    runs: int = 0
    seconds: float = 0.0
    these: dict[str, int] = field(default_factory=dict)
    new: dict[str, int] = field(default_factory=dict)
    above: dict[str, int] = field(default_factory=dict)
    below: dict[str, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    squares: dict[str, float] = field(default_factory=dict)
    widths: dict[str, list[float]] = field(default_factory=dict)

    def add(self, estimates: dict[str, Estimate], aims: dict[str, float]) -> None:
        self.runs += 1
        for name in (*ASKED, *FOUND):
            estimate, aim = estimates[name], aims[name]
            low, high, low_new, high_new = (
                np.nan if end is None else end
                for end in (estimate.low, estimate.high, estimate.low_new, estimate.high_new)
            )
            self.these[name] = self.these.get(name, 0) + bool(low <= aim <= high)
            self.new[name] = self.new.get(name, 0) + bool(low_new <= aim <= high_new)
            self.above[name] = self.above.get(name, 0) + bool(aim > high_new)
            self.below[name] = self.below.get(name, 0) + bool(aim < low_new)
            self.total[name] = self.total.get(name, 0.0) + estimate.value
            self.squares[name] = self.squares.get(name, 0.0) + estimate.value**2
            before = self.widths.get(name, [0.0, 0.0])
            self.widths[name] = [before[0] + high - low, before[1] + high_new - low_new]


def estimates_of(study: Study) -> dict[str, Estimate]:
    """Metrics and changes, by what is known in the design."""
    one, weighted = None, study.weights2 is not None
    if weighted:
        one = study.counts(first=True)
    readings = Readings(study.case, study.reader, study.label, study.first if weighted else None)
    weights = np.ones(len(study.patient)) if weighted else None
    given = {"first_label_counts": one, "sample_weight": (weights, study.weights2), "cluster": study.patient}
    metrics = evaluate(study.counts(), *study.before, readings=readings, n_bins=N_BINS, **given).metrics
    changes = paired_changes(study.counts(), study.before, study.after, readings=readings, n_bins=N_BINS, **given)
    return metrics | {f"Δ{name}": change for name, change in changes.items()}


def run(panel: Panel, world: World, aims: dict[str, float], runs: int) -> None:
    """More runs of a panel, each with a seed of its own."""
    start = time.process_time()
    for number in range(panel.runs, panel.runs + runs):
        rng = np.random.default_rng([11, number, panel.readers])
        panel.add(estimates_of(DESIGNS[panel.design](world, panel.readers, rng)), aims)
    panel.seconds += time.process_time() - start


def panels() -> Iterator[Panel]:
    for world in worlds():
        for design in DESIGNS:
            for readers in READERS:
                yield Panel(world.name, design, readers)


def coverage(panel: Panel, name: str) -> tuple[float, float, float]:
    """Share of runs that the interval for these readers covers, that for new ones, and the error of the latter."""
    new = panel.new[name] / panel.runs
    return panel.these[name] / panel.runs, new, float(np.sqrt(new * (1 - new) / panel.runs))


@dataclass(frozen=True)
class Coverage:
    """Mean coverage of several panels by both intervals, and the least and greatest by that for new readers."""

    these: float
    new: float
    least: float
    greatest: float

    @classmethod
    def of(cls, found: list[Panel], names: tuple[str, ...]) -> "Coverage":
        shares = [coverage(panel, name) for panel in found for name in names]
        these, new = ([share[side] for share in shares] for side in (0, 1))
        return cls(float(np.mean(these)), float(np.mean(new)), min(new), max(new))


def summary(found: list[Panel]) -> dict[str, Any]:
    """Coverage in the worlds of the goal by design and metric, in the others by design, and how much is as asked."""
    goal = {world.name for world in worlds() if world.goal}
    asked = [panel for panel in found if panel.world in goal]
    shares = [coverage(panel, name) for panel in asked for name in ASKED]
    # as many runs as there are cannot tell more than two of their errors
    errors = [max(error, float(np.sqrt(GOAL[0] * (1 - GOAL[0]) / asked[0].runs))) for _, _, error in shares]
    within = sum(
        GOAL[0] - 2 * error <= share <= GOAL[1] + 2 * error for (_, share, _), error in zip(shares, errors, strict=True)
    )
    by_metric = {
        design: {
            name: asdict(Coverage.of([panel for panel in asked if panel.design == design], (name,)))
            for name in (*ASKED, *FOUND)
        }
        for design in DESIGNS
    }
    others = {
        world.name: {
            design: asdict(
                Coverage.of([row for row in found if (row.world, row.design) == (world.name, design)], ASKED)
            )
            for design in DESIGNS
        }
        for world in worlds()
        if not world.goal
    }
    return {
        "runs": min(panel.runs for panel in found),
        "panels": len(found),
        "asked": len(shares),
        "within": within,
        "overall": asdict(Coverage.of(asked, ASKED)),
        "by_metric": by_metric,
        "others": others,
    }


def save(found: list[Panel], aims: dict[str, dict[str, float]]) -> None:
    """Keep the figures in ``benchmarks/results``."""
    document = {"date": date.today().isoformat(), "goal": GOAL, "summary": summary(found), "truths": aims}
    _path().write_text(json.dumps(document | {"panels": [asdict(row) for row in found]}, indent=1) + "\n")


def table(found: list[Panel]) -> str:
    names = (*ASKED, *FOUND)
    lines = ["coverage for new readers in per cent, of intervals for new readers (of those for these readers)"]
    lines.append(f"{'world':<10} {'design':<8} {'R':>2} {'runs':>5} " + "".join(f"{name:>13}" for name in names))
    for panel in found:
        shares = "".join(
            f"{100 * new:>7.1f} ({100 * these:.0f})".rjust(13)
            for these, new, _ in (coverage(panel, name) for name in names)
        )
        lines.append(f"{panel.world:<10} {panel.design:<8} {panel.readers:>2} {panel.runs:>5} {shares}")
    error = 100 * np.sqrt(0.95 * 0.05 / max(1, min(panel.runs for panel in found)))
    return "\n".join(
        [*lines, f"Monte-Carlo error of 95 %: {error:.1f} %; goal 93 to 97 % up to skill, but not in the last two"]
    )


def _path() -> Path:
    return RESULTS / f"{date.today().isoformat()}_reader_coverage.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="of each panel")
    parser.add_argument(
        "--save", action="store_true", help="keep the figures in benchmarks/results, and resume from there"
    )
    options = parser.parse_args()
    path = _path()
    found = list(panels())
    if options.save and path.is_file():
        found = [Panel(**row) for row in json.loads(path.read_text())["panels"]]
    known = {world.name: world for world in worlds()}
    aims = {name: truths(world) for name, world in known.items()}
    with Progress() as progress:
        task = progress.add_task("runs", total=options.runs * len(found), completed=sum(row.runs for row in found))
        while any(panel.runs < options.runs for panel in found):
            for panel in found:
                more = min(ROUND, options.runs - panel.runs)
                if more > 0:
                    run(panel, known[panel.world], aims[panel.world], more)
                    progress.advance(task, more)
            if options.save:
                save(found, aims)
    if options.save:
        save(found, aims)
    print(table(found))


if __name__ == "__main__":
    main()
