"""LABELS and PREDICTIONS as auditors have them, on disk and by the command `evaluate`."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from app.cli.main import secondread
from ml.annotations import Annotations
from ml.metrics import epistemic_ranked_probability_score, evaluate, paired_changes, ranked_probability_score
from ml.metrics.definitions import BY_NAME, with_long_names
from ml.tables import EvaluationOptions, evaluate_findings, read_annotations
from ml.tables import evaluate as evaluate_tables
from ml.tables.files import read_labels, read_predictions
from ml.tables.reading import TableError, write_table
from ml.tables.streaming import evaluate_stream
from tests.support.command import run_here
from tests.support.process import COMMAND
from tests.support.tables import labels_table, wide_table

LONG, PREDICTIONS = "case_id,annotator,label\n", "case_id,prob:x,prob:y\n"
GOOD = PREDICTIONS + "a,0.5,0.5\nb,0.2,0.8\n"


def write(folder: Path, **tables: str) -> dict[str, Path]:
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    return {name: folder / f"{name}.csv" for name in tables}


def test_a_byte_order_mark_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "marked.csv").write_text(GOOD, encoding="utf-8-sig")
    assert read_predictions(tmp_path / "marked.csv").case_ids == ["a", "b"]


@pytest.mark.parametrize(
    ("cell", "shown"), [("NaN", "NaN"), ("nan", "NaN"), ("", "an empty cell"), ("NA", "'NA'"), ("inf", "'?inf'?")]
)
@pytest.mark.parametrize("words", [False, True])
def test_what_is_no_number_is_quoted_as_it_is_written(cell: str, shown: str, words: bool, tmp_path: Path) -> None:
    """In a column of numbers and in one that a word elsewhere turns into text."""
    last = "c,word,0.5\n" if words else "c,0.5,0.5\n"
    path = write(tmp_path, predictions=f"{PREDICTIONS}a,0.5,0.5\n\nb,{cell},0.5\n{last}")["predictions"]
    with pytest.raises(TableError, match=rf"row 4, column prob:x: not a (finite )?number: {shown}, {1 + words} in all"):
        read_predictions(path)


def test_ties_and_fractional_counts_are_refused_with_the_place_that_says_what_to_do(tmp_path: Path) -> None:
    paths = write(tmp_path, labels=LONG + "a,r,x\na,r,y\n", wide="case_id,count:x,count:y\na,0.5,0.5\n")
    for path in paths.values():
        with pytest.raises(TableError, match=r"docs/reference/tables\.md, 'Ties and fractional counts'"):
            read_labels(path)
    docs = Path(__file__).parent.parent.parent / "docs" / "reference" / "tables.md"
    assert "\n## Ties and fractional counts\n" in docs.read_text()


@pytest.mark.parametrize("other", ["absent", "0"])
def test_one_column_stands_for_two_classes(other: str, tmp_path: Path) -> None:
    labels = LONG + f"a,r,present\na,s,{other}\nb,r,{other}\n"
    one = "case_id,prob:present\na,0.7\nb,0.25\n"
    two = f"case_id,prob:present,prob:{other}\na,0.7,0.3\nb,0.25,0.75\n"
    paths = write(tmp_path, labels=labels, one=one, two=two)
    found = evaluate_tables(paths["labels"], paths["one"], binary=True)
    for name, estimate in evaluate_tables(paths["labels"], paths["two"]).metrics.items():
        assert found.metrics[name].value == pytest.approx(estimate.value, abs=1e-12, nan_ok=True)
    assert [row.name for row in found.classes] == ["present", other]


def test_one_column_is_refused_where_it_cannot_stand_for_two(tmp_path: Path) -> None:
    paths = write(
        tmp_path,
        three=LONG + "a,r,x\na,s,y\na,t,z\n",
        coded=LONG + "a,r,0\na,s,1\n",
        one="case_id,prob:x\na,0.7\n",
        present="case_id,prob:present\na,0.7\n",
        two=PREDICTIONS + "a,0.5,0.5\n",
    )
    with pytest.raises(TableError, match="2 others: y, z"):
        evaluate_tables(paths["three"], paths["one"], binary=True)
    with pytest.raises(TableError, match="named after a label, as prob:1"):
        evaluate_tables(paths["coded"], paths["present"], binary=True)
    with pytest.raises(TableError, match="one column prob:<class> is needed, found 2"):
        evaluate_tables(paths["three"], paths["two"], binary=True)
    with pytest.raises(TableError, match="--binary takes one"):
        evaluate_tables(paths["three"], paths["one"])


def test_labels_without_a_prediction_are_left_out_counted_and_named(tmp_path: Path) -> None:
    paths = write(
        tmp_path, more=LONG + "a,r,x\nz1,r,x\nb,r,y\nz2,r,y\n", fewer=LONG + "a,r,x\nb,r,y\n", predictions=GOOD
    )
    arguments = ["evaluate", "--labels", paths["more"], "--predictions", paths["predictions"], "--json"]
    refused = run_here(*arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "'z1' has a label but no prediction, 2 in all" in refused.stderr
    document = json.loads(run_here(*arguments, "--missing", "drop").stdout)
    assert document.pop("left_out") == ["z1", "z2"]
    assert document["warnings"].pop(0) == "2 cases ('z1', 'z2') had a label and no prediction and was left out"
    assert document == evaluate_tables(paths["fewer"], paths["predictions"]).to_dict()


def _findings(seed: int = 0) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Two findings of 30 cases, with other classes: one present or absent, the other of three grades."""
    rng = np.random.default_rng(seed)
    labels: dict[str, list[Any]] = {"case_id": [], "finding": [], "annotator": [], "label": [], "patient": []}
    predictions: dict[str, list[Any]] = {"case_id": [], "finding": []}
    names = {"mass": ["absent", "present"], "fluid": ["none", "some", "much"]}
    columns = [f"prob:{name}" for classes in names.values() for name in classes]
    predictions |= {column: [] for column in columns}
    for case in range(30):
        for finding, classes in names.items():
            f = rng.dirichlet(np.ones(len(classes)))
            given = dict(zip((f"prob:{name}" for name in classes), f.tolist(), strict=True))
            predictions["case_id"].append(f"c{case}")
            predictions["finding"].append(finding)
            for column in columns:
                predictions[column].append(given.get(column))
            for reader in range(case % 4):
                values = (f"c{case}", finding, f"r{reader}", classes[rng.integers(len(classes))], f"p{case // 3}")
                for column, value in zip(labels, values, strict=True):
                    labels[column].append(value)
    return labels, predictions


