"""An evaluation in parts: in any order, raced, made again, it is the stream's; what is missing or strange is said."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from ml.scoring.evaluation_shards import evaluate_shard, finish_evaluation
from ml.scoring.shards import ShardError
from ml.tables.matching import EvaluationOptions
from ml.tables.reading import TableError, write_table
from ml.tables.streaming import Streaming, evaluate_stream, labels_of, span_of
from tests.ml.test_streaming import tables
from tests.support.command import run_here

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
        assert sum(table.num_rows for table in labels_of(span, labels, 1000)) > 0
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
