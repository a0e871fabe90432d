"""How often an unchanged champion alarms in a year of daily looks, and how long a shift of a tenth goes unseen.

Every laboratory goes through the service's own columns, units, stakes and alarm (``app/metrics/score_alarm.py``).
Beside it the simplest thing: a one-sided z test at .05 of the patients after the reference period against those of it,
every morning or every week, with the same tolerance and without one.
"""

import argparse
import sys
from datetime import date

import numpy as np

from experiments import RESULTS
from experiments.worlds.monitored_years import PER_DAY, WORLDS, YEAR, World, alarm_days, series, year, z_test_day
from ml.metrics.betting_monitor import FLOOR, LEVEL, N_REFERENCE, TOLERANCE

TOLERANCES = (0.02, 0.05, 0.1)
CHANGED, FOLLOWED = 120, 180
#: Laboratories whose shift is looked for, and at how many of their sites, the last ones, it happens.
SHIFTED = ((WORLDS[0], 99), (WORLDS[1], 99), (WORLDS[2], 99), (WORLDS[2], 1), (WORLDS[3], 99), (WORLDS[5], 99))


def _progress(text: str) -> None:
    print(f"\r{text:<70}", end="", file=sys.stderr)


def false_alarms(world: World, years: int) -> list[int]:
    """Years with an alarm of: the monitor, z tests every day and week with the tolerance, and without it."""
    found = np.zeros(5, dtype=np.int64)
    for seed in range(years):
        units = series(year(world, seed, YEAR), YEAR)
        rules = [alarm_days(units)]
        rules += [
            [z_test_day(of_site, every, tolerance) for of_site in units.values()]
            for tolerance in (TOLERANCE, 0.0)
            for every in (1, 7)
        ]
        found += [any(day is not None for day in days) for days in rules]
        _progress(f"{world.name}: {seed + 1} of {years} years")
    return [int(count) for count in found]


def share(count: int, n: int) -> str:
    return f"{count / n:.1%} ± {np.sqrt(max(count, 1) * max(n - count, 1) / n**3):.1%}"


def delays(world: World, changed_sites: int, runs: int) -> dict[float, tuple[list[float], list[float], int]]:
    """Days and units from the shift to the alarm (∞ if not within the days that follow), and alarms before it."""
    days = CHANGED + FOLLOWED
    found: dict[float, tuple[list[float], list[float], int]] = {tolerance: ([], [], 0) for tolerance in TOLERANCES}
    for seed in range(10_000, 10_000 + runs):
        units = series(year(world, seed, days, CHANGED, changed_sites), days)
        for tolerance in TOLERANCES:
            after, counted, before = found[tolerance]
            alarm = min((day for day in alarm_days(units, tolerance) if day is not None), default=None)
            if alarm is not None and alarm < CHANGED:
                found[tolerance] = (after, counted, before + 1)
                continue
            begun = units[None].day[0]
            after.append(np.inf if alarm is None else alarm - CHANGED + 1)
            within = (units[None].day - begun >= CHANGED) & (units[None].day - begun <= (alarm or 0))
            counted.append(np.inf if alarm is None else float(within.sum()))
        _progress(f"{world.name}: {seed - 9_999} of {runs} shifts")
    return found


def quantiles(values: list[float]) -> str:
    ranked = np.quantile(values, [0.1, 0.5, 0.9], method="inverted_cdf")
    return " / ".join(f"{value:.0f}" if np.isfinite(value) else "–" for value in ranked)


def costs(world: World, changed_sites: int) -> str:
    """What the shift does to agreement and loss where it happens."""
    loss, agreement = [], []
    for changed_from in (None, 0):
        known = year(world, 99, 700, changed_from, changed_sites)
        last = list(series(known, 700).values())[-1]
        here = known.site == list(known.sites)[-1] if changed_sites == 1 else np.ones(len(known), dtype=bool)
        loss.append(last.loss.mean())
        agreement.append((known.class_probs.argmax(axis=1) == known.first_class)[here].mean())
    return f"{agreement[0]:.3f} → {agreement[1]:.3f} | {loss[0]:.2f} → {loss[1]:.2f}"


