"""Shards of a long list of images: in any order, killed, raced, started elsewhere, they are one run byte for byte."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pyarrow import parquet

import app.demo
from app.cli.main import secondread
from ml.images.preprocess import ImageRejectedError, decode_image
from ml.scoring.images import open_list, repeated_row
from ml.scoring.pool import run_missing
from ml.scoring.shards import ShardError, merge_job_shards, rows_of, score_shard
from ml.scoring.table import ScoreRequest, score_images
from ml.tables.files import read_predictions
from ml.tables.reading import TableError, write_table
from ml.util.files import file_sha256, read_json, write_json
from tests.support.command import run_here
from tests.support.images import CORPUS
from tests.support.shards import joined, left_over, manifest, one_run, write_images, write_parts
from tests.support.tiny_release import write_tiny_release


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("shards") / "images")


def two_shards(release: Path, listed: Path, job: Path) -> tuple[bytes, bytes]:
    """Score a list in two shards, and join them."""
    for shard in (1, 2):
        score_shard(ScoreRequest(release, listed), job, (shard, 2))
    return joined(job)


@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("n_shards", [1, 2, 7, 40])
def test_shards_divide_the_rows_at_whole_blocks(n_rows: int, n_shards: int) -> None:
    rows = [rows_of(shard, n_shards, n_rows) for shard in range(1, n_shards + 1)]
    assert [row for first, stop in rows for row in range(first, stop)] == list(range(n_rows))
    assert all(first % 64 == 0 or first == n_rows for first, _ in rows)


@pytest.mark.parametrize(("kind", "n_shards"), [("csv", 3), ("parquet", 12)])
def test_shards_in_any_order_are_one_run(
    tiny_release: Path, images: Path, tmp_path: Path, kind: str, n_shards: int
) -> None:
    listed = manifest(images, 500, f"any.{kind}")
    expected = one_run(tiny_release, listed, tmp_path / "one.parquet")
    order = list(range(1, n_shards + 1))
    random.Random(n_shards).shuffle(order)
    for shard in order:
        score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (shard, n_shards))
    assert joined(tmp_path / "job") == expected
    assert joined(tmp_path / "job") == expected
    assert not left_over(tmp_path / "job")


def test_a_shard_that_is_there_is_left_and_made_again_it_has_the_same_bytes(
    tiny_release: Path, images: Path, tmp_path: Path
) -> None:
    listed = manifest(images, 200, "again.csv")
    first = score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (1, 2))
    written = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "job").iterdir()}
    assert score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (1, 2)) == first
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "job").iterdir()} == written
    for path in list(written):
        path.unlink()
    assert score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (1, 2)) == first
    assert {path: path.read_bytes() for path in (tmp_path / "job").iterdir()} == {p: w[1] for p, w in written.items()}


@pytest.mark.parametrize("left", [{"predictions.parquet"}, {"predictions.parquet", "errors.parquet"}])
def test_a_shard_that_was_killed_between_its_files_is_made_again(
    tiny_release: Path, images: Path, tmp_path: Path, left: set[str]
) -> None:
    listed, job = manifest(images, 200, "between.csv"), tmp_path / "job"
    expected = two_shards(tiny_release, listed, job)
    for path in job.glob("shard-00001-*"):
        if path.name.partition(".")[2] not in left:
            path.unlink()
    with pytest.raises(ShardError, match=r"1 of 2 shard is missing: 1$"):
        merge_job_shards(job)
    score_shard(ScoreRequest(tiny_release, listed), job, (1, 2))
    assert joined(job) == expected


def test_unreadable_images_are_rows_of_errors_with_names_and_reasons(tiny_release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    expected = {}
    for number, (content, reason) in enumerate(CORPUS.values()):
        (folder / f"{number:03d}.png").write_bytes(content)
        if reason is not None:
            expected[f"{number:03d}.png"] = reason
    (folder / "gone.png").symlink_to(tmp_path / "nothing")
    done = score_images(ScoreRequest(tiny_release, folder), tmp_path / "p.csv")
    with done.errors.open() as stream:
        found = {row["file"]: row for row in csv.DictReader(stream)}
    assert {name: row["reason"] for name, row in found.items()} == expected | {"gone.png": "missing"}
    for name in expected:
        with pytest.raises(ImageRejectedError) as refused:
            decode_image((folder / name).read_bytes())
        assert found[name]["message"] == str(refused.value)
    assert str(tmp_path) not in done.errors.read_text()
    names = sorted(path.name for path in folder.iterdir())
    assert [int(row["row"]) for row in found.values()] == [names.index(name) for name in found]
    assert done.n_predictions + done.n_errors == len(names)
    read = read_predictions(done.predictions)
    assert [f"{case}.png" for case in read.case_ids] == [name for name in names if name not in found]


def test_a_list_of_nothing_that_can_be_read_ends_well(tiny_release: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text("case_id,file\na,a.png\nb,b.png\n")
    assert one_run(tiny_release, listed, tmp_path / "one.parquet") is not None
    assert two_shards(tiny_release, listed, tmp_path / "job")[1] == (tmp_path / "one.errors.parquet").read_bytes()
    assert merge_job_shards(tmp_path / "job").reasons == {"missing": 2}


def test_folders_are_walked_in_one_order_however_few_names_fit_in_memory(tmp_path: Path) -> None:
    names = [f"{a}/{b}.{kind}" for a in ("x", "y/z", "x-1") for b in range(9) for kind in ("png", "TIF", "txt")]
    random.Random(1).shuffle(names)
    for name in [*names, "top.jpg", "top.csv", "schön.png"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "around").symlink_to(tmp_path)
    whole = open_list(tmp_path)
    assert whole.rows == 3 * 9 * 2 + 2
    found = [name for rows in whole.read(0, whole.rows) for name in rows.names]
    assert found == sorted((name for name in [*names, "top.jpg", "schön.png"] if "txt" not in name), key=str.encode)
    for few in (1, 5, whole.rows):
        other = open_list(tmp_path, names_in_memory=few)
        assert (other.rows, other.sha256) == (whole.rows, whole.sha256)
        assert [name for rows in other.read(0, other.rows) for name in rows.names] == found
    assert "x-1/3" in [case for rows in whole.read(0, whole.rows) for case in rows.case_ids]
    (tmp_path / "another.png").write_bytes(b"")
    assert open_list(tmp_path).sha256 != whole.sha256


def test_missing_shards_are_named(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed = manifest(images, 700, "missing.csv")
    for shard in (1, 4, 9):
        score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (shard, 9))
    with pytest.raises(ShardError, match=r"6 of 9 shards are missing: 2–3, 5–8$"):
        merge_job_shards(tmp_path / "job")
    assert not (tmp_path / "job" / "predictions.parquet").exists()
    with pytest.raises(ShardError, match=r"no shard was ever written"):
        merge_job_shards(tmp_path)


def test_parts_of_another_job_are_refused_with_the_difference(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 200, "a.csv"), tmp_path / "job"
    score_shard(ScoreRequest(tiny_release, listed), job, (1, 2))
    other = write_tiny_release(tmp_path / "release", "another name")
    before = {path.name: path.read_bytes() for path in job.iterdir()}
    for release, images_of, shard, tta, what in (
        (other, listed, (2, 2), None, "release"),
        (tiny_release, manifest(images, 201, "b.csv"), (2, 2), None, "list of images"),
        (tiny_release, listed, (2, 3), None, "number of shards"),
        (tiny_release, listed, (2, 2), 2, "number of augmented views"),
    ):
        with pytest.raises(ShardError, match=f"shards of another {what}"):
            score_shard(ScoreRequest(release, images_of, tta=tta), job, shard)
    assert {path.name: path.read_bytes() for path in job.iterdir()} == before
    # a part that was copied in from elsewhere
    score_shard(ScoreRequest(other, listed), tmp_path / "other", (2, 2))
    for path in (tmp_path / "other").glob("shard-*"):
        (job / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ShardError, match=r"00002\.json: is a part of another job"):
        merge_job_shards(job)


def test_a_part_that_was_changed_is_seen(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 200, "changed.csv"), tmp_path / "job"
    expected = two_shards(tiny_release, listed, job)
    part = job / "shard-00002-of-00002.predictions.parquet"
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    with pytest.raises(ShardError, match=r"is not what was written: delete the three files of shard 2"):
        merge_job_shards(job)
    (job / "shard-00002-of-00002.json").unlink()
    with pytest.raises(ShardError, match="other bytes"):
        score_shard(ScoreRequest(tiny_release, listed), job, (2, 2))
    for path in job.glob("shard-00002*"):
        path.unlink()
    score_shard(ScoreRequest(tiny_release, listed), job, (2, 2))
    assert joined(job) == expected


def test_counts_that_do_not_add_up_are_refused(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 100, "counts.csv"), tmp_path / "job"
    score_shard(ScoreRequest(tiny_release, listed), job, (1, 1))
    path = job / "shard-00001-of-00001.json"
    write_json(path, read_json(path) | {"n_predictions": 1})
    with pytest.raises(ShardError, match=r"98 predictions and 2 errors of 100 images"):
        merge_job_shards(job)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_case_that_stands_twice_is_named(tiny_release: Path, images: Path, tmp_path: Path, kind: str) -> None:
    listed = images / f"twice.{kind}"
    cases = [f"c{row}" for row in range(150)]
    cases[140] = "c3"
    write_table({"case_id": cases, "file": ["1.png"] * 150}, listed)
    row = 142 if kind == "csv" else 141
    with pytest.raises(TableError, match=rf"row {row}, column case_id: duplicated case 'c3'"):
        score_images(ScoreRequest(tiny_release, listed), tmp_path / "p.csv")
    assert not (tmp_path / "p.csv").exists()
    with pytest.raises(ShardError, match="case 'c3' stands twice"):
        two_shards(tiny_release, listed, tmp_path / "job")


@pytest.mark.parametrize("in_memory", [1, 7, 1000])
def test_repeats_are_found_however_few_fit_in_memory(in_memory: int) -> None:
    names = [f"name {row}" for row in range(900)]
    assert repeated_row([names[:500], names[500:]], in_memory=in_memory) is None
    names[700], names[650], names[800] = names[2], names[649], names[2]
    assert repeated_row(iter([names[:500], [], names[500:]]), in_memory=in_memory) == 650


def test_columns_of_a_manifest_that_nobody_asked_for_may_contain_anything(
    tiny_release: Path, images: Path, tmp_path: Path
) -> None:
    listed = images / "wild.csv"
    with listed.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["site", "case_id", "file"])
        # numbers first, and words only after what is start immediately
        writer.writerows((row if row < 60_000 else "ward", f"c{row}", "0.png") for row in range(60_100))
    part = score_shard(ScoreRequest(tiny_release, listed), tmp_path / "job", (900, 900))
    assert part["n_predictions"] == rows_of(900, 900, 60_100)[1] - rows_of(900, 900, 60_100)[0]
    for text, words in (
        ("case_id,picture\na,0.png\n", "column 'file' is missing; there are case_id, picture"),
        ("case_id,file\na,0.png\n,0.png\n", "row 3, column case_id: the value is missing"),
    ):
        listed.write_text(text)
        with pytest.raises(TableError, match=words):
            score_images(ScoreRequest(tiny_release, listed), tmp_path / "p.csv")


@pytest.mark.parametrize("name", ["images", "list.csv", "list.parquet"])
def test_a_list_that_is_not_there_is_said_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError, match=f"{name}: there is no such file or folder"):
        open_list(tmp_path / name)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-c", "from app.cli.main import main; main()", *map(str, arguments)]


def start(*arguments: object) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def killed_in_the_middle(release: Path, listed: Path, job: Path, shard: str) -> bool:
    """Kill the process of a shard once it writes; whether it had not ended."""
    process = start("score", release, "--images", listed, "--out", job, "--shard", shard)
    while process.poll() is None and not any("predictions" in name for name in left_over(job) if job.exists()):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.stderr is not None
    process.stderr.close()
    return process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_shards_that_were_killed_and_run_again_are_one_run(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 12_000, "killed.parquet"), tmp_path / "job"
    job.mkdir()
    expected = one_run(tiny_release, listed, tmp_path / "one.parquet")
    for shard in ("3/3", "1/3"):
        assert killed_in_the_middle(tiny_release, listed, job, shard)
        assert left_over(job)
        assert not list(job.glob(f"shard-0000{shard[0]}-*.json"))
    with pytest.raises(ShardError, match=r"3 of 3 shards are missing: 1–3"):
        merge_job_shards(job)
    for shard in ("2/3", "3/3", "1/3"):
        process = start("score", tiny_release, "--images", listed, "--out", job, "--shard", shard)
        assert process.communicate()[1] == b""
        assert process.returncode == 0
    assert joined(job) == expected


@pytest.mark.slow
def test_two_processes_race_on_one_shard_and_one_file_is_left(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 3_000, "race.csv"), tmp_path / "job"
    racing = [start("score", tiny_release, "--images", listed, "--out", job, "--shard", "1/1") for _ in range(3)]
    errors = [process.communicate()[1] for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0], errors
    kinds = ("errors.parquet", "json", "predictions.parquet")
    assert {path.name for path in job.iterdir()} == {"job.json", *(f"shard-00001-of-00001.{kind}" for kind in kinds)}
    assert joined(job) == one_run(tiny_release, listed, tmp_path / "one.parquet")


@pytest.mark.slow
def test_processes_run_the_missing_shards(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 700, "local.csv"), tmp_path / "job"
    expected = one_run(tiny_release, listed, tmp_path / "one.parquet")
    score_shard(ScoreRequest(tiny_release, listed), job, (2, 4))
    there = file_sha256(job / "shard-00002-of-00004.json")
    seen = []
    run = run_missing(ScoreRequest(tiny_release, listed), job, "local", lambda done, total: seen.append((done, total)))
    assert (run.n_shards, run.n_run, run.n_predictions + run.n_errors) == (4, 3, 700)
    assert seen[-1][0] == seen[-1][1] == 700 - (rows_of(2, 4, 700)[1] - rows_of(2, 4, 700)[0])
    assert file_sha256(job / "shard-00002-of-00004.json") == there
    assert joined(job) == expected
    assert run_missing(ScoreRequest(tiny_release, listed), job).n_run == 0
    fresh = run_missing(ScoreRequest(tiny_release, listed), tmp_path / "fresh")
    assert fresh.n_run == fresh.n_shards == min(len(os.sched_getaffinity(0)), 11)
    assert joined(tmp_path / "fresh") == expected


@pytest.mark.slow
def test_a_convolutional_network_on_real_cells_is_one_run_too(tmp_path: Path) -> None:
    """Its rounding may depend on what is predicted beside an image, and on the number of threads."""
    cells = Path(app.demo.__file__).parent / "cells"
    expected = one_run(cells / "release", cells / "images", tmp_path / "one.parquet")
    for shard in (3, 1, 2):
        score_shard(ScoreRequest(cells / "release", cells / "images"), tmp_path / "job", (shard, 3), threads=shard)
    assert joined(tmp_path / "job") == expected


@pytest.mark.slow
def test_of_two_jobs_that_begin_in_one_folder_one_is_refused(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    job, lists = tmp_path / "job", [manifest(images, rows, f"rivals {rows}.csv") for rows in (500, 600)]
    racing = [start("score", tiny_release, "--images", listed, "--out", job, "--shard", "1/1") for listed in lists]
    errors = [process.communicate()[1].decode() for process in racing]
    assert sorted(process.returncode for process in racing) == [0, 1], errors
    assert "shards of another list of images" in "".join(errors)
    winner = lists[[process.returncode for process in racing].index(0)]
    assert joined(job) == one_run(tiny_release, winner, tmp_path / "one.parquet")


def children_of(pid: int) -> list[str]:
    """Processes that any thread of a process began; a thread that ends meanwhile has none."""
    found: list[str] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += (thread / "children").read_text().split()
    return found


@pytest.mark.slow
def test_processes_end_with_the_one_that_asked_for_them(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 60_000, "orphans.csv"), tmp_path / "job"
    process = start("score", tiny_release, "--images", listed, "--out", job, "--engine", "local")
    children: list[str] = []
    while process.poll() is None and not (job.exists() and left_over(job) and len(children) >= 2):
        children = children_of(process.pid)
        time.sleep(0.01)
    assert len(children) >= 2
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.stderr is not None
    process.stderr.close()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def peak_memory(*arguments: object) -> int:
    """Kilobytes that a command had in memory at most, since it began: what its parent had is not counted."""
    code = (
        "import sys\nfrom app.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "sys.stderr.write(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, check=True)
    return int(done.stderr)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_images(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    used = []
    for rows in (1_000, 20_000, 100_000):
        listed = manifest(images, rows, f"memory {rows}.csv")
        options = ("--images", listed, "--out", tmp_path / f"job {rows}", "--shard", "1/1")
        used.append(peak_memory("score", tiny_release, *options))
    # a thousand rows do not fill what is held before it is written
    assert used[2] < 1.35 * used[0], used
    assert used[2] < 1.1 * used[1], used


@pytest.mark.slow
def test_memory_does_not_grow_with_what_is_joined(tmp_path: Path) -> None:
    used = []
    for rows in (100_000, 1_000_000):
        write_parts(tmp_path / str(rows), rows, n_shards=5)
        used.append(peak_memory("score-finish", tmp_path / str(rows)))
        assert parquet.read_metadata(tmp_path / str(rows) / "predictions.parquet").num_rows == rows
    assert used[1] < 1.25 * used[0], used


def test_the_command_line_says_what_it_did(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 150, "command.csv"), tmp_path / "job"
    score = ("score", tiny_release, "--images", listed, "--out")
    done = run_here(*score, tmp_path / "p.csv", "--json")
    assert done.returncode == 0, done.stderr
    files = {"predictions": str(tmp_path / "p.csv"), "errors": str(tmp_path / "p.errors.csv")}
    assert json.loads(done.stdout) == {"n_cases": 147, "n_errors": 3} | files
    assert "shard 1 of 2: " in run_here(*score, job, "--shard", "1/2").stdout
    assert "1 of 2 shard is missing: 2" in run_here("score-finish", job).stderr
    run_here(*score, job, "--shard", "2/2")
    finished = json.loads(run_here("score-finish", job, "--json").stdout)
    assert (finished["n_shards"], finished["n_cases"], finished["n_errors"]) == (2, 147, 3)
    assert sum(finished["reasons"].values()) == 3
    assert "3 images could not be read (" in run_here("score-finish", job).stdout
    for shard, words in (("0/2", "from 1/2 to 2/2"), ("3/2", "from 1/2"), ("2", "write i/n"), ("a/2", "write i/n")):
        refused = run_here(*score, job, "--shard", shard)
        assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr
    assert "a folder is written" in run_here(*score, tmp_path / "x.csv", "--shard", "1/2").stderr
    assert "leave one of them out" in run_here(*score, job, "--shard", "1/2", "--engine", "local").stderr


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def variables(tmp_path: Path, release: Path, listed: Path, shards: int) -> dict[str, str]:
    """What whoever starts a recipe sets, with this checkout as the command `secondread`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    command = programs / "secondread"
    command.write_text(f"#!{sys.executable}\nfrom app.cli.main import main\nmain()\n")
    command.chmod(0o755)
    own = {"RELEASE": str(release), "IMAGES": str(listed), "OUT": str(tmp_path / "job"), "SHARDS": str(shards)}
    root = str(EXAMPLES.parents[1])
    return os.environ | own | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": root}


