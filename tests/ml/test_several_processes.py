"""Several processes train as one would: equal weights, resumed after a kill, and one line where one of them fails."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ml.charts.rows import EpochMetrics
from ml.release.card import processes_of
from ml.training import processes
from ml.training.calibrate import calibrate_run
from ml.training.export import export_run
from ml.training.learner import count_weighted_nll
from ml.training.networks import build_network
from ml.training.processes import ALONE, Processes, started_processes
from ml.training.run_folder import RunFolder
from tests.support.process import free_port
from tests.support.trains_together import train_together
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
#: Largest difference of a weight after 20 steps.
CLOSE = 1e-5
ENDED = "a process of this training ended before its time"
COMMAND = [sys.executable, "-c", "from app.cli.main import main; main()"]


def _start(count: int, command: Sequence[object]) -> "subprocess.Popen[str]":
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--no-python"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    whole, pipe = [*launcher, *map(str, command)], subprocess.PIPE
    return subprocess.Popen(whole, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def _torchrun(count: int, *command: object) -> "subprocess.CompletedProcess[str]":
    with _start(count, command) as launcher:
        out, err = launcher.communicate()
    return subprocess.CompletedProcess(command, launcher.returncode, out, err)


def _together(count: int, run: Path, changes: dict[str, Any], killed: list[int]) -> "subprocess.CompletedProcess[str]":
    module = [sys.executable, "-m", "tests.support.trains_together"]
    return _torchrun(count, *module, run, json.dumps(changes), json.dumps(killed))


def _differences(one: Path, other: Path) -> float:
    first, second = (load_file(RunFolder(path).network) for path in (one, other))
    assert first.keys() == second.keys()
    return max(float((first[name].double() - second[name].double()).abs().max()) for name in first)


def _alone(run: Path, changes: dict[str, Any]) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train_together(run, changes)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "changes"),
    [
        pytest.param(2, {"epochs": 4, "batch_size": 27}, id="an uneven rest"),
        pytest.param(
            3,
            {"epochs": 1, "batch_size": 2, "class_balance": 0.5, "weight_averaging": 0.9, "float64": True},
            id="fewer images than processes, class weights, averaged weights",
        ),
    ],
)
def test_several_processes_equal_one(tmp_path: Path, count: int, changes: dict[str, Any]) -> None:
    _alone(tmp_path / "one", changes)
    done = _together(count, tmp_path / "several", changes, [])
    assert done.returncode == 0, done.stderr
    rows = [RunFolder(tmp_path / name).read_metrics() for name in ("one", "several")]
    assert min(rows[0], key=lambda row: row["valid_loss"])["epoch"] == changes["epochs"] - 1  # kept after the last step
    assert [row["processes"] for row in rows[1]] == [count] * changes["epochs"]
    for name in ("train_loss", "valid_loss"):
        losses = [[float(row[name]) for row in each] for each in rows]  # type: ignore[literal-required]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    assert _differences(tmp_path / "one", tmp_path / "several") < CLOSE


@pytest.mark.slow
def test_others_go_on_where_killed_processes_stopped(tmp_path: Path) -> None:
    changes = {"epochs": 4, "batch_size": 27}
    _alone(tmp_path / "whole", changes)
    broken = tmp_path / "broken"
    ended = _together(2, broken, changes, [1])
    assert ended.returncode != 0
    assert "SIGKILL" in ended.stderr  # by torchrun, which may end the other process before that has noticed
    assert ended.stderr.count(ENDED) <= 1
    assert not RunFolder(broken).finished
    assert len(RunFolder(broken).read_metrics()) == 2
    done = _together(3, broken, changes, [])
    assert done.returncode == 0, done.stderr
    assert [row.get("processes") for row in RunFolder(broken).read_metrics()] == [2, 2, 3, 3]
    assert not RunFolder(broken).checkpoint.exists()
    assert _differences(tmp_path / "whole", broken) < CLOSE


@pytest.mark.slow
def test_a_killed_run_of_two_resumes_to_the_same_bits_and_its_card_says_two(tmp_path: Path) -> None:
    # batch normalisation, dropout and augmentation included
    changes = {"network": "compact", "epochs": 4, "batch_size": 27, "weight_averaging": 0.9}
    for name, attempts in (("whole", [[]]), ("broken", [[0, 1], []])):
        for killed in attempts:
            done = _together(2, tmp_path / name, changes, killed)
            assert (done.returncode == 0) == (not killed), done.stderr
    assert _differences(tmp_path / "whole", tmp_path / "broken") == 0.0
    run = RunFolder(tmp_path / "broken")
    calibrate_run(run, method="temperature", alpha=False)
    release = export_run(run, tmp_path / "release")
    assert release.card["processes"] == [{"processes": 2, "batch_norm": "per-process", "epochs": 4}]
    readme = (release.path / "README.md").read_text()
    assert "4 epochs by 2, with batch normalisation over each process's part of it" in readme


@pytest.mark.slow
def test_a_folder_of_another_run_is_refused_in_one_line(tmp_path: Path) -> None:
    _alone(tmp_path / "run", {"epochs": 1})
    done = _torchrun(2, *COMMAND, "train", "--data", "cells", "--cases", 240, "--out", tmp_path / "run")
    assert done.returncode == 1
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("secondread:")]
    assert len(said) == 1
    assert "contains a run with other settings" in said[0]


def _children(parent: int) -> set[int]:
    return {int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}


@pytest.mark.slow
def test_a_killed_torchrun_leaves_no_process_behind(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with _start(2, [sys.executable, "-m", "tests.support.trains_together", run, '{"epochs": 5000}', "[]"]) as launcher:
        wait_until(RunFolder(run).metrics.exists, 120)
        trainers = _children(launcher.pid)
        assert len(trainers) == 2
        launcher.kill()
        # they are nobody's children any more, and whoever adopts them may not collect them
        wait_until(lambda: not any(_is_training(pid) for pid in trainers), 30)
    assert not RunFolder(run).finished


def _is_training(pid: int) -> bool:
    try:
        return "trains_together" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_processes_with_different_settings_are_refused(tmp_path: Path) -> None:
    port = free_port()
    running = []
    for rank in range(2):  # as other launchers than torchrun start them
        network = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        network |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT)}
        command = [*COMMAND, "train", "--data", "cells", "--cases", "240", "--out", str(tmp_path / "run")]
        command += ["--epochs", str(1 + rank)]
        running.append(subprocess.Popen(command, env=os.environ | network, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [1, 1]
    said = [line for text in errors for line in text.splitlines() if line.startswith("secondread:")]
    assert said == ["secondread: process 1 of 2 has settings that differ from those of process 0"]
    assert not RunFolder(tmp_path / "run").network.exists()


@pytest.mark.parametrize(("size", "n_rows"), [(1, 5), (2, 27), (3, 7), (4, 3), (5, 2)])
def test_parts_are_the_batch_and_their_losses_add_up_to_its_loss(size: int, n_rows: int) -> None:
    rows = np.random.default_rng(n_rows).permutation(50)[:n_rows]
    parts = [Processes(rank, size).part(rows) for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert {len(part) for part in parts} <= {n_rows // size, n_rows // size + 1}
    assert len(parts[0]) > 0
    generator = torch.Generator().manual_seed(0)
    logits, counts = torch.randn(50, 3, generator=generator), torch.randint(0, 4, (50, 3), generator=generator)
    for weights in (None, torch.tensor([0.5, -1.0, 0.0])):
        whole = count_weighted_nll(logits[rows], counts[rows], weights)
        added = sum(count_weighted_nll(logits[part], counts[part], weights, counts[rows]) for part in parts)
        torch.testing.assert_close(torch.as_tensor(added), whole)


def test_each_process_draws_for_itself_and_the_first_as_one_alone() -> None:
    seeds = {Processes(rank, 64).seed(seed, epoch) for rank in range(64) for seed in range(5) for epoch in range(300)}
    assert len(seeds) == 64 * 5 * 300
    assert Processes(0, 64).seed(3, 7) == ALONE.seed(3, 7)


def test_batch_normalisation_is_recorded_where_several_processes_have_any() -> None:
    two = Processes(1, 2)
    compact, cnn3 = (build_network(name, 3, 4) for name in ("compact", "cnn3"))
    assert two.batch_norm_of(compact) == "per-process"
    assert (two.batch_norm_of(cnn3), ALONE.batch_norm_of(compact)) == (None, None)


def test_one_process_of_torchrun_is_a_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    with started_processes() as alone:
        assert alone is ALONE


def test_processes_that_cannot_find_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(ValueError, match="WORLD_SIZE announces several processes, but RANK, LOCAL_RANK"),
        started_processes(),
    ):
        pass


@pytest.mark.slow
@pytest.mark.ci
def test_a_process_that_never_came_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 2), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(processes, "_TIMEOUT", timedelta(seconds=1))
    with pytest.raises(ValueError, match=f"have not all met at 127.0.0.1:{port}"), started_processes():
        pass


def test_the_card_names_who_trained_which_epochs() -> None:
    def row(**more: Any) -> EpochMetrics:
        return {"epoch": 0, **more}  # type: ignore[typeddict-item]

    assert processes_of([row(), row()]) == []
    both: dict[str, Any] = {"processes": 2, "batch_norm": "per-process"}
    assert processes_of([row(**both), row(**both), row()]) == [
        {"processes": 2, "batch_norm": "per-process", "epochs": 2},
        {"processes": 1, "batch_norm": None, "epochs": 1},
    ]
