"""Inputs that cannot be used: each ends in one clear message that names the thing, in the library and in commands."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

import secondread
from secondread import annotators, conformal
from tests.support.command import run_here
from tests.support.tables import labels_table, wide_table

CLASSES = ["blast", "mono", "neutro"]
F = np.array([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3], [0.2, 0.2, 0.6]] * 5)
Y = np.array([[2, 1, 0], [0, 3, 0], [1, 1, 1], [0, 0, 2]] * 5)
DPE, LOGITS, ONES = 1 - (F**2).sum(axis=1), np.log(F), np.ones((20, 1))
IDS = [f"c{row}" for row in range(20)]
NAN = np.where(F > 0.7, np.nan, F)
PREDICTIONS = pd.DataFrame(wide_table(F, CLASSES))
LABELS = pd.DataFrame(labels_table(Y, CLASSES))
WIDE = pd.DataFrame(wide_table(Y, CLASSES, "count:"))
OTHER, RENAMED = (PREDICTIONS.rename(columns={"prob:mono": name}) for name in ("prob:x", "prob:a\u0308"))
PRIOR = secondread.DirichletCpe(F, np.zeros(20))
CALIBRATION = secondread.Calibration(
    secondread.calibration.Scaling("temperature", 0.1), secondread.calibration.ConcentrationHead(np.array([0.5]), 0.1)
)


def loss(label_counts: Any, class_probs: Any, **options: Any) -> Callable[[], object]:
    return lambda: secondread.epistemic_loss(label_counts, class_probs, **options)


def arrays(*values: Any, **options: Any) -> Callable[[], object]:
    return lambda: secondread.evaluate(Y, F, *values, **options)


def tables(labels: Any = LABELS, predictions: Any = PREDICTIONS, **options: Any) -> Callable[[], object]:
    return lambda: secondread.evaluate(labels, predictions, **options)


def calibrate(logits: Any = LOGITS, features: Any = ONES, counts: Any = Y, groups: Any = IDS) -> Callable[[], object]:
    return lambda: secondread.calibrate(logits, features, counts, groups)


def probs(**columns: Any) -> Any:
    """PREDICTIONS with other columns of probabilities."""
    return PREDICTIONS.assign(**{f"prob:{name}": values for name, values in columns.items()})


def cells(column: Any) -> Any:
    """PREDICTIONS in Arrow whose first column of probabilities is made of something else."""
    return pa.table({"case_id": IDS, "prob:blast": pa.array([column] * 20), "prob:mono": [0.5] * 20})


#: A call of the library, and words of its message.
LIBRARY: list[tuple[Callable[[], object], str]] = [
    # arrays
    (loss(Y, NAN), r"class_probs must lie in \[0, 1\]: first at row 1, 5 in all"),
    (loss(Y, LOGITS), r"class_probs must lie in \[0, 1\]: first at row 0, 20 in all"),
    (loss(Y, F * 0.9), "rows of class_probs must sum to 1 within 1e-06: first at row 0"),
    (loss(Y[:3], F), r"class_probs \(20, 3\) and label_counts \(3, 3\) must have one shape"),
    (loss(Y.argmax(axis=1), F), r"label_counts must have shape \(N, K\) with K >= 2, got \(20,\)"),
    (loss(Y, [["a", "b", "c"]] * 20), "class_probs cannot be read as an array of numbers: .*'a'"),
    (loss([[1, 2], [1]], F[:2, :2]), "label_counts cannot be read as an array of numbers"),
    (loss(Y + 0.5, F), "label_counts must be whole numbers: first at row 0"),
    (loss(Y - 1, F), "label_counts must not be negative: first at row 0, 15 in all"),
    (loss(Y, F, sample_weight=np.ones(3)), r"sample_weight must have shape \(20,\), got \(3,\)"),
    (arrays(sample_weight=(np.ones(20),) * 3), r"sample_weight must be \(N,\), or a pair for orders 1 and 2"),
    (arrays(sample_weight=(None, np.ones(3))), r"sample_weight\[1\] must have shape \(20,\), got \(3,\)"),
    (loss(Y, F, sample_weight=-np.ones(20)), "sample_weight must lie in"),
    (loss(Y, F, cluster=[1, 2]), r"cluster must have shape \(20,\), got \(2,\)"),
    (arrays(DPE[:3]), r"disagreement_probs must have shape \(20,\), got \(3,\)"),
    (arrays(DPE + 1), r"disagreement_probs must lie in \[0, 1\]"),
    (lambda: secondread.disagreement_loss(Y, F), r"disagreement_probs must have shape \(20,\)"),
    (arrays(n_bins=0), "n_bins must be a whole number of at least 1, got 0"),
    (arrays(n_bins=2.5), "n_bins must be a whole number of at least 1, got 2.5"),
    (arrays(n_bins="15"), "n_bins must be a whole number of at least 1, got '15'"),
    (lambda: secondread.metrics.Accumulator("3"), "n_classes must be a whole number"),  # type: ignore[arg-type]
    (lambda: secondread.measure_agreement(LABELS, min_shared=0), "min_shared must be a whole number of at least 1"),
    (lambda: annotators.ReaderModel.from_dict(None), "model of readers of version None"),  # type: ignore[arg-type]
    (arrays(debias=True), "debias must be 'pair', 'paper' or 'none', got True"),
    (arrays(level="interval"), "level must be nominal or ordinal, got 'interval'"),
    (arrays(classes=["a"]), "classes must name 3 classes, got 1"),
    (arrays(classes=["a", "a", "b"]), "classes must be different names, got a, a, b"),
    (arrays(cluster="patient"), r"cluster names a column of LABELS: with arrays give a value per"),
    (arrays(missing="drop"), "binary, renormalise and missing are about tables with case_id"),
    # rows and columns of frames
    (loss(pd.DataFrame(Y), pd.DataFrame(F).iloc[::-1]), r"rows of label_counts and class_probs have diff"),
    (loss({"x": [1], "y": [0]}, {"x": [0.5], "z": [0.5]}), "columns of label_counts are not the classes"),
    (loss({"x": [1], "y": [0]}, [[0.5, 0.5]]), "columns of label_counts are named"),
    (loss(pl.DataFrame({"x": [{"a": 1}], "y": [1]}), {"x": [0.5], "y": [0.5]}), "column 'x' of label_counts"),
    (tables(pl.DataFrame(LABELS).lazy()), "a LazyFrame has not been computed yet"),
    # tables
    (tables(PREDICTIONS, LABELS), "PREDICTIONS: this is a table of LABELS, .* were they swapped"),
    (lambda: secondread.compare(PREDICTIONS, LABELS, PREDICTIONS), "--against: this is a table of LABELS"),
    (lambda: secondread.compare(PREDICTIONS, OTHER, LABELS), "its classes are .*, x, and those of PREDICTIONS are"),
    (lambda: secondread.rank_second_reads(LABELS), "PREDICTIONS: this is a table of LABELS"),
    (lambda: secondread.rank_second_reads(F), "ndarray cannot be read as a table"),  # type: ignore[arg-type]
    (lambda: secondread.measure_agreement(PREDICTIONS), "LABELS: this is a table of PREDICTIONS"),
    (tables(LABELS.rename(columns={"case_id": "task"})), r"labels have no column 'case_id' .*\(there are task"),
    (tables(LABELS.drop(columns="annotator")), "LABELS: column 'annotator' is missing; there are"),
    (tables(LABELS.drop(columns="label")), "LABELS: column 'label' is missing; there are"),
    (tables(LABELS, pd.DataFrame(wide_table(F, CLASSES, ""))), "there is no column prob:<class>; there are blast"),
    (tables(LABELS.replace("mono", "lymph")), r"LABELS: row 2, column label: unknown class .*'lymph', 25"),
    (tables(LABELS.replace("mono", "mono ")), "differs from 'mono' in spaces"),
    (tables(LABELS.replace("mono", "Mono")), "differs from 'mono' in capitals"),
    (tables(LABELS.replace("mono", "\u00e4"), RENAMED), "in how accents are stored"),
    (tables(LABELS.replace("c0", "\u00e9"), PREDICTIONS.replace("c0", "e\u0301")), "NFC and NFD"),
    (tables(LABELS, pd.concat([PREDICTIONS] * 2)), "PREDICTIONS: row 20, column case_id: duplicated case 'c0'"),
    (tables(pd.concat([LABELS] * 2)), "LABELS: row 55, column annotator: labels this case twice"),
    (tables(pd.concat([WIDE] * 2)), "LABELS: row 20, column case_id: duplicated case 'c0'"),
    (tables(WIDE.rename(columns={"count:mono": "count:q"})), "column count:q: unknown class"),
    (tables(LABELS.replace("r1", "")), "LABELS: row 1, column annotator: the value is missing"),
    (tables(LABELS, PREDICTIONS.iloc[:5]), "LABELS: case 'c5' has a label but no prediction, 15 in all"),
    (tables(LABELS, probs(mono=np.nan)), "PREDICTIONS: row 0, column prob:mono: not a finite number"),
    (tables(LABELS, probs(mono="x")), "PREDICTIONS: row 0, column prob:mono: not a number: 'x', 20"),
    (tables(LABELS, probs(mono=-0.1)), "PREDICTIONS: row 0, column prob:mono: not a probability"),
    (tables(LABELS, probs(mono=0.9)), "PREDICTIONS: row 0, column prob:blast … prob:neutro: the row's"),
    (tables(LABELS, PREDICTIONS.assign(disagreement_prob=2.0)), "row 0, column disagreement_prob: not a prob"),
    (tables(LABELS, cells({"p": 0.5})), r"PREDICTIONS: row 0, column prob:blast: .* of struct<p: double>"),
    (tables(pa.table({"case_id": [b"\xff"], "annotator": ["r"], "label": ["x"]})), "row 0, column case_id: .* binary"),
    (tables(LABELS.assign(label="")), "LABELS: row 0, column label: the value is missing"),
    (tables({"case_id": ["a", 1], "annotator": ["r"], "label": ["x"]}), "cannot be read as a table .*column 'case_id'"),
    (tables({"case_id": ["a"], "annotator": ["r", "s"], "label": ["x", "y"]}), "expected length 1"),
    (tables(LABELS.assign(p=" "), cluster="p"), "LABELS: row 0, column p: the value is missing: ' ', 55 in all"),
    (tables(sample_weight="w"), "LABELS: column 'w' is missing; there are only the columns"),
    (tables(LABELS.assign(w="x"), sample_weight="w"), "LABELS: row 0, column w: weights must be positive num"),
    (tables(LABELS.assign(w=0.0), sample_weight="w"), "LABELS: row 0, column w: weights must be positive"),
    (tables(LABELS.assign(w=range(55)), sample_weight="w"), "LABELS: row 1, column w: must be constant"),
    (tables(sample_weight=np.ones(20)), "weights must name a column of LABELS, got ndarray"),
    (tables(missing="ignore"), "missing must be error or drop, got 'ignore'"),
    # agreement
    (lambda: secondread.cohen_kappa([0, 1], [0]), r"must have one shape, got \(2,\) and \(1,\)"),
    (lambda: secondread.cohen_kappa([0, 5], [0, 1], 3), "labels must lie in -1 to 2, got 0 to 5"),
    (lambda: secondread.krippendorff_alpha(F), "label_counts must be whole numbers"),
    (lambda: secondread.fleiss_kappa(Y), "needs the same number of labels per case"),
    (lambda: secondread.dawid_skene([0, 1]), r"or have shape \(N, A\), got shape \(2,\)"),
    (lambda: secondread.dawid_skene([[-1, -1]]), "no label to fit from"),
    # distributions
    (lambda: secondread.DirichletCpe(F, [0.0] * 3), r"log_concentration must have shape \(20,\)"),
    (lambda: PRIOR.posterior(Y[:3]), r"label_counts must have shape \(20, 3\), got \(3, 3\)"),
    (lambda: PRIOR.posterior(F), "label_counts must be whole numbers"),
    (lambda: secondread.EnsembleCpe(F), r"member_class_probs must have shape \(S, N, K\), got \(20, 3\)"),
    # calibration
    (calibrate(F), "logits are probabilities: every row lies in"),
    (calibrate(NAN), "logits must be finite numbers: first at row 1, 5 in all"),
    (calibrate(features=np.full((20, 1), np.nan)), "features must be finite numbers"),
    (calibrate(features=ONES[:3]), r"features must have shape \(20, D\)"),
    (calibrate(groups=None), r"groups \(\) must be of the same cases"),
    (calibrate(LOGITS[:5], ONES[:5], Y[:5], IDS[:5]), "calibration needs at least ten labelled cells, got 5"),
    (calibrate(groups=["p"] * 20), "calibration needs labelled cells of at least three patients"),
    (lambda: CALIBRATION.apply(LOGITS, np.ones((20, 5))), r"must have 1 columns, as in the fit"),
    (lambda: secondread.Calibration.from_dict({}), "not a calibration document"),
    # sets, annotators, charts
    (lambda: conformal.answer_sets(F, np.nan), "thresholds must be one number, one per case"),
    (lambda: conformal.answer_scores(F, [3] * 20), "answers must be 20 classes from 0 to 2"),
    (lambda: conformal.patient_masses(IDS, probabilities=np.zeros(20)), r"probabilities must lie in \(0, 1\]"),
    (lambda: conformal.calibrate([0.1], [1, 1], ["a"]), r"scores \(1,\), masses \(2,\)"),
    (lambda: annotators.excess_log_loss(F, [7] * 20), "label must be 20 classes from 0 to 2"),
    (lambda: annotators.weekly_bands([0.1, 0.2], [1, 0], 3), "units must be in the order of their weeks"),
    (lambda: secondread.plot_reliability(3), "must be what secondread.evaluate returns"),  # type: ignore[arg-type]
    (lambda: secondread.plot_triage(Y, F[:3]), r"labels \(20, 3\) and predictions \(3, 3\)"),
    (lambda: secondread.plot_triage(Y * 0, F), "no case has two labels"),
]


@pytest.mark.parametrize(("call", "message"), LIBRARY)
def test_the_library_names_what_it_cannot_use(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


Content = bytes | str | dict[str, Any]
L_CSV = "case_id,annotator,label\n" + "".join(
    f"c{case},r{reader},{'xy'[(case + reader) % 2]}\n" for case in range(6) for reader in range(2)
)
P_CSV = "case_id,prob:x,prob:y\n" + "".join(f"c{case},0.{case + 1},0.{9 - case}\n" for case in range(6))
#: A file of LABELS that nothing can be done with, and words of the message, which begins with its name.
LABEL_FILES: dict[str, tuple[Content, str]] = {
    "utf-16.csv": (L_CSV.encode("utf-16"), "row 1: the file is UTF-16: save it as 'CSV UTF-8"),
    "utf-16-le.csv": (L_CSV.encode("utf-16-le"), "row 1: the file is UTF-16"),
    "latin-1.csv": (L_CSV.replace("r1,y", "\u00e9,y").encode("latin-1"), "row 3, column annotator: "),
    "latin-1-header.csv": (
        L_CSV.replace("label", "l\u00e4bel").encode("latin-1"),
        "row 1, column number 3: a name is not",
    ),
    "empty.csv": (b"", "row 1: there is no header"),
    "header.csv": (b"case_id,annotator,label\n", "has columns (case_id, annotator, label) and no rows"),
    "cut.csv.gz": (gzip.compress(L_CSV.encode())[:30], "cannot be decompressed"),
    "plain.csv.gz": (L_CSV, "cannot be decompressed: Not a gzipped file"),
    "packed.csv": (gzip.compress(L_CSV.encode()), "the file is compressed: name it packed.csv.gz"),
    "semicolons.csv": (L_CSV.replace(",", ";"), "row 1: columns are separated by semicolons"),
    "tabs.csv": (L_CSV.replace(",", "\t"), "row 1: columns are separated by tabs"),
    "bars.csv": (L_CSV.replace(",", "|"), "row 1: columns are separated by vertical bars"),
    "short.csv": (f"{L_CSV}c9,r0\n", "row 14: 2 cells, and the header has 3: 'c9,r0'"),
    "long.csv": (f"{L_CSV}c9,r0,x,x\n", "row 14: 4 cells, and the header has 3: 'c9,r0,x,x'"),
    "worker.csv": (L_CSV.replace("annotator", "worker"), "column 'annotator' is missing; there are case_id, worker"),
    "columns.csv": (L_CSV.replace("annotator", "label"), "there are several columns 'label'"),
    "twice.csv": (L_CSV.replace("c5,r1", "c5,r0"), "row 13, column annotator: labels this case twice"),
    "cell.csv": (L_CSV.replace("c5,r1,x", "c5,r1,"), "row 13, column label: the value is missing: an empty cell"),
    "predictions.csv": (P_CSV, "this is a table of PREDICTIONS, and LABELS are needed here"),
    "half.csv": (b"case_id,count:x,count:y\nc0,0.5,1\n", "row 2, column count:x: not a whole number"),
    "minus.csv": (b"case_id,count:x,count:y\nc0,-1,1\n", "row 2, column count:x: not a count: -1.0"),
    "struct.parquet": ({"case_id": ["c0"], "annotator": ["r"], "label": [{"a": "x"}]}, "row 1, column label: "),
    "list.parquet": ({"case_id": [["c0"]], "annotator": ["r"], "label": ["x"]}, "column case_id: "),
    "bytes.parquet": ({"case_id": [b"\xff"], "annotator": ["r"], "label": ["x"]}, "column case_id: "),
    "text.parquet": (b"case_id", "Parquet"),
    "table.xlsx": (b"PK", "the extension must be .csv, .csv.gz or .parquet"),
}
PREDICTION_FILES: dict[str, tuple[Content, str]] = {
    "sum.csv": (P_CSV.replace("c0,0.1", "c0,0.5"), "row 2, column prob:x … prob:y: the row's probabilities do not"),
    "word.csv": (P_CSV.replace("c2,0.3", "c2,abc"), "row 4, column prob:x: not a number: 'abc'"),
    "comma.csv": (P_CSV.replace("c2,0.3", 'c2,"0,3"'), "row 4, column prob:x: not a number: '0,3'"),
    "nan.csv": (P_CSV.replace("c2,0.3", "c2,nan"), "row 4, column prob:x: not a finite number: NaN"),
    "one.csv": (b"case_id,prob:x\nc0,.5\n", "at least two columns prob:<class> are needed"),
    "none.csv": (P_CSV.replace("prob:", "p_"), "there is no column prob:<class>; there are case_id, p_x, p_y"),
    "logits.csv": (P_CSV.replace("0.", "-2."), "row 2, column prob:x: not a probability: -2.1"),
    "header.csv": (b"case_id,prob:x,prob:y\n", "has columns (case_id, prob:x, prob:y) and no rows"),
    "labels.csv": (L_CSV, "this is a table of LABELS, and PREDICTIONS are needed here: were they swapped"),
    "struct.parquet": ({"case_id": ["c0"], "prob:x": [{"a": 0.5}], "prob:y": [0.5]}, "row 1, column prob:x: "),
}


def write(path: Path, content: Content) -> None:
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, str):
        path.write_text(content)
    else:
        parquet.write_table(pa.table(content), path)


COMMANDS = ("evaluate", "evaluate --stream", "agreement", "audit --out page.html")
UNUSABLE = [
    *[(COMMANDS[row % 4], "labels", name, *case) for row, (name, case) in enumerate(LABEL_FILES.items())],
    *[(COMMANDS[row % 2], "predictions", name, *case) for row, (name, case) in enumerate(PREDICTION_FILES.items())],
]


@pytest.mark.parametrize(("command", "of", "name", "content", "message"), UNUSABLE, ids=[row[2] for row in UNUSABLE])
def test_a_command_names_tables_that_it_cannot_use(
    command: str, of: str, name: str, content: Content, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "L.csv").write_text(L_CSV)
    (tmp_path / "P.csv").write_text(P_CSV)
    write(tmp_path / name, content)
    tables = {"labels": "L.csv", "predictions": "P.csv", of: name}
    if command == "agreement":
        del tables["predictions"]
    done = run_here(*command.split(), *(part for option, path in tables.items() for part in (f"--{option}", path)))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith(f"secondread: {name}: ")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ("evaluate --labels L.csv", 2, "--predictions"),
        ("evaluate --labels L.csv --predictions P.csv --n-bins 0", 2, "--n-bins"),
        ("evaluate --labels L.csv --predictions P.csv --level interval", 2, "--level"),
        ("evaluate --labels L.csv --predictions none.csv", 1, "none.csv: no such file"),
        ("evaluate --labels L.csv --predictions P.csv --weights w", 1, "L.csv: column 'w' is missing"),
        ("evaluate --labels P.csv --predictions L.csv", 1, "L.csv: this is a table of LABELS"),
        ("evaluate --labels L.csv --predictions P.csv --against L.csv", 1, "L.csv: this is a table of"),
        ("agreement --labels L.csv --cluster p", 1, "L.csv: column 'p' is missing"),
        ("agreement --labels L.csv --classes x", 1, "L.csv: row 3, column label: unknown class"),
    ],
)
def test_a_command_names_options_that_it_cannot_use(
    command: str, status: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "L.csv").write_text(L_CSV)
    (tmp_path / "P.csv").write_text(P_CSV)
    done = run_here(*command.split())
    assert (done.returncode, message in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