def at_the_edge(years: int) -> str:
    """Years with an alarm where the score is worse by exactly the tolerance after the reference period."""
    begin = N_REFERENCE // PER_DAY
    lines = [
        "# The alarm on the log score, at the edge of what it tolerates",
        "",
        f"`python -m experiments.monitor --edge --years {years} --save`: the score is worse by exactly the tolerance",
        f"of {TOLERANCE:g} nats per label from day {begin} on, the end of the reference period; the level is {LEVEL:g}",
        "a year. ± is the Monte-Carlo standard error.",
        "",
        "| laboratory | years with an alarm |",
        "|---|---|",
    ]
    for world in WORLDS[:2]:
        before, after = (series(year(world, 99, 700, start), 700)[None].loss.mean() for start in (None, 0))
        moved = 0.1 * TOLERANCE / (after - before)
        count = 0
        for seed in range(years):
            days = alarm_days(series(year(world, 50_000 + seed, YEAR, begin, moved=moved), YEAR))
            count += any(day is not None for day in days)
            _progress(f"{world.name}, at the edge: {seed + 1} of {years} years")
        lines.append(f"| {world.name} | {share(count, years)} |")
    return "\n".join(lines) + "\n"


def report(years: int, runs: int) -> str:
    lines = [
        "# The alarm on the log score",
        "",
        f"`python -m experiments.monitor --years {years} --shifts {runs} --save`: simulated laboratories, forty cases",
        f"a day, looked at every morning. Log loss clipped at {FLOOR:g}; tolerance {TOLERANCE:g} nats per label;",
        f"reference period {N_REFERENCE:,} patients; level {LEVEL:g} a year, shared by all patients and those of each",
        "site.",
        "± is the Monte-Carlo standard error.",
        "",
        "## Years with an alarm, though nothing has changed",
        "",
        "*z tests*: one-sided at .05, patients after the reference period against those of it, every day or week, with",
        "the same tolerance and without.",
        "",
        "| laboratory | alarm | z daily, tolerance | weekly | z daily, no tolerance | weekly |",
        "|---|---|---|---|---|---|",
    ]
    for world in WORLDS:
        cells = " | ".join(share(count, years) for count in false_alarms(world, years))
        lines.append(f"| {world.name} | {cells} |")
    lines += [
        "",
        "## Delay to a shift of a tenth",
        "",
        f"From day {CHANGED} on a tenth of the probability of every class goes to the next one. 10 / 50 / 90 % of",
        f"{runs} runs; – not within {FOLLOWED} days. *At one*: at the smallest of the three sites only, which has a",
        "fifth of the cases.",
        "",
        "| laboratory | agreement | loss | tolerance | days | patients | alarms before |",
        "|---|---|---|---|---|---|---|",
    ]
    for world, changed_sites in SHIFTED:
        what = costs(world, changed_sites)
        for tolerance, (after, counted, before) in delays(world, changed_sites, runs).items():
            row = f"{quantiles(after)} | {quantiles(counted)} | {before}"
            name = f"{world.name}, at one" if changed_sites == 1 else world.name
            lines.append(f"| {name} | {what} | {tolerance:g} | {row} |")
    print(file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=300, help="of each laboratory without a change")
    parser.add_argument("--shifts", type=int, default=60, help="of each laboratory with one")
    parser.add_argument("--edge", action="store_true", help="only a champion that is worse by exactly the tolerance")
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    text = at_the_edge(arguments.years) if arguments.edge else report(arguments.years, arguments.shifts)
    print(text)
    if arguments.save:
        name = f"{date.today().isoformat()}_monitor{'_edge' if arguments.edge else ''}.md"
        (RESULTS / name).write_text(text)


if __name__ == "__main__":
    main()
