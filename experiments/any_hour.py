"""How far the live metrics are off while second reads are open and people take labels back, in simulated laboratories.

Each laboratory's cases go through the service's own plan and queue: one reader every day, a second one day a week,
bursts of cases, reads that are declined. What the metrics of version 0.1.0 said and what the current ones say is
compared, on the same evening, with what complete labelling by the same annotators would have given.
"""

import argparse
import sys
from datetime import date

from experiments import RESULTS
from experiments.worlds.queue_laboratory import QUANTITIES, Bias, Habits, QueueLaboratory, biases

RETRACTIONS = (0.0, 0.1, 0.2)


def simulate(n_laboratories: int, n_cases: int, retractions: float) -> dict[str, dict[str, Bias]]:
    weeks = []
    for seed in range(3000, 3000 + n_laboratories):
        weeks.append(QueueLaboratory(seed, n_cases, Habits(retractions=retractions)).run())
        print(f"\r{len(weeks)} of {n_laboratories} laboratories, {retractions:.0%} retract", end="", file=sys.stderr)
    print(file=sys.stderr)
    return biases(weeks)


def table(n_laboratories: int, n_cases: int) -> str:
    lines = [
        "# Metrics while reads are open and labels are taken back",
        "",
        f"`python -m experiments.any_hour --laboratories {n_laboratories} --cases {n_cases} --save`: relative bias,",
        f"mean of {n_laboratories} laboratories of {n_cases} cases ± its Monte-Carlo standard error. One reader every",
        "day, a second one day a week (last seen four days before the evening of the estimate), three times the cases",
        "on every fifth day, 3 % of reads declined; 20 % of cases selected by triage and 25 % of the others read twice",
        "at random. *Retract*: share of the second readers who, shown that they disagreed, take their label back.",
        "Compared with both labels of all cases by the same annotators.",
        "",
        "| retract | metrics of | " + " | ".join(QUANTITIES) + " |",
        "|---|---|" + "---|" * len(QUANTITIES),
    ]
    for retractions in RETRACTIONS:
        for rule, row in simulate(n_laboratories, n_cases, retractions).items():
            cells = [f"{100 * row[name].value:+.1f} ± {100 * row[name].error:.1f} %" for name in QUANTITIES]
            lines.append(f"| {retractions:.0%} | {rule} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laboratories", type=int, default=100)
    parser.add_argument("--cases", type=int, default=600)
    parser.add_argument("--save", action="store_true", help="keep the table in benchmarks/results")
    arguments = parser.parse_args()
    text = table(arguments.laboratories, arguments.cases)
    print(text)
    if arguments.save:
        (RESULTS / f"{date.today().isoformat()}_any_hour.md").write_text(text)


if __name__ == "__main__":
    main()
