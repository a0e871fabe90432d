"""How often an unchanged champion alarms in a year of daily looks, and how long a shift goes unseen.

Every laboratory goes through the service's own columns, units, stakes and alarm (``app/metrics/score_alarm.py``).
Next to it the alarm of before, which bets on the loss, and the simplest thing: a one-sided z test at .05 of the
patients after the reference period against those of it, every morning, with the tolerance of the loss and without one.
"""

import argparse
import sys
from datetime import date

import numpy as np

from experiments import RESULTS
from experiments.worlds.monitored_years import PER_DAY, WORLDS, YEAR, World, alarm_days, series, year, z_test_day
from ml.metrics.betting_monitor import FLOOR, LEVEL, N_REFERENCE, TOLERANCE

CHANGED, FOLLOWED = 120, 180
#: Cases per day of the laboratories, and shares of the probability that move.
RATES, MOVED = (8, PER_DAY), (0.1, 0.2)
#: Laboratories whose shift is looked for, and at how many of their sites, the last ones, it happens.
SHIFTED = ((WORLDS[0], 99), (WORLDS[1], 99), (WORLDS[2], 99), (WORLDS[2], 1), (WORLDS[3], 99), (WORLDS[6], 99))


def _progress(text: str) -> None:
    print(f"\r{text:<70}", end="", file=sys.stderr)


def false_alarms(world: World, per_day: int, years: int) -> list[int]:
    """Years with an alarm of: the monitor, z tests every day with the tolerance, and without it."""
    found = np.zeros(3, dtype=np.int64)
    for seed in range(years):
        units = series(year(world, seed, YEAR, per_day=per_day), YEAR)
        rules = [alarm_days(units)]
        rules += [[z_test_day(of_site, 1, limit) for of_site in units.values()] for limit in (TOLERANCE, 0.0)]
        found += [any(day is not None for day in days) for days in rules]
        _progress(f"{world.name}, {per_day} per day: {seed + 1} of {years} years")
    return [int(count) for count in found]


def share(count: int, n: int) -> str:
    return f"{count / n:.1%} ± {np.sqrt(max(count, 1) * max(n - count, 1) / n**3):.1%}"


def delays(world: World, changed_sites: int, per_day: int, moved: float, runs: int) -> list[tuple[list[float], int]]:
    """Days from the shift to the alarm (∞ if not within those that follow) and alarms before it: now, on the loss."""
    days = CHANGED + FOLLOWED
    found: list[list[float]] = [[], []]
    for seed in range(10_000, 10_000 + runs):
        units = series(year(world, seed, days, CHANGED, changed_sites, moved, per_day), days)
        for after, on_loss in zip(found, (False, True), strict=True):
            alarm = min((day for day in alarm_days(units, on_loss=on_loss) if day is not None), default=None)
            after.append(np.inf if alarm is None else alarm - CHANGED + 1)
        _progress(f"{world.name}, {per_day} per day: {seed - 9_999} of {runs} shifts")
    return [([day for day in after if day > 0], sum(day <= 0 for day in after)) for after in found]


def quantiles(values: list[float]) -> str:
    ranked = np.quantile(values, [0.1, 0.5, 0.9], method="inverted_cdf")
    return " / ".join(f"{value:.0f}" if np.isfinite(value) else "–" for value in ranked)


def report(years: int, runs: int) -> str:
    lines = [
        "# The alarm on a champion",
        "",
        f"`python -m experiments.monitor --years {years} --shifts {runs} --save`: simulated laboratories, looked at",
        f"every morning; level {LEVEL:g} a year, shared by all patients and by site. *On the loss*: the alarm of",
        f"before, which bets on the log loss clipped at {FLOOR:g} with a tolerance of {TOLERANCE:g} nats per label.",
        "± is the Monte-Carlo standard error.",
        "",
        "## Years with an alarm, though nothing has changed",
        "",
        f"*z tests*: one-sided at .05, patients after the first {N_REFERENCE:,} (or the first quarter) against those,",
        "every day, with the same tolerance and without.",
        "",
        "| laboratory | alarm | z daily, tolerance | z daily, no tolerance |",
        "|---|---|---|---|",
    ]
    for world in WORLDS:
        for per_day in RATES:
            cells = " | ".join(share(count, years) for count in false_alarms(world, per_day, years))
            lines.append(f"| {world.name}, {per_day} per day | {cells} |")
    lines += [
        "",
        "## Days until a shift is seen",
        "",
        f"From day {CHANGED} on a share of the probability of every class goes to the next one. 10 / 50 / 90 % of",
        f"{runs} runs; – not within {FOLLOWED} days. *At one*: at the smallest of the three sites only, with a fifth",
        "of the cases. *Before*: runs with an alarm before the shift, now and on the loss.",
        "",
        "| laboratory, share moved | days | on the loss | before |",
        "|---|---|---|---|",
    ]
    for world, changed_sites in SHIFTED:
        name = f"{world.name}, at one" if changed_sites == 1 else world.name
        per_day = RATES[world.per_patient > 1]
        for moved in MOVED:
            now, on_loss = delays(world, changed_sites, per_day, moved, runs)
            row = f"{quantiles(now[0])} | {quantiles(on_loss[0])} | {now[1]}, {on_loss[1]}"
            lines.append(f"| {name}, {per_day} per day, {moved:g} | {row} |")
    print(file=sys.stderr)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--years", type=int, default=300, help="of each laboratory without a change")
    parser.add_argument("--shifts", type=int, default=60, help="of each laboratory with one")
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    text = report(arguments.years, arguments.shifts)
    print(text)
    if arguments.save:
        (RESULTS / f"{date.today().isoformat()}_monitor.md").write_text(text)


if __name__ == "__main__":
    main()