def run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def job_of_kubernetes() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / "score-kubernetes.yaml").read_text())
    return document


def slurm(environment: dict[str, str]) -> None:
    script = ["sh", str(EXAMPLES / "score.slurm")]
    for task in ("2", "1"):
        # of an array of one task, as when a shard is run again
        run(script, environment | {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "1"})
    outside = subprocess.run(script, env=environment, capture_output=True, text=True, check=False)
    assert (outside.returncode != 0, "SLURM_ARRAY_TASK_ID" in outside.stderr) == (True, True)


def kubernetes(environment: dict[str, str]) -> None:
    (container,) = job_of_kubernetes()["spec"]["template"]["spec"]["containers"]
    assert {row["name"] for row in container["env"]} < set(environment)
    for index in ("0", "1"):
        run([*container["command"], *container["args"]], environment | {"JOB_COMPLETION_INDEX": index})


def parallel(environment: dict[str, str]) -> None:
    run(["sh", str(EXAMPLES / "score-parallel.sh")], environment | {"JOBS": "2"})


def xargs(environment: dict[str, str]) -> None:
    """Without GNU parallel."""
    programs = environment["PATH"].split(":")[0]
    for name in ("sh", "seq", "xargs"):
        (Path(programs) / name).symlink_to(str(shutil.which(name)))
    parallel(environment | {"PATH": programs})


