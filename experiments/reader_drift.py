"""How often the alarm on an annotator rings without reason, and how soon it rings with one.

    python -m experiments.reader_drift --years 200 --save

Simulated years of a laboratory of five annotators, each with the same number of patients per day. Beside the alarm the
simplest thing that could do the job: each week a one-sided t test at .05 of the week against all weeks before it.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np
import scipy.stats

from experiments import RESULTS
from ml.annotators.drift import drift_paths, excess_log_loss, weekly_bands
from ml.metrics.betting_monitor import LEVEL, TOLERANCE
from ml.util.arrays import FloatArray, IntArray

K, READERS, DAYS, CHANGED = 8, 5, 364, 182
#: Weeks before the t test has anything to compare with.
FIRST_WEEKS = 4


@dataclass(frozen=True)
class World:
    """A laboratory.

    Attributes:
        name: what it is called.
        per_day: patients of each annotator per day.
        habit: share of the answers in which annotator 1 says the next class, from the first day on.
        sharpness: by which the logits of predictions are too large.
        hard_weeks: whether every other week's cells are harder.
        change: share of the answers in which the last annotator says the next class, from day ``CHANGED`` on.
    """

    name: str
    per_day: int = 15
    habit: float = 0.0
    sharpness: float = 1.0
    hard_weeks: bool = False
    change: float = 0.0


UNCHANGED = (
    World("alike"),
    World("one with a habit", habit=0.3),
    World("predictions twice as sure as they should be", sharpness=2.0),
    World("harder cells every other week", hard_weeks=True),
)
CHANGING = tuple(
    World(f"{per_day} patients per day, {share:.0%} of the answers", per_day=per_day, change=share)
    for per_day in (15, 40)
    for share in (0.05, 0.1, 0.2)
)


def year_of(world: World, reader: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Excess losses of an annotator's patients (N,), nats, and the day of each (N,)."""
    n = DAYS * world.per_day
    day = np.repeat(np.arange(DAYS), world.per_day)
    hard = np.where((day // 7 % 2 == 1) & world.hard_weeks, 0.6, 0.3)
    shares = rng.gamma(np.broadcast_to(hard[:, None], (n, K)))
    probs = shares / shares.sum(axis=1, keepdims=True)
    label = (rng.random(n)[:, None] > probs.cumsum(axis=1)).sum(axis=1).clip(0, K - 1)
    share = np.full(n, world.habit if reader == 0 else 0.0)
    share[day >= CHANGED] += world.change if reader == READERS - 1 else 0.0
    label = np.where(rng.random(n) < share, (label + 1) % K, label)
    said = np.maximum(probs, 1e-12) ** world.sharpness
    return excess_log_loss(said / said.sum(axis=1, keepdims=True), label), day


def laboratory(world: World, seed: int) -> list[tuple[FloatArray, IntArray]]:
    """A year of each annotator."""
    rng = np.random.default_rng(seed)
    return [year_of(world, reader, rng) for reader in range(READERS)]


def alarms(series: Sequence[tuple[FloatArray, IntArray]]) -> list[int | None]:
    """First day of each annotator's alarm."""
    paths = drift_paths([excess for excess, _ in series], [day for _, day in series], K)
    return [path.alarm_day() for path in paths]


def t_test_day(excess: FloatArray, day: IntArray, first_week: int = FIRST_WEEKS) -> int | None:
    """Last day of the first week from one on that is worse than those before it by a one-sided t test at .05."""
    week = day // 7
    for number in range(first_week, int(week[-1]) + 1):
        found = scipy.stats.ttest_ind(excess[week == number], excess[week < number], equal_var=False)
        if found.statistic > 0 and found.pvalue / 2 < LEVEL:
            return number * 7 + 6
    return None


def missed(series: Sequence[tuple[FloatArray, IntArray]], expected: Sequence[float]) -> int:
    """Annotators of whom any week's band misses what was to be expected."""
    count = 0
    for (excess, day), mean in zip(series, expected, strict=True):
        count += any(not band.low <= mean <= band.high for band in weekly_bands(excess, day // 7, K))
    return count


def share(count: int, runs: int) -> str:
    """A share with its Monte-Carlo standard error."""
    value = count / runs
    error = np.sqrt(max(value * (1 - value), 1 / runs * (1 - 1 / runs)) / runs)
    return f"{value:.1%} ± {error:.1%}"


def quantiles(days: Sequence[int | None]) -> str:
    """10, 50 and 90 % of delays in days; – where there was no alarm within the year."""
    shown = np.quantile([np.inf if day is None else day - CHANGED for day in days], (0.1, 0.5, 0.9), method="higher")
    return " / ".join("–" if np.isinf(value) else f"{value:.0f}" for value in shown)


def report(years: int, runs: int) -> str:
    """Both tables, in Markdown."""
    lines = [
        "# The alarm on an annotator who changes",
        "",
        f"`python -m experiments.reader_drift --years {years} --shifts {runs} --save`: {READERS} annotators,",
        f"{K} classes, looked at every day. Tolerance {TOLERANCE:g} nats per label, level {LEVEL:g} a year, shared by",
        "all annotators. Of the last one a share of the answers is the next class from the middle of the year on.",
        "*t test*: one-sided at .05, each week against all weeks before it. ± is the Monte-Carlo standard error.",
        "",
        "## Years with an alarm on anybody, though nobody has changed",
        "",
        "| laboratory | alarm | t test every week | annotators with a week outside its band |",
        "|---|---|---|---|",
    ]
    for world in UNCHANGED:
        rang = tested = outside = 0
        wide = [np.mean([laboratory(world, 10_000 + seed)[r][0].mean() for seed in range(20)]) for r in range(READERS)]
        for seed in range(years):
            series = laboratory(world, seed)
            rang += any(day is not None for day in alarms(series))
            tested += any(t_test_day(*own) is not None for own in series)
            # of hard weeks the expectation is another one each week
            outside += 0 if world.hard_weeks else missed(series, wide)
            print(f"\r{world.name}: {seed + 1} of {years} years{'':<30}", end="", file=sys.stderr)
        bands = "not counted" if world.hard_weeks else share(outside, years * READERS)
        lines.append(f"| {world.name} | {share(rang, years)} | {share(tested, years)} | {bands} |")
    lines += [
        "",
        "## Days until the alarm on the one who changed",
        "",
        f"10 / 50 / 90 % of {runs} runs; – not within the half year that follows.",
        "",
        "| laboratory | excess, nats per label | alarm | t test every week | others with an alarm |",
        "|---|---|---|---|---|",
    ]
    for world in CHANGING:
        rings, tests, others, moved = [], [], 0, []
        for seed in range(runs):
            series = laboratory(world, 50_000 + seed)
            *rest, last = alarms(series)
            rings.append(last)
            others += any(day is not None for day in rest)
            excess, day = series[-1]
            after = day >= CHANGED
            moved.append(excess[after].mean() - excess[~after].mean())
            tests.append(t_test_day(excess, day, CHANGED // 7))  # whatever it said before
            print(f"\r{world.name}: {seed + 1} of {runs} runs{'':<30}", end="", file=sys.stderr)
        delays = f"{quantiles(rings)} | {quantiles(tests)}"
        lines.append(f"| {world.name} | {np.mean(moved):+.2f} | {delays} | {share(others, runs)} |")
    print(file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=200, help="of each laboratory without a change")
    parser.add_argument("--shifts", type=int, default=60, help="of each laboratory with one")
    parser.add_argument("--save", action="store_true", help="keep the tables in benchmarks/results")
    arguments = parser.parse_args()
    text = report(arguments.years, arguments.shifts)
    print(text)
    if arguments.save:
        path = RESULTS / f"{date.today().isoformat()}_reader_drift.md"
        path.write_text(text)


if __name__ == "__main__":
    main()
