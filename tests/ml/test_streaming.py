"""Sorted tables: evaluated as a stream and in parts, and sorted on disk."""

import json
import random
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from ml.metrics.accumulator import group_numbers
from ml.scoring.evaluation_shards import evaluate_shard, finish_evaluation
from ml.scoring.shards import ShardError
from ml.tables import EvaluationOptions
from ml.tables import evaluate as evaluate_tables
from ml.tables.reading import TableError, read_batches, read_table, write_table
from ml.tables.streaming import Span, Streaming, evaluate_stream, labels_of, sort_table, span_of
from tests.ml.test_metrics import draw
from tests.support.command import run_here


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
    """Show the result of intervals where groups of patients are the clusters in memory too."""
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
    parts = (table for _, table in labels_of(span, path, 5_000))
    for batch in parts if part else read_batches(path, 5_000):
        rows += batch.num_rows
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == n
    assert most < size / 4, (most, size)


COLUMNS = {"weights": "w1", "weights2": "w2", "cluster": "who"}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, Path]:
    """LABELS and PREDICTIONS in row groups of 50 rows."""
    paths = tables(tmp_path, ".parquet", wide=False)
    for path in paths:
        parquet.write_table(parquet.read_table(path), path, row_group_size=50)
    return paths


def same(found: Any, expected: Any) -> None:
    """Documents equal to rounding: sums are added in another order."""
    assert {name: found[name] for name in found if name not in {"metrics", "warnings"}} == {
        name: expected[name] for name in expected if name not in {"metrics", "warnings"}
    }
    for name, row in expected["metrics"].items():
        for end, value in row.items():
            about = value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
            assert found["metrics"][name][end] == about, (name, end)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize(("columns", "n_shards"), [({}, 3), (COLUMNS, 17)])
def test_parts_in_any_order_are_the_stream(
    stored: tuple[Path, Path], tmp_path: Path, columns: dict[str, str], n_shards: int
) -> None:
    folder, order = tmp_path / "job", list(range(1, n_shards + 1))
    random.Random(n_shards).shuffle(order)
    options = EvaluationOptions(**columns)  # type: ignore[arg-type]
    done = [evaluate_shard(Streaming(*stored, options), folder, (shard, n_shards)) for shard in order]
    expected = evaluate_stream(*stored, options)
    assert sum(part.n_labels for part in done) == expected["n_labels"]
    same(finish_evaluation(folder), expected)
    same(finish_evaluation(folder, "none"), evaluate_stream(*stored, replace(options, debias="none")))