RECIPES = [slurm, kubernetes, xargs, *([parallel] if shutil.which("parallel") else [])]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_one_run(
    tiny_release: Path, images: Path, tmp_path: Path, recipe: Callable[[dict[str, str]], None]
) -> None:
    listed = manifest(images, 300, f"{recipe.__name__}.parquet")
    recipe(variables(tmp_path, tiny_release, listed, shards=2))
    assert joined(tmp_path / "job") == one_run(tiny_release, listed, tmp_path / "one.parquet")


def test_an_indexed_job_of_kubernetes_has_as_many_indexes_as_shards() -> None:
    spec = job_of_kubernetes()["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    values = {row["name"]: row["value"] for row in container["env"]}
    assert (spec["completionMode"], str(spec["completions"])) == ("Indexed", values["SHARDS"])
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {volume["name"] for volume in spec["template"]["spec"]["volumes"]}
    for name in ("RELEASE", "IMAGES", "OUT"):
        assert values[name].startswith("/data/")
        assert "/data" in mounts


def test_every_line_of_the_recipes_is_a_command_with_its_options() -> None:
    """A renamed option would be seen on a cluster only."""
    score = typer.main.get_command(secondread).commands["score"]  # type: ignore[attr-defined]
    known = {name for parameter in score.params for name in parameter.opts}
    for path in sorted(EXAMPLES.glob("score*")):
        lines = [line for line in path.read_text().splitlines() if "secondread score " in line and "#" not in line[:3]]
        assert lines, path.name
        for line in lines:
            asked = set(re.findall(r"(--[a-z-]+)", line.partition("secondread score ")[2]))
            assert asked <= known, f"{path.name}: {line}"
