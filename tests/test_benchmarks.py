"""Benchmarks and experiments start, and count what they stored; no test judges how fast anything was."""

import importlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import experiments
from benchmarks import harness
from benchmarks.harness import in_turn, interleaved, main
from benchmarks.scaling import QUICK, as_markdown, measure_size, summary
from benchmarks.scaling_files import Window
from benchmarks.table import HEADS, WITH_GOALS, WITHOUT_GOALS, goals
from experiments.__main__ import QUICK as QUICK_OPTIONS
from experiments.worlds.drifted_stain import live


def numbers(node: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a document, with where it stands."""
    if isinstance(node, dict):
        for name, member in node.items():
            yield from numbers(member, f"{path} > {name}")
    elif not isinstance(node, str):
        yield path, node


@pytest.mark.slow
def test_a_quick_run_has_every_figure_and_counts_what_is_stored() -> None:
    figures = measure_size(QUICK)
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
    assert [path for path, value in numbers(figures) if not (math.isfinite(value) and value > 0)] == []
    assert as_markdown(figures).count("cores cannot show.**") == 7, "it stands below each table"


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


def test_works_take_turns() -> None:
    order: list[str] = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert set(seconds) == {"a", "b"}


def test_figures_are_kept_in_one_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", "--save", "--only", "one"])
    main("A benchmark.", {"one": lambda quick: {"quick": int(quick)}, "two": lambda quick: {"never": 1 / 0}})
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("_one.json")
    document = json.loads(path.read_text())
    assert set(document) == {"benchmark", "date", "machine", "cores", "load", "figures"}
    assert (document["benchmark"], document["figures"]) == ("one", {"quick": 0})


def test_a_quick_run_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["benchmark", "--save", "--quick"])
    with pytest.raises(SystemExit):
        main("A benchmark.", {"one": lambda quick: {}})
    assert list(tmp_path.iterdir()) == []


def test_each_goal_is_one_and_reads_one_figure_of_the_results_it_names() -> None:
    for goal in goals():
        assert (goal.least is None) != (goal.most is None), goal.job
        assert bool(goal.file) == bool(goal.at), goal.job
        cells = goal.cells()
        assert len(cells) == len(HEADS)
        assert cells[3] != "–" or goal.next or not goal.file or cells[7].endswith("without it"), goal.job


def test_every_benchmark_is_run_by_the_table_or_for_a_gpu() -> None:
    modules = {
        path.stem for path in Path(harness.__file__).parent.glob("*.py") if "    main(__doc__" in path.read_text()
    }
    assert modules == {*WITH_GOALS, *WITHOUT_GOALS}


@pytest.mark.heavy
def test_recalibration_restores_the_calibration_of_disagreement(tmp_path: Path) -> None:
    drift = live(tmp_path)
    assert not any("stain" in text for text in drift.then.warnings)
    assert any("stain" in text for text in drift.drifted.warnings)
    report = drift.report
    print(drift.rows(), report["gate"]["passed"], report["gate"]["reasons"])
    before, after = report["champion"], report["candidate"]
    assert report["parent"] == drift.release
    assert after["CE_D"]["value"] < before["CE_D"]["value"]
    assert after["L_D"]["value"] < before["L_D"]["value"]
    assert report["gate"]["L_D"]["high"] < 0


NAMES = sorted(path.stem for path in Path(experiments.__file__).parent.glob("*.py") if not path.stem.startswith("__"))


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_lists_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"experiments.{name}").main()
    assert ended.value.code == 0
    options = capsys.readouterr().out
    assert options.startswith("usage: ")
    for word in QUICK_OPTIONS.get(name, "").split():
        assert not word.startswith("--") or word in options


def test_the_page_of_experiments_lists_each() -> None:
    page = (Path(experiments.__file__).parent / "README.md").read_text()
    assert [name for name in NAMES if f"| `{name}.py` |" not in page] == []