def test_a_part_reads_only_its_own_row_groups(stored: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []
    original = parquet.ParquetFile.iter_batches

    def watched(self: Any, rows: int, row_groups: list[int], **rest: Any) -> Any:
        read.append(list(row_groups))
        return original(self, rows, row_groups=row_groups, **rest)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", watched)
    labels, predictions = stored
    groups = parquet.ParquetFile(labels).num_row_groups
    for shard in range(1, 5):
        span = span_of(predictions, shard, 4)
        read.clear()
        assert sum(table.num_rows for _, table in labels_of(span, labels, 1000)) > 0
        assert 0 < sum(map(len, read)) <= groups // 4 + 2


def test_a_part_that_is_there_is_left_and_made_again_it_has_the_same_bytes(
    stored: tuple[Path, Path], tmp_path: Path
) -> None:
    stream, folder = Streaming(*stored), tmp_path / "job"
    path = evaluate_shard(stream, folder, (2, 3)).path
    written = path.stat().st_mtime_ns, path.read_bytes()
    evaluate_shard(stream, folder, (2, 3))
    assert (path.stat().st_mtime_ns, path.read_bytes()) == written
    path.unlink()
    evaluate_shard(stream, folder, (2, 3))
    assert path.read_bytes() == written[1]
    assert sorted(file.name for file in folder.iterdir()) == ["evaluation-00002-of-00003.npz", "evaluation.json"]


def test_what_is_missing_damaged_or_of_another_evaluation_is_said(stored: tuple[Path, Path], tmp_path: Path) -> None:
    stream, folder = Streaming(*stored), tmp_path / "job"
    with pytest.raises(ShardError, match="no shard was ever written"):
        finish_evaluation(tmp_path)
    for shard in (1, 2, 5):
        path = evaluate_shard(stream, folder, (shard, 5)).path
    with pytest.raises(ShardError, match="2 of 5 shards are missing: 3–4"):
        finish_evaluation(folder)
    with pytest.raises(ShardError, match=r"another evaluation \(cluster None, here who\)"):
        evaluate_shard(Streaming(*stored, EvaluationOptions(cluster="who")), folder, (3, 5))
    with pytest.raises(ShardError, match=r"another evaluation \(n_shards 5, here 6\)"):
        evaluate_shard(stream, folder, (3, 6))
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:]):
        path.write_bytes(damage)
        with pytest.raises(ShardError, match="is not what was written"):
            evaluate_shard(stream, folder, (5, 5))
    write_table({"case_id": ["a"], "count:a": [1], "count:b": [1]}, stored[0])
    with pytest.raises(ShardError, match="another evaluation"):
        evaluate_shard(stream, folder, (3, 5))


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (["a", "bb", "c"], "'bb' has a label but no prediction"),
        (["a", "z"], "'z' has a label but no prediction"),
        (["b", "a"], "sort it by case_id"),
    ],
)
def test_strange_labels_are_seen_by_one_of_the_parts(tmp_path: Path, labels: list[str], problem: str) -> None:
    paths = tmp_path / "labels.parquet", tmp_path / "predictions.parquet"
    n = len(labels)
    write_table({"case_id": labels, "count:x": [1] * n, "count:y": [1] * n}, paths[0])
    parquet.write_table(parquet.read_table(paths[0]), paths[0], row_group_size=1)
    write_table({"case_id": list("abcd"), "prob:x": [0.5] * 4, "prob:y": [0.5] * 4}, paths[1])

    def every_part() -> None:
        for shard in (1, 2, 3):
            evaluate_shard(Streaming(*paths), tmp_path / "job", (shard, 3))

    with pytest.raises(TableError, match=problem):
        every_part()


@pytest.mark.parametrize("batch_rows", [20, 1000])
def test_an_error_in_a_shard_names_the_row_of_the_file(stored: tuple[Path, Path], batch_rows: int) -> None:
    table = parquet.read_table(stored[0]).to_pydict()

    def every_part() -> None:
        for shard in (1, 2, 3, 4):
            Streaming(*stored).sums(span_of(stored[1], shard, 4), batch_rows=batch_rows)

    for row in (0, 700, len(table["label"]) - 1):
        labels = [*table["label"][:row], "strange", *table["label"][row + 1 :]]
        parquet.write_table(pa.table(table | {"label": labels}), stored[0], row_group_size=50)
        with pytest.raises(TableError, match=rf"row {row + 1}, column label: unknown class"):
            every_part()


def test_a_case_without_a_label_needs_no_prediction_in_a_stream_either(tmp_path: Path) -> None:
    paths = tmp_path / "labels.csv", tmp_path / "predictions.csv"
    write_table({"case_id": list("abc"), "count:x": [1, 0, 0], "count:y": [1, 0, 0]}, paths[0])
    write_table({"case_id": ["a"], "prob:x": [0.5], "prob:y": [0.5]}, paths[1])
    assert evaluate_stream(*paths)["n_labels"] == evaluate_tables(*paths).n_labels == 2