@pytest.fixture
def two_findings(tmp_path: Path) -> list[object]:
    """Options of a command that name tables of two findings."""
    paths = [tmp_path / "labels.csv", tmp_path / "predictions.csv"]
    for table, path in zip(_findings(), paths, strict=True):
        write_table(table, path)
    return ["--labels", paths[0], "--predictions", paths[1]]


def test_each_finding_is_what_its_own_pair_of_tables_gives() -> None:
    labels, predictions = _findings()
    found = evaluate_findings(labels, predictions, EvaluationOptions(cluster="patient"))
    assert list(found) == ["mass", "fluid"]
    for finding, evaluation in found.items():
        own = {name: column for name, column in _of(predictions, finding).items() if None not in column}
        assert evaluation.to_dict() == evaluate_tables(_of(labels, finding), own, cluster="patient").to_dict()


def _of(table: dict[str, list[Any]], finding: str) -> dict[str, list[Any]]:
    chosen = [name == finding for name in table["finding"]]
    return {
        name: [value for value, keep in zip(column, chosen, strict=True) if keep]
        for name, column in table.items()
        if name != "finding"
    }


def test_a_finding_of_a_wide_table_has_no_labels_or_none_of_the_others_classes() -> None:
    predictions: dict[str, list[Any]] = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"]}
    predictions |= {"prob:x": [0.5, 0.5, None], "prob:y": [0.5, 0.5, None]}
    predictions |= {"prob:u": [None, None, 0.3], "prob:v": [None, None, 0.7]}
    counts = {"count:x": [1, 0, 0], "count:y": [1, 2, 0], "count:u": [0, 0, 1], "count:v": [0, 0, 0]}
    wide = {"case_id": ["a", "b", "a"], "finding": ["mass", "mass", "fluid"]} | counts
    for table, n_labels in ((wide, [4, 1]), ({name: column[:2] for name, column in wide.items()}, [4, 0])):
        found = evaluate_findings(table, predictions)
        assert [(row.n_labels, row.n_classes) for row in found.values()] == [(n, 2) for n in n_labels]
    one = {name: column for name, column in predictions.items() if name not in {"prob:y", "prob:v"}}
    found = evaluate_findings(wide | {"count:u": [0, 0, 0], "count:v": [0, 0, 1]}, one, EvaluationOptions(binary=True))
    assert [(row.n_labels, row.n_classes) for row in found.values()] == [(4, 2), (1, 2)]
    more = {name: [*column, 0] for name, column in counts.items()}
    unlabelled = {"case_id": ["a", "b", "a", "z"], "finding": ["mass", "mass", "fluid", "gone"]} | more
    assert list(evaluate_findings(unlabelled, predictions)) == ["mass", "fluid"]


