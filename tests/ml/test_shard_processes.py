"""Shards as processes: killed, racing, many at once, and the memory that they take."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from pyarrow import parquet

import app.demo
from ml.scoring.pool import run_missing
from ml.scoring.shards import ShardError, merge_job_shards, rows_of, score_shard
from ml.util.files import file_sha256
from tests.support.command import run_here
from tests.support.shards import joined, left_over, manifest, one_run, write_images, write_parts


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("shards") / "images")


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
    assert sorted(path.name for path in job.iterdir()) == [
        "job.json",
        *(f"shard-00001-of-00001.{what}" for what in ("errors.parquet", "json", "predictions.parquet")),
    ]
    assert joined(job) == one_run(tiny_release, listed, tmp_path / "one.parquet")


@pytest.mark.slow
def test_processes_run_the_missing_shards(tiny_release: Path, images: Path, tmp_path: Path) -> None:
    listed, job = manifest(images, 700, "local.csv"), tmp_path / "job"
    expected = one_run(tiny_release, listed, tmp_path / "one.parquet")
    score_shard(tiny_release, listed, job, (2, 4))
    there = file_sha256(job / "shard-00002-of-00004.json")
    seen = []
    run = run_missing(tiny_release, listed, job, "local", lambda done, total: seen.append((done, total)))
    assert (run.n_shards, run.n_run, run.n_predictions + run.n_errors) == (4, 3, 700)
    assert seen[-1][0] == seen[-1][1] == 700 - (rows_of(2, 4, 700)[1] - rows_of(2, 4, 700)[0])
    assert file_sha256(job / "shard-00002-of-00004.json") == there
    assert joined(job) == expected
    assert run_missing(tiny_release, listed, job).n_run == 0
    fresh = run_missing(tiny_release, listed, tmp_path / "fresh")
    assert fresh.n_run == fresh.n_shards == min(len(os.sched_getaffinity(0)), 11)
    assert joined(tmp_path / "fresh") == expected


@pytest.mark.slow
def test_a_convolutional_network_on_real_cells_is_one_run_too(tmp_path: Path) -> None:
    """Its rounding may depend on what is predicted beside an image, and on the number of threads."""
    cells = Path(app.demo.__file__).parent / "cells"
    expected = one_run(cells / "release", cells / "images", tmp_path / "one.parquet")
    for shard in (3, 1, 2):
        score_shard(cells / "release", cells / "images", tmp_path / "job", (shard, 3), threads=shard)
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
def test_memory_does_not_grow_with_the_list_of_which_a_shard_is_a_part(
    tiny_release: Path, images: Path, tmp_path: Path
) -> None:
    used = []
    for rows in (100_000, 1_000_000):
        listed = manifest(images, rows, f"list {rows}.csv")
        options = ("--images", listed, "--out", tmp_path / f"job {rows}", "--shard", "900/1000")
        used.append(peak_memory("score", tiny_release, *options))
    assert used[1] < 1.2 * used[0], used


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
    assert json.loads(done.stdout) == {
        "n_cases": 147,
        "predictions": str(tmp_path / "p.csv"),
        "n_errors": 3,
        "errors": str(tmp_path / "p.errors.csv"),
    }
    assert "shard 1 of 2: " in run_here(*score, job, "--shard", "1/2").stdout
    assert "1 of 2 shard is missing: 2" in run_here("score-finish", job).stderr
    run_here(*score, job, "--shard", "2/2")
    finished = json.loads(run_here("score-finish", job, "--json").stdout)
    assert (finished["n_shards"], finished["n_cases"], finished["n_errors"]) == (2, 147, 3)
    assert sum(finished["reasons"].values()) == 3
    assert "3 images could not be read (" in run_here("score-finish", job).stdout
    for shard, words in (("0/2", "from 1/2 to 2/2"), ("3/2", "from 1/2"), ("2", "say i/n"), ("a/2", "say i/n")):
        refused = run_here(*score, job, "--shard", shard)
        assert (refused.returncode, words in refused.stderr) == (1, True), refused.stderr
    assert "a folder is written" in run_here(*score, tmp_path / "x.csv", "--shard", "1/2").stderr
    assert "leave one of them out" in run_here(*score, job, "--shard", "1/2", "--engine", "local").stderr
