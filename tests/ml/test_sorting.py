"""Tables in any order, sorted on disk by DuckDB: what an evaluation in parts says of them is what memory says."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from ml.tables import evaluate as evaluate_tables
from ml.tables.reading import TableError, read_table
from ml.tables.sorting import sort_table
from tests.ml.test_streaming import tables
from tests.support.command import run_here


def shuffled(path: Path, out: Path, seed: int) -> Path:
    table = read_table(path)
    order = list(range(table.num_rows))
    random.Random(seed).shuffle(order)
    table = table.take(order)
    if out.suffix == ".csv":
        from pyarrow import csv

        csv.write_csv(table, out)
    else:
        parquet.write_table(table, out)
    return out


@pytest.mark.parametrize(("kind", "wide"), [(".csv", False), (".parquet", True)])
def test_shards_of_sorted_tables_say_what_memory_says(tmp_path: Path, kind: str, wide: bool) -> None:
    whole = tables(tmp_path, ".parquet", wide=wide)
    given = [shuffled(path, tmp_path / f"{path.stem} as given{kind}", seed=3) for path in whole]
    paths = [tmp_path / f"{path.stem} sorted.parquet" for path in whole]
    for table, out in zip(given, paths, strict=True):
        done = run_here("sort", table, "--out", out, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"rows": read_table(table).num_rows, "file": str(out)}
        ids = read_table(out).column("case_id").to_pylist()
        assert ids == sorted(ids, key=str.encode)
        assert not list(tmp_path.glob(".*"))
    evaluate = ("evaluate", "--labels", paths[0], "--predictions", paths[1])
    for shard in ("2/3", "1/3", "3/3"):
        done = run_here(*evaluate, "--shard", shard, "--out", tmp_path / "parts")
        assert done.returncode == 0, done.stderr
    found = json.loads(run_here("evaluate-finish", tmp_path / "parts", "--json").stdout)
    expected = evaluate_tables(*given)
    assert (found["n_cases"], found["n_labels"]) == (expected.to_dict()["n_cases"], expected.to_dict()["n_labels"])
    assert len(found["metrics"]) > 10
    for name, row in found["metrics"].items():
        value = expected.to_dict()["metrics"][name]["value"]
        assert row["value"] == (value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)), name


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


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table_and_nothing_but_the_answer_is_printed(tmp_path: Path) -> None:
    given = tmp_path / "t.parquet"
    used = []
    for rows in (500_000, 2_000_000):
        order = pa.array((np.arange(rows) * 7919) % rows)
        half = pc.cast(pc.cast(pc.divide(order, 2), pa.int64()), pa.string())
        columns = {"case_id": pc.binary_join_element_wise("a case with a long name", half, " ")}
        columns |= {"annotator": pc.cast(pc.bit_wise_and(order, 1), pa.string())}
        parquet.write_table(pa.table(columns | {"label": pc.cast(pc.bit_wise_and(order, 3), pa.string())}), given)
        code = (
            "import sys\nfrom app.cli.main import main\n"
            "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
            "sys.stderr.write(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
        )
        options = ("--out", str(tmp_path / "s.parquet"), "--memory", "100MB", "--json")
        arguments = (sys.executable, "-c", code, "sort", str(given), *options)
        done = subprocess.run(arguments, capture_output=True, check=True)
        assert json.loads(done.stdout)["rows"] == rows
        used.append(int(done.stderr))
    assert used[1] < 1.5 * used[0], used


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("case,annotator,label\na,b,c\n", "column 'case_id' is missing"),
        ("case_id;annotator;label\na;b;c\n", "columns are separated by semicolons"),
        ("case_id,annotator,label\na,b,c\n" + "a,b\n", "row 3: 2 cells, and the header has 3: 'a,b'"),
        ("case_id,annotator,label\n" + "a,b,c\n" * 3_000_000 + "a,b\n", "row 3000002: 2 cells, and the header has 3"),
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
        "import os, signal, sys; from pathlib import Path; from ml.tables.sorting import sort_table\n"
        "sort_table(Path(sys.argv[1]), Path(sys.argv[2]), observer=lambda rows: os.kill(os.getpid(), signal.SIGKILL))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "t.parquet"), str(out)], check=False)
    assert done.returncode == -9
    assert out.read_bytes() == b"the earlier one"
    assert sort_table(tmp_path / "t.parquet", out) == 2
    assert parquet.read_table(out).column("case_id").to_pylist() == ["a", "b"]