def test_a_finding_without_predictions_is_left_out_and_named() -> None:
    labels, predictions = _findings()
    some = [row for row, name in enumerate(predictions["finding"]) if name == "mass"]
    fewer = {name: [values[row] for row in some] for name, values in predictions.items()}
    with pytest.raises(TableError, match=r"finding 'fluid' has labels and no prediction.*--missing drop"):
        evaluate_findings(labels, fewer)
    found = evaluate_findings(labels, fewer, EvaluationOptions(missing="drop"))
    assert list(found) == ["mass"]
    assert found["mass"].warnings[0] == "finding 'fluid' has labels and no prediction and was left out"


def test_classes_whose_names_differ_in_signs_only_have_a_diagram_each(tmp_path: Path) -> None:
    labels = {"case_id": ["a", "b"], "annotator": ["r", "r"], "label": ["<5", ">5"]}
    write_table(labels, tmp_path / "labels.csv")
    write_table({"case_id": ["a", "b"], "prob:<5": [0.5, 0.2], "prob:>5": [0.5, 0.8]}, tmp_path / "predictions.csv")
    tables = ("--labels", tmp_path / "labels.csv", "--predictions", tmp_path / "predictions.csv")
    assert run_here("evaluate", *tables, "--plots", tmp_path / "plots").returncode == 0
    assert len(list((tmp_path / "plots").glob("*.svg"))) == 4


def test_the_command_gives_one_row_and_one_document_per_finding(two_findings: list[object]) -> None:
    text = run_here("evaluate", *two_findings).stdout
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["finding", "mass", "fluid"]
    document = json.loads(run_here("evaluate", *two_findings, "--json").stdout)
    assert list(document) == ["findings"]
    assert [document["findings"][name]["n_classes"] for name in ("mass", "fluid")] == [2, 3]
    agreement = json.loads(run_here("agreement", *two_findings[:2], "--json").stdout)
    assert list(agreement["findings"]) == ["mass", "fluid"]
    assert agreement["findings"]["fluid"]["n_cases"] < 30


@pytest.mark.slow
def test_each_finding_is_drawn_into_a_folder_of_its_own(two_findings: list[object], tmp_path: Path) -> None:
    done = run_here("evaluate", *two_findings, "--plots", tmp_path / "plots")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plots" / "fluid" / "reliability_much.svg").is_file()
    assert (tmp_path / "plots" / "mass" / "reliability_present.svg").is_file()


def test_errors_in_a_finding_name_the_row_of_the_file(tmp_path: Path) -> None:
    labels = "case_id,finding,annotator,label\na,m,r,x\na,n,r,x\nb,m,r,x\nb,n,r,q\n"
    predictions = "case_id,finding,prob:x,prob:y\na,m,1,0\na,n,1,0\nb,m,1,0\nb,n,0.5,0.4\n"
    paths = write(tmp_path, labels=labels, predictions=predictions, plain=GOOD)
    with pytest.raises(TableError, match=r"predictions\.csv: row 5, column prob:x … prob:y: .* 0\.9, 1 in all"):
        evaluate_findings(paths["labels"], paths["predictions"])
    (tmp_path / "predictions.csv").write_text(predictions.replace("0.4", "0.5"))
    with pytest.raises(TableError, match=r"labels\.csv: row 5, column label: .*'q'"):
        evaluate_findings(paths["labels"], paths["predictions"])
    with pytest.raises(TableError, match=r"labels\.csv has a column 'finding' and .*plain\.csv has none"):
        evaluate_findings(paths["labels"], paths["plain"])


