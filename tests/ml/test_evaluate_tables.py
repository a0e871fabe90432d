"""LABELS and PREDICTIONS on disk, and `secondread evaluate` from outside."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from app.cli.main import secondread
from ml.metrics import evaluate
from ml.tables import evaluate as evaluate_tables
from ml.tables.files import read_labels, read_predictions
from ml.tables.reading import TableError, write_table
from tests.support.command import run_here
from tests.support.process import COMMAND

CLASSES = ["red", "green", "blue"]
METRICS = {"L", "EL", "EL_plugin", "CL", "CL_plugin", "CL_paired", "CE", "DL", "DL_plugin"}
METRICS |= {"L_D", "CL_D", "CL_D_plugin", "CE_D", "L_D_minus_max", "L_D_minus_gini", "skill", "skill_D"}
METRICS |= {"agreement", "accuracy"}


@pytest.fixture
def tables(tmp_path: Path) -> tuple[Path, Path]:
    rng = np.random.default_rng(0)
    f = rng.dirichlet([1, 1, 1], 60)
    rows: dict[str, list[Any]] = {"case_id": [], "annotator": [], "label": [], "patient": [], "w": [], "w2": []}
    for case in range(50):
        for reader in range(rng.integers(1, 4)):
            values = (f"c{case}", f"r{reader}", CLASSES[rng.integers(3)], f"p{case // 4}", 1 + case % 3, 2.5)
            for column, value in zip(rows, values, strict=True):
                rows[column].append(value)
    write_table(rows, tmp_path / "labels.csv")
    columns = {f"prob:{name}": f[:, k] for k, name in enumerate(CLASSES)}
    write_table({"case_id": [f"c{i}" for i in range(60)], **columns}, tmp_path / "predictions.csv")
    return tmp_path / "labels.csv", tmp_path / "predictions.csv"


def test_json_document_of_the_contract(tables: tuple[Path, Path]) -> None:
    done = run_here("evaluate", "--labels", tables[0], "--predictions", tables[1], "--debias", "paper", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {
        "n_cases",
        "n_labels",
        "n_classes",
        "n_bins",
        "debias",
        "metrics",
        "classes",
        "class_bins",
        "disagreement_bins",
        "warnings",
    } == set(document)
    assert set(document["metrics"]) == METRICS
    assert {"value", "se", "n", "dropped"} <= set(document["metrics"]["L"])
    assert (document["n_cases"], document["metrics"]["L"]["n"], document["metrics"]["L"]["dropped"]) == (60, 50, 10)
    assert document["debias"] == "paper"
    assert set(document["classes"][0]) == {"class", "CL", "EL", "bins"}
    assert {"low", "high", "n", "mean_prob", "mean_freq"} <= set(document["classes"][0]["bins"][0])
    assert len(document["class_bins"]) == len(document["disagreement_bins"]) == document["n_bins"]


def test_tables_and_arrays_give_the_same_numbers(tables: tuple[Path, Path]) -> None:
    labels, predictions = read_labels(tables[0], CLASSES), read_predictions(tables[1])
    counts = np.zeros((60, 3), dtype=int)
    counts[[int(c[1:]) for c in labels.case_ids]] = labels.counts()
    document = evaluate_tables(*tables, sample_weight=("w", "w2"), cluster="patient").to_dict()
    weights = 1 + np.arange(60) % 3
    expected = evaluate(
        counts,
        predictions.class_probs,
        sample_weight=(weights, np.full(60, 2.5)),
        cluster=np.arange(60) // 4,
        classes=CLASSES,
    )
    for name, row in expected.to_dict()["metrics"].items():
        assert document["metrics"][name]["value"] == pytest.approx(row["value"], abs=1e-14)
        assert document["metrics"][name]["se"] == pytest.approx(row["se"], rel=1e-10)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_wide_and_long_labels_agree_in_both_formats(tables: tuple[Path, Path], suffix: str, tmp_path: Path) -> None:
    labels = read_labels(tables[0], CLASSES)
    wide = {"case_id": labels.case_ids} | {f"count:{name}": labels.counts()[:, k] for k, name in enumerate(CLASSES)}
    path = tmp_path / f"wide{suffix}"
    write_table(wide, path)
    counted, named = evaluate_tables(path, tables[1]), evaluate_tables(*tables)
    for name, estimate in named.metrics.items():  # annotators are known in the long table only
        assert replace(estimate, low_new=None, high_new=None) == counted.metrics[name]
    assert replace(named, metrics=counted.metrics, warnings=counted.warnings) == counted


def test_log_concentration_gives_the_disagreement(tmp_path: Path) -> None:
    write_table({"case_id": ["a"], "prob:x": [0.5], "prob:y": [0.5], "log_concentration": [0.0]}, tmp_path / "p.csv")
    assert read_predictions(tmp_path / "p.csv").disagreement_probs[0] == pytest.approx(0.25)


LONG = "case_id,annotator,label\n"
WIDE = "case_id,count:x,count:y\n"
PREDICTIONS = "case_id,prob:x,prob:y\n"
GOOD_LABELS, GOOD_PREDICTIONS = LONG + "a,r,x\nb,r,y\n", PREDICTIONS + "a,0.5,0.5\nb,0.2,0.8\n"


@pytest.mark.parametrize(
    ("labels", "predictions", "words"),
    [
        (LONG + "a,r,x\nb,r,z\na,q,z\n", GOOD_PREDICTIONS, ["labels.csv", "row 3", "label", "'z'", "2 in all"]),
        (LONG + "a,r,x\na,r,y\n", GOOD_PREDICTIONS, ["row 3", "annotator", "twice"]),
        (LONG + "a,r,x\nzz,r,y\n", GOOD_PREDICTIONS, ["'zz'", "no prediction"]),
        (LONG + "a,,x\n", GOOD_PREDICTIONS, ["row 2", "annotator", "missing"]),
        ("case_id,label\na,x\n", GOOD_PREDICTIONS, ["annotator", "missing"]),
        (WIDE + "a,1,-1\n", GOOD_PREDICTIONS, ["row 2", "count:y", "-1"]),
        (WIDE + "a,1,0.5\n", GOOD_PREDICTIONS, ["count:y", "0.5"]),
        (WIDE + "a,1,0\na,0,1\n", GOOD_PREDICTIONS, ["row 3", "duplicated"]),
        ("case_id,count:x,count:q\na,1,0\n", GOOD_PREDICTIONS, ["count:q", "unknown class"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\nb,0.2,0.7\n", ["predictions.csv", "row 3", "sum to 1", "0.8999"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\nb,nan,1\n", ["row 3", "prob:x"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\nb,,1\n", ["row 3", "prob:x"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\nb,word,1\n", ["row 3", "prob:x", "word"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\nb,-0.5,1.5\n", ["row 3", "prob:x", "-0.5"]),
        (GOOD_LABELS, PREDICTIONS + "a,0.5,0.5\na,0.5,0.5\nb,0.5,0.5\n", ["row 3", "duplicated"]),
        (GOOD_LABELS, "case_id,prob:x\na,1\nb,1\n", ["two columns"]),
        (GOOD_LABELS, "", ["predictions.csv"]),
    ],
)
def test_bad_tables_are_named_in_one_line(labels: str, predictions: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(labels)
    (tmp_path / "predictions.csv").write_text(predictions)
    with pytest.raises(TableError) as caught:
        evaluate_tables(tmp_path / "labels.csv", tmp_path / "predictions.csv")
    for word in words:
        assert word in str(caught.value)


def test_failure_is_one_line_and_status_1_and_bad_usage_is_2(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(GOOD_LABELS)
    (tmp_path / "predictions.csv").write_text(PREDICTIONS + "a,0.5,0.6\nb,0.2,0.8\n")
    failed = run_here("evaluate", "--labels", tmp_path / "labels.csv", "--predictions", tmp_path / "predictions.csv")
    assert (failed.returncode, failed.stdout, failed.stderr.count("\n")) == (1, "", 1)
    assert "row 2" in failed.stderr
    assert run_here("evaluate", "--nonsense").returncode == 2
    assert run_here("evaluate", "--labels", "x", "--predictions", "y", "--debias", "magic").returncode == 2
    assert run_here("evaluate", "--labels", "x.csv", "--predictions", "y.csv").returncode == 1


@pytest.mark.parametrize("weights", ["w,1\nb,r,y,0\n", "w,1\nb,r,y,word\n"])
def test_weights_must_be_positive_numbers(weights: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(
        "case_id,annotator,label," + weights.split(",", 1)[0] + "\na,r,x," + weights.split(",", 1)[1]
    )
    (tmp_path / "predictions.csv").write_text(GOOD_PREDICTIONS)
    with pytest.raises(TableError, match="weights must be"):
        evaluate_tables(tmp_path / "labels.csv", tmp_path / "predictions.csv", sample_weight="w")


def test_a_table_without_labels_gives_empty_metrics(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text(GOOD_PREDICTIONS)
    labels = pa.table({name: pa.array([], pa.string()) for name in ("case_id", "annotator", "label", "patient")})
    document = evaluate_tables(labels, tmp_path / "predictions.csv", cluster="patient").to_dict()
    assert (document["n_cases"], document["metrics"]["L"]["value"]) == (2, None)
    assert "no case has a label" in document["warnings"][0]


def test_a_case_column_must_be_constant_within_a_case(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("case_id,annotator,label,patient\na,r,x,p1\na,q,x,p2\n")
    (tmp_path / "predictions.csv").write_text(GOOD_PREDICTIONS)
    with pytest.raises(TableError, match=r"row 3.*patient.*constant"):
        evaluate_tables(tmp_path / "labels.csv", tmp_path / "predictions.csv", cluster="patient")


def test_plots_are_written(tables: tuple[Path, Path], tmp_path: Path) -> None:
    done = run_here("evaluate", "--labels", tables[0], "--predictions", tables[1], "--plots", tmp_path / "plots")
    assert done.returncode == 0, done.stderr
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == [f"reliability_{n}.svg" for n in ("all_classes", "blue", "disagreement", "green", "red")]
    assert all("<svg" in path.read_text() for path in (tmp_path / "plots").iterdir())


def test_help_everywhere() -> None:
    for command in (
        [],
        ["train"],
        ["calibrate"],
        ["export"],
        ["predict"],
        ["score"],
        ["score-finish"],
        ["evaluate"],
        ["audit"],
        ["agreement"],
        ["reproduce"],
        ["serve"],
        ["demo"],
    ):
        shown = CliRunner().invoke(secondread, [*command, "--help"])
        assert shown.exit_code == 0, shown.output
        assert "Usage" in shown.output
    # which settings are listed is decided when the process starts
    shown = subprocess.run([COMMAND, "serve", "--help"], capture_output=True, text=True, check=True)
    assert "SECONDREAD_DATABASE_URL" in shown.stdout


def test_a_case_without_labels_keeps_its_patient_in_the_horvitz_thompson_form(tmp_path: Path) -> None:
    """Its pairs with other cases of the patient are counted as such, not with the patient of some other case."""
    rng = np.random.default_rng(0)
    n, classes = 60, ["a", "b"]
    counts = np.stack([rng.integers(0, 3, n), rng.integers(0, 3, n)], axis=1)
    counts[::4] = 0
    probs = rng.dirichlet(np.ones(2), n)
    patients = np.array([f"p{i // 3}" for i in range(n)])
    weights = rng.uniform(1, 3, n)
    rows = [(i, k, j) for i in range(n) for k in range(2) for j in range(counts[i, k])]
    labels = {
        "case_id": [f"c{i:03}" for i, _, _ in rows],
        "annotator": [f"r{k}{j}" for _, k, j in rows],
        "label": [classes[k] for _, k, _ in rows],
        "patient": [patients[i] for i, _, _ in rows],
        "w": [weights[i] for i, _, _ in rows],
    }
    columns = {"case_id": [f"c{i:03}" for i in range(n)], "prob:a": probs[:, 0], "prob:b": probs[:, 1]}
    write_table(labels, tmp_path / "labels.csv")
    write_table(columns | {"patient": patients.tolist()}, tmp_path / "predictions.csv")
    found = evaluate_tables(tmp_path / "labels.csv", tmp_path / "predictions.csv", sample_weight="w", cluster="patient")
    expected = evaluate(counts, probs, sample_weight=weights, cluster=patients)
    for name in ("CL", "CL_paired", "CL_D"):
        assert found.metrics[name].horvitz_thompson == pytest.approx(expected.metrics[name].horvitz_thompson, abs=1e-12)
