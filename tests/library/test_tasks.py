"""Tasks of a stranger, each in a few lines of the library, and the ten tasks of docs/reference/tasks.md."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secondread
from ml.tables.evaluate import EvaluationOptions
from ml.tables.streaming import evaluate_stream
from tests.support.command import run_here
from tests.support.tables import labels_table, wide_table

LABELS = pd.DataFrame(
    {
        "case_id": [f"c{case}" for case in range(30) for _ in range(3)],
        "annotator": ["anna", "ben", "cleo"] * 30,
        "label": np.random.default_rng(3).choice(["blast", "mono", "neutro"], 90, p=[0.5, 0.3, 0.2]),
    }
)
PROBS = np.random.default_rng(4).dirichlet([5, 3, 2], 30)
PREDICTIONS = pd.DataFrame(PROBS, columns=["prob:blast", "prob:mono", "prob:neutro"]).assign(
    case_id=[f"c{case}" for case in range(30)]
)


def test_kappa_of_two_lists_of_names_is_that_of_their_numbers() -> None:
    wide = LABELS.pivot_table(index="case_id", columns="annotator", values="label", aggfunc="first")
    numbers = wide.replace({"blast": 0, "mono": 1, "neutro": 2}).astype(int)
    for level in ("nominal", "ordinal"):
        by_name = secondread.cohen_kappa(wide["anna"], wide["ben"], level=level, classes=["blast", "mono", "neutro"])
        assert by_name == secondread.cohen_kappa(numbers["anna"], numbers["ben"], 3, level=level)
    assert secondread.cohen_kappa(wide["anna"], wide["ben"]) == secondread.cohen_kappa(numbers["anna"], numbers["ben"])
    gaps = wide["ben"].copy()
    gaps.iloc[[0, 3]] = [None, float("nan")]
    assert secondread.cohen_kappa(wide["anna"], gaps).n == 28
    assert secondread.cohen_kappa(wide["anna"], gaps.astype("string")).n == 28
    with pytest.raises(ValueError, match="required for ordinal names: list blast, mono, neutro, lowest first"):
        secondread.cohen_kappa(wide["anna"], wide["ben"], level="ordinal")
    with pytest.raises(ValueError, match="unknown class 'neutro'"):
        secondread.cohen_kappa(wide["anna"], wide["ben"], classes=["blast", "mono"])


def test_kappa_takes_missing_labels_as_missing_and_refuses_what_it_cannot_read() -> None:
    first, second = [0, 1, 1, 0, -1, 1], [0, 1, 0, 0, 1, -1]
    exact = secondread.cohen_kappa(first, second)
    gaps = [np.array(row, dtype=float) for row in (first, second)]
    for row in gaps:
        row[row < 0] = np.nan
    assert exact == secondread.cohen_kappa(*gaps)
    assert exact == secondread.cohen_kappa(first, gaps[1])
    assert exact == secondread.cohen_kappa(pd.Series(gaps[0]).astype("Int64"), pd.Series(gaps[1]))
    assert secondread.cohen_kappa(["x", "y", float("nan"), "x"], ["x", "y", "y", "y"]).n == 3
    assert secondread.cohen_kappa(gaps[0], gaps[1], level="ordinal").n == 4
    wrong: list[tuple[Any, Any, dict[str, Any], str]] = [
        ([0.5, 1.0], [1, 1], {}, "labels must be whole numbers or names of classes, got 0.5"),
        ([float("inf"), 1.0], [1, 1], {}, "labels must be whole numbers or names of classes, got inf"),
        ([0, 1], ["x", "y"], {}, "labels must be whole numbers or names of classes, got 'x'"),
        ([b"x"], [b"y"], {}, "labels must be whole numbers or names of classes, got b'x'"),
        (["a", "b"], ["a", "b"], {"n_classes": 2}, "n_classes belongs to class numbers"),
        ([0, 1], [0, 1], {"classes": ["a", "b"]}, "classes belongs to names of classes"),
        (["a", "b"], ["a", "b"], {"classes": ["a", "a", "b"]}, "classes must be different names"),
        (["a", "b"], ["a", "b"], {"classes": "ab"}, "classes must be different names"),
    ]
    for one, other, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            secondread.cohen_kappa(one, other, **options)


def test_the_changes_between_two_tables_are_a_table() -> None:
    better = PREDICTIONS.assign(**{"prob:blast": 1.0, "prob:mono": 0.0, "prob:neutro": 0.0})
    result = secondread.compare(PREDICTIONS, better, LABELS)
    frame = result.to_frame()
    assert list(frame.index) == list(result.changes)
    assert (frame["second"] - frame["first"]).to_numpy() == pytest.approx(frame["change"].to_numpy(), abs=1e-12)
    assert frame.loc["L", "low"] == result.changes["L"].low
    assert frame.loc["L", "p_of_fall"] == result.changes["L"].p_of_fall


@pytest.mark.parametrize("debias", ["pair", "paper", "none"])
def test_a_comparison_takes_the_changes_in_the_form_of_its_evaluations(debias: Any) -> None:
    rng = np.random.default_rng(0)
    truth, first, second = rng.dirichlet([1, 1, 1], (3, 60))
    labels = labels_table(np.array([rng.multinomial(2, q) for q in truth]), "xyz")
    result = secondread.compare(wide_table(first, "xyz"), wide_table(second, "xyz"), labels, n_bins=4, debias=debias)
    for name, found in result.changes.items():
        difference = result.second.metrics[name].value - result.first.metrics[name].value
        assert found.value == pytest.approx(difference, abs=1e-12), name


def test_dawid_and_skene_read_a_table_a_matrix_of_names_and_one_of_numbers_alike(tmp_path: Path) -> None:
    fitted = secondread.dawid_skene(LABELS)
    wide = LABELS.pivot_table(index="case_id", columns="annotator", values="label", aggfunc="first")
    assert fitted.case_ids is not None
    wide = wide.loc[list(fitted.case_ids)]
    of_names = secondread.dawid_skene(wide)
    assert fitted.classes == of_names.classes == ("blast", "mono", "neutro")
    assert fitted.annotators == of_names.annotators == ("anna", "ben", "cleo")
    assert fitted.case_ids == of_names.case_ids
    of_numbers = secondread.dawid_skene(wide.replace({"blast": 0, "mono": 1, "neutro": 2}).to_numpy(dtype=int))
    for other in (of_names, of_numbers):
        assert fitted.confusion == pytest.approx(other.confusion)
        assert fitted.class_probs == pytest.approx(other.class_probs)
    LABELS.to_csv(tmp_path / "labels.csv", index=False)
    assert secondread.dawid_skene(tmp_path / "labels.csv") == fitted
    with pytest.raises(ValueError, match="n_classes belongs to class numbers"):
        secondread.dawid_skene(LABELS, 3)
    with pytest.raises(secondread.TableError, match="column 'case_id' is missing"):
        secondread.dawid_skene(LABELS.rename(columns={"case_id": "case"}))
    gaps = np.array([[np.int64(1), None], [np.float32(0), 0]], dtype=object)
    assert secondread.dawid_skene(gaps) == secondread.dawid_skene([[1, -1], [0, 0]])
    with pytest.raises(secondread.TableError, match="a column 'annotator' is needed: it names who gave each label"):
        secondread.dawid_skene({"case_id": ["a", "b"], "count:x": [1, 2], "count:y": [1, 0]})


def test_cases_are_ranked_for_a_second_read() -> None:
    ranked = secondread.rank_second_reads(PREDICTIONS).to_pandas()
    assert ranked["rank"].tolist() == list(range(1, 31))
    assert (ranked["score"].diff().dropna() <= 0).all()
    disagreement = 1 - (PROBS**2).sum(axis=1)
    assert ranked["score"].to_numpy() == pytest.approx(np.sort(disagreement)[::-1])
    assert ranked["case_id"].iloc[0] == f"c{disagreement.argmax()}"
    entropy = secondread.rank_second_reads(PREDICTIONS, score="entropy")["score"].to_numpy()
    assert entropy[0] == pytest.approx((-PROBS * np.log(PROBS)).sum(axis=1).max())
    with pytest.raises(ValueError, match="unknown score 'loss'; there are disagreement, max_probability, entropy"):
        secondread.rank_second_reads(PREDICTIONS, score="loss")  # type: ignore[arg-type]


def test_rows_that_rounding_keeps_from_one_are_renormalised_on_request(tmp_path: Path) -> None:
    rounded = PREDICTIONS.iloc[:, :3].round(6) + [2e-6, 0, 0]
    table = rounded.assign(case_id=PREDICTIONS["case_id"])
    off = int((np.abs(rounded.sum(axis=1) - 1) > 1e-6).sum())
    assert off > 10
    with pytest.raises(
        secondread.TableError, match=rf"do not sum to 1 but to .*{off} in all; rounding does that, and --renormalise"
    ):
        secondread.evaluate(LABELS, table)
    found = secondread.evaluate(LABELS, table, renormalise=True)
    assert found.warnings[0].startswith(f"PREDICTIONS: {off} of 30 rows were renormalised; their sums were up to ")
    exact = rounded.div(rounded.sum(axis=1).where(np.abs(rounded.sum(axis=1) - 1) > 1e-6, 1.0), axis=0)
    same = secondread.evaluate(LABELS, exact.assign(case_id=PREDICTIONS["case_id"]))
    assert found.metrics == same.metrics
    both = secondread.compare(table, PREDICTIONS, LABELS, renormalise=True)
    assert both.first.metrics == same.metrics
    assert [["renormalised" in text for text in side.warnings].count(True) for side in (both.first, both.second)] == [
        1,
        0,
    ]
    table.to_csv(tmp_path / "p.csv", index=False)
    LABELS.to_csv(tmp_path / "l.csv", index=False)
    command = ["evaluate", "--labels", tmp_path / "l.csv", "--predictions", tmp_path / "p.csv", "--renormalise"]
    done = run_here(*command)
    assert f"p.csv: {off} of 30 rows were renormalised" in done.stdout, done.stderr
    done = run_here(*command, "--shard", "1/2", "--out", tmp_path / "parts")
    assert done.returncode == 2
    assert "--renormalise cannot be used with --shard" in done.stderr
    for name, one in (("p", table), ("l", LABELS)):
        one.sort_values("case_id").to_csv(tmp_path / f"{name}.csv", index=False)
    streamed = evaluate_stream(
        tmp_path / "l.csv", tmp_path / "p.csv", EvaluationOptions(renormalise=True), batch_rows=7
    )
    assert streamed["warnings"][0] == f"{tmp_path / 'p.csv'}: " + found.warnings[0].removeprefix("PREDICTIONS: ")
    assert streamed["metrics"]["L"]["value"] == pytest.approx(found.metrics["L"].value)
    with pytest.raises(secondread.TableError, match="do not sum to 1 but to"):
        evaluate_stream(tmp_path / "l.csv", tmp_path / "p.csv")
    wrong = table.assign(**{"prob:blast": table["prob:blast"] * 0.9})
    with pytest.raises(secondread.TableError, match="do not sum to 1 but to"):
        secondread.evaluate(LABELS, wrong, renormalise=True)


def test_a_compressed_table_is_the_table(tmp_path: Path) -> None:
    LABELS.to_csv(tmp_path / "labels.csv.gz", index=False)
    PREDICTIONS.to_csv(tmp_path / "predictions.csv.gz", index=False)
    compressed = secondread.evaluate(tmp_path / "labels.csv.gz", tmp_path / "predictions.csv.gz")
    assert compressed == secondread.evaluate(LABELS, PREDICTIONS)
    wrong = PREDICTIONS.assign(**{"prob:blast": [2.0, *PROBS[1:, 0]]})
    wrong.to_csv(tmp_path / "wrong.csv.gz", index=False)
    with pytest.raises(secondread.TableError, match=r"wrong\.csv\.gz: row 2, column prob:blast: not a probability: 2"):
        secondread.evaluate(tmp_path / "labels.csv.gz", tmp_path / "wrong.csv.gz")
    whole = bytearray(gzip.compress(b"case_id,prob:x\n" * 100))
    whole[12] ^= 0xFF
    (tmp_path / "damaged.csv.gz").write_bytes(whole)
    with pytest.raises(secondread.TableError, match=r"damaged\.csv\.gz: "):
        secondread.tables.read_table(tmp_path / "damaged.csv.gz")


PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "tasks.md").read_text()
SETUP = re.findall(r"^```python\n(.*?)^```$", PAGE.partition("\n## 1. ")[0], re.DOTALL | re.MULTILINE)
TASKS = dict(re.findall(r"^## (\d+)\. .*?\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
OTHERS = re.findall(r"^### (\S+): ([^\n]*)\n+(?:<!--[^\n]*-->\n)?```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
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