@pytest.fixture
def two_models(tmp_path: Path) -> dict[str, Any]:
    """Labels of 60 cases by patients, two predictions of all of them, the second with columns and rows in disorder."""
    rng = np.random.default_rng(1)
    q = rng.dirichlet([2, 1, 1], 60)
    made: dict[str, Any] = {
        "counts": np.stack([rng.multinomial(1 + i % 3, p) for i, p in enumerate(q)]),
        "first": 0.7 * q + 0.1,
        "second": 0.4 * q + 0.2,
        "patients": np.arange(60) // 4,
    }
    write_table(labels_table(made["counts"], "xyz", patient=[f"p{i // 4}" for i in range(60)]), tmp_path / "labels.csv")
    write_table(wide_table(made["first"], "xyz"), tmp_path / "first.csv")
    second, order = wide_table(made["second"][:, [2, 0, 1]], "zxy"), rng.permutation(60)
    write_table({name: np.array(column)[order].tolist() for name, column in second.items()}, tmp_path / "second.csv")
    return made | {"folder": tmp_path}


def _compare(made: dict[str, Any], *more: object) -> Any:
    folder = made["folder"]
    tables = ["--labels", folder / "labels.csv", "--predictions", folder / "first.csv"]
    return run_here("evaluate", *tables, "--against", folder / "second.csv", "--json", *more)


def test_two_models_are_compared_case_by_case(two_models: dict[str, Any]) -> None:
    done = _compare(two_models, "--cluster", "patient")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["against"]
    pair = [(two_models[side], 1 - (two_models[side] ** 2).sum(axis=1)) for side in ("first", "second")]
    expected = paired_changes(two_models["counts"], pair[0], pair[1], cluster=two_models["patients"])
    assert found["changes"].keys() == with_long_names(expected).keys()
    for name, estimate in expected.items():
        assert found["changes"][name]["value"] == pytest.approx(estimate.value, abs=1e-9)
        assert found["changes"][name]["low"] == pytest.approx(estimate.low, abs=1e-9)
    assert found["changes"]["L"]["low"] > 0, "the second is further from the truth"
    assert found["second"]["L"]["value"] == pytest.approx(
        evaluate(two_models["counts"], two_models["second"]).metrics["L"].value, abs=1e-9
    )
    ordinal = json.loads(_compare(two_models, "--level", "ordinal").stdout)["against"]["changes"]
    assert ordinal["RPS"]["value"] > 0


def test_a_model_that_lacks_labelled_cases_is_refused_or_they_are_left_out_of_both(two_models: dict[str, Any]) -> None:
    path = two_models["folder"] / "second.csv"
    lines = path.read_text().splitlines()
    kept = [line for line in lines if not line.startswith(('"c3",', '"c8",'))]
    path.write_text("\n".join(kept) + "\n")
    refused = _compare(two_models)
    assert refused.returncode == 1
    assert "2 cases ('c3', 'c8')" in refused.stderr
    found = json.loads(_compare(two_models, "--missing", "drop").stdout)["against"]
    assert (found["n_cases"], found["left_out"], found["first"]["L"]["n"]) == (58, ["c3", "c8"], 58)
    path.write_text(path.read_text().replace("prob:z", "prob:w"))
    assert "its classes are w, x, y" in _compare(two_models).stderr


def test_the_order_of_the_columns_is_the_scale(two_models: dict[str, Any]) -> None:
    folder = two_models["folder"]
    command = ["evaluate", "--labels", folder / "labels.csv", "--json", "--level", "ordinal", "--predictions"]
    first = json.loads(run_here(*command, folder / "first.csv").stdout)
    assert first["level"] == "ordinal"
    assert {"RPS", "skill_RPS", "RPS_epistemic", "weighted_kappa", "krippendorff_alpha"} <= set(first["metrics"])
    write_table(wide_table(two_models["first"][:, [1, 0, 2]], "yxz"), folder / "other.csv")
    other = json.loads(run_here(*command, folder / "other.csv").stdout)
    assert first["metrics"]["RPS"]["value"] != pytest.approx(other["metrics"]["RPS"]["value"], abs=1e-3)
    assert first["metrics"]["L"]["value"] == pytest.approx(other["metrics"]["L"]["value"], abs=1e-12)


