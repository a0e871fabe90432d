"""Streaming over sorted tables gives what the evaluation in memory gives."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ml.metrics.accumulator import group_numbers
from ml.tables import EvaluationOptions
from ml.tables import evaluate as evaluate_tables
from ml.tables.reading import TableError, read_batches, write_table
from ml.tables.streaming import Span, evaluate_stream, labels_of
from tests.ml.test_metrics import draw


def tables(folder: Path, suffix: str, *, wide: bool, n: int = 400) -> tuple[Path, Path]:
    """Sorted tables; every seventh case has no label, and each case a patient and weights."""
    y, f = draw(0, n=n)
    y[::7] = 0
    rng = np.random.default_rng(0)
    phi, ids = rng.uniform(0, 1, n), [f"c{i:05d}" for i in range(n)]
    weights, patients = rng.uniform(1, 4, (2, n)), [f"p{i}" for i in rng.integers(0, 40, n)]
    predictions = folder / f"predictions{suffix}"
    columns: dict[str, Any] = {"case_id": ids} | {f"prob:k{k}": f[:, k] for k in range(3)}
    write_table(columns | {"disagreement_prob": phi}, predictions)
    labels = folder / f"labels{suffix}"
    has = np.flatnonzero(y.sum(1))
    rows = has if wide else np.repeat(np.arange(n), y.sum(1))
    columns = {"case_id": [ids[i] for i in rows], "w1": weights[0][rows], "w2": weights[1][rows]}
    columns["who"] = [patients[i] for i in rows]
    columns["group"] = [str(group) for group in group_numbers(columns["who"])]
    if wide:
        columns |= {f"count:k{k}": y[has, k] for k in range(3)}
    else:
        columns["annotator"] = [f"a{j}" for i in range(n) for j in range(y[i].sum())]
        columns["label"] = [f"k{k}" for i in range(n) for k in np.repeat(range(3), y[i])]
    write_table(columns, labels)
    return labels, predictions


@pytest.mark.parametrize(
    ("suffix", "wide", "columns"),
    [(".csv", True, {}), (".parquet", False, {"weights": "w1", "weights2": "w2", "cluster": "who"})],
)
def test_streaming_equals_memory(tmp_path: Path, suffix: str, wide: bool, columns: dict[str, str]) -> None:
    """To the end of intervals where groups of patients are the clusters in memory too."""
    labels, predictions = tables(tmp_path, suffix, wide=wide)
    in_memory = columns | ({"cluster": "group"} if columns else {})
    weights = (columns.get("weights"), columns.get("weights2"))
    whole = evaluate_tables(labels, predictions, sample_weight=weights, cluster=in_memory.get("cluster")).to_dict()
    options = EvaluationOptions(**columns)  # type: ignore[arg-type]
    for rows in (37, 100_000):
        seen: list[int] = []
        found = evaluate_stream(labels, predictions, options, batch_rows=rows, observer=seen.append)
        assert (found["n_cases"], found["n_labels"]) == (whole["n_cases"], whole["n_labels"])
        for name, row in found["metrics"].items():
            assert row["value"] == pytest.approx(whole["metrics"][name]["value"], abs=1e-12), name
            assert (row["n"], row["dropped"]) == tuple(whole["metrics"][name][key] for key in ("n", "dropped"))
            for end in ("se", "low", "high") if columns else ():
                assert row[end] == pytest.approx(whole["metrics"][name][end], abs=1e-9), (name, end)  # type: ignore[literal-required]
        assert seen[-1] == 400


def test_memory_does_not_grow_with_the_tables(tmp_path: Path) -> None:
    peaks = []
    for n in (4_000, 16_000):
        folder = tmp_path / str(n)
        folder.mkdir()
        labels, predictions = tables(folder, ".parquet", wide=True, n=n)
        tracemalloc.start()
        evaluate_stream(labels, predictions, batch_rows=1_000)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_unsorted_doubled_and_stray_cases_are_refused(tmp_path: Path) -> None:
    probs: dict[str, Any] = {"prob:a": [0.5] * 3, "prob:b": [0.5] * 3}
    labels, predictions = tmp_path / "labels.csv", tmp_path / "predictions.csv"
    write_table({"case_id": ["a", "b"], "count:a": [1, 0], "count:b": [0, 2]}, labels)
    for ids, problem in ((["a", "c", "b"], "sort the table"), (["a", "b", "b"], "twice"), (["a", "c", "d"], "'b'")):
        write_table({"case_id": ids} | probs, predictions)
        with pytest.raises(TableError, match=problem):
            evaluate_stream(labels, predictions)
    write_table({"case_id": ["a", "b", "c"]} | probs, predictions)
    write_table({"case_id": ["b", "a"], "count:a": [1, 0], "count:b": [0, 2]}, labels)
    with pytest.raises(TableError, match="sort the table"):
        evaluate_stream(labels, predictions)
    write_table({"case_id": ["a", "z"], "count:a": [1, 0], "count:b": [0, 2]}, labels)
    with pytest.raises(TableError, match="'z' has a label but no prediction"):
        evaluate_stream(labels, predictions)


@pytest.mark.parametrize("part", [False, True])
def test_of_a_parquet_file_one_row_group_is_in_memory(tmp_path: Path, part: bool) -> None:
    path, n = tmp_path / "labels.parquet", 800_000
    numbers = np.random.default_rng(0).random(n)
    table = pa.table({"case_id": np.char.mod("c%06d", np.arange(n)), "weight": numbers})
    parquet.write_table(table, path, row_group_size=20_000)
    size = path.stat().st_size
    del table
    before, most, rows = pa.total_allocated_bytes(), 0, 0
    span = Span(0, None, "c", None)
    for batch in labels_of(span, path, 5_000) if part else read_batches(path, 5_000):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == n
    assert most < size / 4, (most, size)
