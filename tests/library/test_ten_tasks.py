"""The ten tasks of docs/reference/tasks.md: each runs, in at most six lines, as many as the table there states."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tasks.md").read_text()
SETUP = re.findall(r"^```python\n(.*?)^```$", PAGE.partition("\n## 1. ")[0], re.DOTALL | re.MULTILINE)
TASKS = dict(re.findall(r"^## (\d+)\. .*?\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
OTHERS = re.findall(r"^### (\S+): ([^\n]*)\n+```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
ROWS = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\| \[.*$", PAGE, re.MULTILINE)]


def lines(code: str) -> int:
    return len([line for line in code.splitlines() if line.strip()])


def test_the_table_has_the_numbers_of_lines() -> None:
    assert list(TASKS) == [str(number) for number in range(1, 11)]
    assert [int(row[1]) for row in ROWS] == [lines(code) for code in TASKS.values()]
    assert max(lines(code) for code in TASKS.values()) <= 6
    for place, package in enumerate(["cleanlab", "crowd-kit", "netcal", "MAPIE"], start=2):
        # the first task is one call of dir; wrong names have a block and an error in place of a number
        stated = [int(row[place].split(",")[0].split()[0]) for row in ROWS[1:] if row[place][0].isdecimal()]
        shown = [lines(code) for name, task, code in OTHERS if name == package and task != "wrong names"]
        assert sorted(stated) == sorted(shown), package


def better(names: dict[str, Any]) -> bool:
    """The calibrated model is better, by the difference of both evaluations."""
    change = names["comparison"].changes["L"]
    second, first = names["comparison"].second.metrics["L"].value, names["evaluation"].metrics["L"].value
    return bool(change.value < 0 and change.value == pytest.approx(second - first))


def follows_labels(names: dict[str, Any]) -> bool:
    """Two equal labels raise the probability of the class that they name."""
    before, after = names["calibrated"].class_probs, names["posterior"]
    agreed = names["counts"].max(axis=1) == 2
    label = names["counts"].argmax(axis=1)
    rows = np.flatnonzero(agreed)
    return bool((after[rows, label[rows]] > before[rows, label[rows]]).all())


#: What is true after each task.
CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "1": lambda names: "evaluate" in dir(names["secondread"]),
    "2": lambda names: names["loss"].low < float(names["loss"]) < names["loss"].high,
    "3": lambda names: abs(np.exp(names["calibrator"].calibration_.scaling.log_temperature) - 2) < 0.5,
    "4": follows_labels,
    "5": lambda names: names["frame"].loc["L", "value"] == names["evaluation"].metrics["L"].value,
    "6": lambda names: "column 'annotator' is missing; there are" in names["message"] and "worker" in names["message"],
    "7": lambda names: names["kappa"].low < float(names["kappa"]) < names["kappa"].high,
    "8": lambda names: Path("reliability.svg").read_text().startswith("<svg"),
    "9": better,
    "10": lambda names: names["again"] == names["calibrator"].calibration_,
}


def test_every_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(SETUP), names)
    for number, code in TASKS.items():
        exec(compile(code, f"task {number}", "exec"), names)
        assert CHECKS[number](names), number