def test_choices_that_do_not_fit_are_bad_usage(two_models: dict[str, Any]) -> None:
    for more in (["--stream"], ["--level", "cardinal"], ["--missing", "guess"]):
        assert _compare(two_models, *more).returncode == 2


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_streamed_table_names_the_row_of_the_whole_file(suffix: str, tmp_path: Path) -> None:
    ids, header = [f"c{i:04}" for i in range(300)], {".csv": 2, ".parquet": 1}[suffix]
    labels: dict[str, Any] = {"case_id": ids, "count:x": np.ones(300), "count:y": np.ones(300)}
    predictions: dict[str, Any] = {"case_id": ids, "prob:x": np.full(300, 0.5), "prob:y": np.full(300, 0.5)}
    paths = [tmp_path / f"labels{suffix}", tmp_path / f"predictions{suffix}"]

    def evaluated() -> None:
        write_table(labels, paths[0])
        write_table(predictions, paths[1])
        evaluate_stream(*paths, batch_rows=20)

    labels["count:y"][217] = 0.5
    with pytest.raises(TableError, match=rf"labels\S+: row {217 + header}, column count:y"):
        evaluated()
    predictions["prob:x"][205] = 0.75
    with pytest.raises(TableError, match=rf"predictions\S+: row {205 + header}, column prob:x … prob:y"):
        evaluated()
    predictions["finding"] = ["mass"] * 300
    with pytest.raises(TableError, match="several findings"):
        evaluated()


def test_metrics_of_grades_use_the_labels_that_answer_first_reads(two_models: dict[str, Any]) -> None:
    """As L does: order 1 from planned read 1 only, order 2 from all labels."""
    labels = labels_table(two_models["counts"], "xyz")
    labels["planned_read"] = [int(name == "r0") for name in labels["annotator"]]
    found = evaluate_tables(labels, two_models["folder"] / "first.csv", level="ordinal").metrics
    first = (two_models["counts"] > 0) & (np.cumsum(two_models["counts"] > 0, axis=1) == 1)
    expected = ranked_probability_score(first.astype(int), two_models["first"])
    assert (found["RPS"].value, found["RPS"].n) == (pytest.approx(expected.value, abs=1e-9), expected.n)
    whole = epistemic_ranked_probability_score(two_models["counts"], two_models["first"])
    assert found["RPS_epistemic"].value == pytest.approx(whole.value, abs=1e-9)


METRICS = {"L", "EL", "EL_plugin", "CL", "CL_plugin", "CL_paired", "CE", "DL", "DL_plugin"}
METRICS |= {"L_D", "CL_D", "CL_D_plugin", "CE_D", "L_D_minus_max", "L_D_minus_gini", "skill", "skill_D"}
METRICS |= {"agreement", "accuracy"}


