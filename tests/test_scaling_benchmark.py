"""The benchmark of scaling runs, and what it says was done is in the database; how fast it was is not judged."""

import math
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.scaling import QUICK, measure, shown
from benchmarks.scaling_windows import Window, in_turn, summary


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document, with where it stands."""
    if isinstance(node, dict):
        for name, member in node.items():
            yield from numbers(member, f"{path} > {name}")
    elif not isinstance(node, str):
        yield path, node


@pytest.mark.slow
def test_a_quick_run_has_every_figure_and_counts_what_is_stored() -> None:
    figures = measure(QUICK)
    assert set(figures["processes"]) == {"predictions", "cases", "labels", "old cases", "images"}
    for name, rows in figures["processes"].items():
        assert list(rows) == [str(n) for n in QUICK.processes], name
        assert rows["1"]["ratio"] == rows["1"]["with cores added"] == 1
        for row in rows.values():
            assert {"per second", "ratio", "process ms", "cores", "at most on these cores", "cores needed"} <= set(row)
    assert set(figures["rows"]) == {"evaluate", "score"}
    for name, sizes in (("evaluate", QUICK.evaluated), ("score", QUICK.scored)):
        assert list(figures["rows"][name]) == [str(n) for n in sizes]
        assert figures["rows"][name][str(max(sizes))]["per_row_ratio"] == 1
    counted = figures["counted"]
    assert set(counted) == {"cases", "labels", "predictions of cases", "old cases", "images"}
    assert [row for row in counted.values() if row["acknowledged"] != row["stored"]] == []
    windows = len(QUICK.processes) * QUICK.rounds
    assert counted["old cases"]["stored"] == windows * QUICK.old_cases
    assert counted["images"]["stored"] == windows * QUICK.images
    measured = {path: value for path, value in numbers(figures) if path != " > load_before"}
    assert [path for path, value in measured.items() if not (math.isfinite(value) and value > 0)] == []
    assert shown(figures).count("cores cannot show.**") == 7, "it stands below each table"


def test_ratios_are_those_within_a_round() -> None:
    """The machine was half as fast in the second round, which changes no ratio."""
    rounds = [
        {
            1: Window(100, 1.0 * slow, {"process": 0.8, "PostgreSQL": 0.2}, 1.1),
            2: Window(150, 1.0 * slow, {"process": 1.2, "PostgreSQL": 0.6}, 1.9),
        }
        for slow in (1, 2)
    ]
    rows = summary(rounds)
    assert rows["2"]["ratio"] == pytest.approx(1.5)
    assert rows["2"]["process ms"] == pytest.approx(8)
    assert rows["2"]["with cores added"] == pytest.approx(2)
    # one process did 100 in a second; two would do 200 at 12 ms each
    assert summary(rounds[:1])["2"]["cores needed"] == pytest.approx(2.4)
    assert summary(rounds[:1])["1"]["at most on these cores"] == 1


def test_nobody_is_always_first() -> None:
    assert [order[0] for order in in_turn((1, 2, 4), 4)] == [1, 2, 4, 1]
    assert all(sorted(order) == [1, 2, 4] for order in in_turn((1, 2, 4), 4))