def test_tables_that_cannot_be_divided_are_refused(stored: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(TableError, match="cannot be divided into 401"):
        evaluate_shard(Streaming(*stored), tmp_path / "job", (1, 401))
    text = tmp_path / "labels.csv"
    write_table({"case_id": ["a"], "count:a": [1], "count:b": [1]}, text)
    with pytest.raises(TableError, match="sorted Parquet tables"):
        evaluate_shard(Streaming(text, stored[1]), tmp_path / "other", (1, 2))


def test_shards_from_the_command_line(stored: tuple[Path, Path], tmp_path: Path) -> None:
    job = tmp_path / "job"
    command = ["evaluate", "--labels", str(stored[0]), "--predictions", str(stored[1]), "--cluster", "who"]
    for shard in ("2/2", "1/2"):
        done = run_here(*command, "--shard", shard, "--out", str(job), "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["n_cases"] == 200
    found = run_here("evaluate-finish", str(job), "--json")
    assert found.returncode == 0, found.stderr
    same(json.loads(found.stdout), evaluate_stream(*stored, EvaluationOptions(cluster="who")))
    assert "95 % interval" in run_here("evaluate-finish", str(job)).stdout
    whole = ["--shard", "1/2", "--out", str(job)]
    for wrong, named in (
        (whole[:2], "--out"),
        (whole[2:], "--shard"),
        ([*whole, "--binary"], "--binary"),
        ([*whole, "--debias", "paper"], "evaluate-finish"),
    ):
        refused = run_here(*command, *wrong)
        assert refused.returncode == 2
        assert named in refused.stderr


@pytest.fixture
def weighed(tmp_path: Path) -> tuple[Path, Path]:
    """Tables with one heavy weight, and of three cells nobody knows whether the release was trained on them."""
    paths = tables(tmp_path, ".parquet", wide=True)
    labels, predictions = (read_table(path).to_pydict() for path in paths)
    heavy = int(np.argmax(sum(np.array(labels[f"count:k{k}"]) for k in range(3)) >= 2))
    labels["w1"] = [100.0 if row == heavy else 1.0 for row in range(len(labels["w1"]))]
    write_table(labels, paths[0])
    write_table(predictions | {"trained_on": ["unknown"] * 3 + ["no"] * 397}, paths[1])
    return paths


@pytest.mark.parametrize("options", [{"weights": "w1"}, {"weights": "w1", "weights2": "w2"}, {"weights2": "w1"}, {}])
def test_streams_and_shards_warn_of_weights_and_training_cells_as_memory_does(
    weighed: tuple[Path, Path], tmp_path: Path, options: dict[str, str]
) -> None:
    weights = (options.get("weights"), options.get("weights2"))
    # sums over groups know the mean weight of the heaviest group
    texts = [text.split(" (largest")[0] for text in evaluate_tables(*weighed, sample_weight=weights).warnings]
    expected = [text for text in texts if "order" in text or "trained" in text]
    assert len(expected) == (1 if not options else 4 if weights[1] is None else 2)
    asked = EvaluationOptions(**options)
    for shard in (1, 2):
        evaluate_shard(Streaming(*weighed, asked), tmp_path / "job", (shard, 2))
    documents = evaluate_stream(*weighed, asked, batch_rows=50), finish_evaluation(tmp_path / "job")
    for document, where in zip(documents, (str(weighed[1]), "PREDICTIONS"), strict=True):
        texts = [text.split(" (largest")[0].replace(where, str(weighed[1])) for text in document["warnings"]]
        assert texts[: len(expected)] == expected


def test_a_stream_refuses_other_answers_about_training_cells(weighed: tuple[Path, Path]) -> None:
    write_table(read_table(weighed[1]).to_pydict() | {"trained_on": ["no"] * 399 + ["maybe"]}, weighed[1])
    with pytest.raises(TableError, match="row 400, column trained_on: must be yes, no or unknown, not 'maybe'"):
        evaluate_stream(*weighed, batch_rows=50)


def shuffled(path: Path, out: Path, seed: int) -> Path:
    table = read_table(path)
    write_table(table.take(np.random.default_rng(seed).permutation(table.num_rows)).to_pydict(), out)
    return out


@pytest.mark.parametrize(("kind", "wide"), [(".csv", False), (".parquet", True)])
def test_a_table_sorted_by_the_command_is_in_order_and_whole(tmp_path: Path, kind: str, wide: bool) -> None:
    for path in tables(tmp_path, ".parquet", wide=wide):
        given, out = shuffled(path, tmp_path / f"given{kind}", seed=3), tmp_path / "sorted.parquet"
        done = run_here("sort", given, "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        before, after = read_table(given), read_table(out)
        assert json.loads(done.stdout) == {"rows": before.num_rows, "file": str(out)}
        ids = after.column("case_id").to_pylist()
        assert ids == sorted(ids, key=str.encode)
        assert sorted(map(str, after.to_pylist())) == sorted(map(str, before.to_pylist()))
        assert not list(tmp_path.glob(".*"))


def test_identifiers_stay_text_and_numbers_numbers(tmp_path: Path) -> None:
    given, out = tmp_path / "labels.csv", tmp_path / "sorted.parquet"
    cases = ["10", "9", "007", "1e3", "Ä", "a", "Z", "é", "\U0001f600", "￿"]
    rows = [f"{case},00{number},true,{number},{number / 2}" for number, case in enumerate(cases)]
    given.write_text("\n".join(["case_id,annotator,label,patient,weight", *rows]) + "\n")
    assert sort_table(given, out) == len(cases)
    table = parquet.read_table(out)
    assert table.column("case_id").to_pylist() == sorted(cases)
    assert sorted(table.column("annotator").to_pylist()) == [f"00{number}" for number in range(10)]
    assert [str(table.schema.field(name).type) for name in ("label", "patient", "weight")] == [
        "string",
        "string",
        "double",
    ]


def test_columns_keep_their_names_though_they_differ_by_a_capital_only(tmp_path: Path) -> None:
    columns = {"prob:a": [0.1, 0.2], "case_id": ["b", "a"], "prob:A": [0.9, 0.8], "Case_ID": [1, 2], "c0": [3, 4]}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    sort_table(tmp_path / "t.parquet", tmp_path / "s.parquet")
    expected = {"case_id": ["a", "b"]} | {name: values[::-1] for name, values in columns.items() if name != "case_id"}
    table = parquet.read_table(tmp_path / "s.parquet")
    assert table.column_names == list(expected)
    assert table.to_pydict() == expected


@pytest.mark.slow
def test_the_same_rows_give_the_same_bytes_and_what_does_not_fit_into_memory_lies_on_disk(tmp_path: Path) -> None:
    n = 400_000
    rows = {
        "case_id": [f"case {row * 7919 % n // 2:09d}" for row in range(n)],
        "annotator": [f"annotator {row % 11}" for row in range(n)],
        "label": [f"class {row % 5}" for row in range(n)],
    }
    written = []
    for seed, memory in ((1, None), (2, "40MB")):
        order = list(range(n))
        random.Random(seed).shuffle(order)
        parquet.write_table(pa.table(rows).take(order), tmp_path / "given.parquet")
        seen: list[int] = []
        assert sort_table(tmp_path / "given.parquet", tmp_path / "s.parquet", memory=memory, observer=seen.append) == n
        assert seen[-1] == n
        written.append((tmp_path / "s.parquet").read_bytes())
    assert written[0] == written[1]
    assert parquet.read_metadata(tmp_path / "s.parquet").num_row_groups == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("case,annotator,label\na,b,c\n", "column 'case_id' is missing"),
        ("case_id;annotator;label\na;b;c\n", "columns are separated by semicolons"),
        ("case_id,annotator,label\na,b,c\n" + "a,b\n", "row 3: 2 cells, and the header has 3: 'a,b'"),
        pytest.param(
            "case_id,annotator,label\n" + "a,b,c\n" * 3_000_000 + "a,b\n",
            "row 3000002: 2 cells, and the header has 3",
            marks=pytest.mark.slow,
            id="beyond the rows that are read at once",
        ),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_is_written(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(TableError, match=problem):
        sort_table(tmp_path / "t.csv", tmp_path / "s.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_what_cannot_be_sorted_or_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("case_id,annotator,label\na,b,c\n")
    for options, problem in (
        (("--out", tmp_path / "s.csv"), "the extension must be .parquet"),
        (("--out", tmp_path / "nowhere" / "s.parquet"), "nowhere"),
        (("--out", tmp_path / "s.parquet", "--memory", "much"), "Memory must have a number"),
    ):
        refused = run_here("sort", tmp_path / "t.csv", *options)
        assert refused.returncode == 1
        assert len(refused.stderr.splitlines()) == 1
        assert problem in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_a_sort_that_was_killed_leaves_the_earlier_file(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"case_id": ["b", "a"]}), tmp_path / "t.parquet")
    out = tmp_path / "s.parquet"
    out.write_bytes(b"the earlier one")
    code = (
        "import os, signal, sys; from pathlib import Path; from ml.tables.streaming import sort_table\n"
        "sort_table(Path(sys.argv[1]), Path(sys.argv[2]), observer=lambda rows: os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.parquet"), str(out)], check=False)
    assert done.returncode == -9
    assert out.read_bytes() == b"the earlier one"
    assert sort_table(tmp_path / "t.parquet", out) == 2
    assert parquet.read_table(out).column("case_id").to_pylist() == ["a", "b"]