def test_json_document_of_the_contract(two_models: dict[str, Any]) -> None:
    paths = [two_models["folder"] / name for name in ("labels.csv", "first.csv")]
    done = run_here("evaluate", "--labels", paths[0], "--predictions", paths[1], "--debias", "paper", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    sizes, parts = "n_cases n_labels n_classes n_bins debias", "metrics classes class_bins disagreement_bins warnings"
    assert set(document) == {*sizes.split(), *parts.split()}
    assert set(document["metrics"]) == METRICS | {BY_NAME[name].long_name for name in METRICS}
    assert all(document["metrics"][BY_NAME[name].long_name] == document["metrics"][name] for name in METRICS)
    assert {"value", "se", "n", "dropped"} <= set(document["metrics"]["L"])
    assert (document["n_cases"], document["metrics"]["L"]["n"], document["metrics"]["L"]["dropped"]) == (60, 60, 0)
    assert document["debias"] == "paper"
    assert set(document["classes"][0]) == {"class", "CL", "calibration_loss", "EL", "epistemic_loss", "bins"}
    assert document["classes"][0]["EL"] == document["classes"][0]["epistemic_loss"]
    assert {"low", "high", "n", "mean_prob", "mean_freq"} <= set(document["classes"][0]["bins"][0])
    assert len(document["class_bins"]) == len(document["disagreement_bins"]) == document["n_bins"]


def test_log_concentration_gives_the_disagreement(tmp_path: Path) -> None:
    write_table({"case_id": ["a"], "prob:x": [0.5], "prob:y": [0.5], "log_concentration": [0.0]}, tmp_path / "p.csv")
    assert read_predictions(tmp_path / "p.csv").disagreement_probs[0] == pytest.approx(0.25)


def test_a_table_without_labels_gives_empty_metrics(tmp_path: Path) -> None:
    predictions = write(tmp_path, predictions=GOOD)["predictions"]
    labels = pa.table({name: pa.array([], pa.string()) for name in ("case_id", "annotator", "label", "patient")})
    document = evaluate_tables(labels, predictions, cluster="patient").to_dict()
    assert (document["n_cases"], document["metrics"]["L"]["value"]) == (2, None)
    assert "no cell has a label" in document["warnings"][0]


def test_plots_are_written(two_models: dict[str, Any]) -> None:
    folder = two_models["folder"]
    tables = ["--labels", folder / "labels.csv", "--predictions", folder / "first.csv"]
    done = run_here("evaluate", *tables, "--plots", folder / "plots")
    assert done.returncode == 0, done.stderr
    drawn = sorted(path.name for path in (folder / "plots").iterdir())
    assert drawn == [f"reliability_{n}.svg" for n in ("all_classes", "disagreement", "x", "y", "z")]
    assert all("<svg" in path.read_text() for path in (folder / "plots").iterdir())


@pytest.mark.slow
@pytest.mark.ci
def test_help_everywhere() -> None:
    commands = "train calibrate export predict score score-finish evaluate audit agreement reproduce serve demo"
    for command in ([], *([name] for name in commands.split())):
        shown = CliRunner().invoke(secondread, [*command, "--help"])
        assert shown.exit_code == 0, shown.output
        assert "Usage" in shown.output
    # which settings are listed is decided when the process starts
    shown = subprocess.run([COMMAND, "serve", "--help"], capture_output=True, text=True, check=True)
    assert "SECONDREAD_DATABASE_URL" in shown.stdout


def test_a_case_without_labels_keeps_its_patient_in_the_horvitz_thompson_form() -> None:
    """Its pairs with other cases of the patient are counted as such, not with the patient of some other case."""
    rng = np.random.default_rng(0)
    n = 60
    counts = np.stack([rng.integers(0, 3, n), rng.integers(0, 3, n)], axis=1)
    counts[::4] = 0
    probs = rng.dirichlet(np.ones(2), n)
    patients = np.array([f"p{i // 3}" for i in range(n)])
    weights = rng.uniform(1, 3, n)
    labels = labels_table(counts, "ab", patient=patients, w=weights)
    predictions = wide_table(probs, "ab") | {"patient": patients.tolist()}
    found = evaluate_tables(labels, predictions, sample_weight="w", cluster="patient")
    expected = evaluate(counts, probs, sample_weight=weights, cluster=patients)
    for name in ("CL", "CL_paired", "CL_D"):
        assert found.metrics[name].horvitz_thompson == pytest.approx(expected.metrics[name].horvitz_thompson, abs=1e-12)


TABLE: dict[str, Any] = {
    "case_id": ["b", "a", "b", "c", "a"],
    "annotator": ["sam", "ria", "ria", "tom", "sam"],
    "label": ["mono", "blast", "blast", "mono", "blast"],
}
# cases b, a, c by ria, sam, tom in the classes blast, mono
MATRIX = np.array([[0, 1, -1], [0, 0, -1], [-1, -1, 1]])
KINDS = {
    "mapping": dict,
    "numpy": lambda table: {name: np.array(values) for name, values in table.items()},
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_any_library_is_the_matrix(kind: str) -> None:
    annotations = read_annotations(KINDS[kind](TABLE))
    assert annotations.case_ids == ("b", "a", "c")
    assert annotations.annotators == ("ria", "sam", "tom")
    assert annotations.classes == ("blast", "mono")
    matrix = Annotations.of_matrix(MATRIX, 2)
    assert annotations.counts().tolist() == matrix.counts().tolist() == [[1, 1], [2, 0], [0, 1]]
    assert (
        annotations.shares.toarray().tolist() == matrix.shares.toarray().tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 1]]
    )
    assert (annotations.one_hot != matrix.one_hot).nnz == 0


def test_a_file_is_its_table(tmp_path: Path) -> None:
    write_table(TABLE, tmp_path / "labels.csv")
    assert read_annotations(tmp_path / "labels.csv") == read_annotations(TABLE)


def test_some_cases_get_other_numbers() -> None:
    some = read_annotations(TABLE).renumbered(np.array([1, -1, 0]), 2)
    assert some.counts().tolist() == [[0, 1], [1, 1]]
    assert some.annotators == ("ria", "sam", "tom")
    assert some.case_ids == ()


def test_a_table_without_annotators_or_of_several_findings_is_refused() -> None:
    with pytest.raises(TableError, match="LABELS: a column 'annotator' is needed"):
        read_annotations({"case_id": ["a"], "count:x": [1], "count:y": [0]})
    with pytest.raises(TableError, match="LABELS: the table has several findings: take one at a time"):
        read_annotations(TABLE | {"finding": ["mass"] * 5})
