"""LABELS and PREDICTIONS on disk, and `secondread evaluate` from outside."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from app.cli.main import secondread
from ml.metrics import evaluate
from ml.tables import evaluate as evaluate_tables
from ml.tables.files import read_predictions
from ml.tables.reading import write_table
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


def test_log_concentration_gives_the_disagreement(tmp_path: Path) -> None:
    write_table({"case_id": ["a"], "prob:x": [0.5], "prob:y": [0.5], "log_concentration": [0.0]}, tmp_path / "p.csv")
    assert read_predictions(tmp_path / "p.csv").disagreement_probs[0] == pytest.approx(0.25)


LONG = "case_id,annotator,label\n"
PREDICTIONS = "case_id,prob:x,prob:y\n"
GOOD_LABELS, GOOD_PREDICTIONS = LONG + "a,r,x\nb,r,y\n", PREDICTIONS + "a,0.5,0.5\nb,0.2,0.8\n"


def test_a_table_without_labels_gives_empty_metrics(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text(GOOD_PREDICTIONS)
    labels = pa.table({name: pa.array([], pa.string()) for name in ("case_id", "annotator", "label", "patient")})
    document = evaluate_tables(labels, tmp_path / "predictions.csv", cluster="patient").to_dict()
    assert (document["n_cases"], document["metrics"]["L"]["value"]) == (2, None)
    assert "no case has a label" in document["warnings"][0]


def test_plots_are_written(tables: tuple[Path, Path], tmp_path: Path) -> None:
    done = run_here("evaluate", "--labels", tables[0], "--predictions", tables[1], "--plots", tmp_path / "plots")
    assert done.returncode == 0, done.stderr
    drawn = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert drawn == [f"reliability_{n}.svg" for n in ("all_classes", "blue", "disagreement", "green", "red")]
    assert all("<svg" in path.read_text() for path in (tmp_path / "plots").iterdir())


def test_help_everywhere() -> None:
    commands = "train calibrate export predict score score-finish evaluate audit agreement reproduce serve demo"
    for command in ([], *([name] for name in commands.split())):
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
