"""Steps for a GPU: resumed, skipped when done, said when they fail, and the same code on a CPU in tiny sizes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import gpu
from benchmarks.gpu_state import MORE_TO_DO, Document, Setting, State, Step, attempt, folder_of, read_state, write_state
from benchmarks.gpu_steps import STEPS as REAL
from benchmarks.gpu_steps import publish, write_results
from ml.training.deadline import Deadline
from ml.training.run_folder import RunFolder
from tests.support.gpu_steps import ENDLESS, STEPS

ROOT = Path(__file__).parents[1]
BY_NAME: dict[str, Step] = {step.name: step for step in STEPS}


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(torch.device("cpu"), tmp_path / "state", None, True, Deadline(3600))


def _call(setting: Setting, *more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--state", str(setting.state)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *more], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_step_that_is_done_keeps_its_results(setting: Setting) -> None:
    state = attempt(BY_NAME["good"], setting)
    assert (state.status, state.attempts, state.results) == ("done", 1, {"runs": 1})
    assert read_state(BY_NAME["good"], setting) == state
    assert gpu.run([BY_NAME["good"]], setting) == 0  # without a process: there is nothing to do
    assert read_state(BY_NAME["good"], setting) == state


def test_another_configuration_is_another_step(setting: Setting) -> None:
    attempt(BY_NAME["good"], setting)
    other = replace(BY_NAME["good"], configuration=lambda _: {"of": "other tests"})
    assert read_state(other, setting) == State()


def test_a_failure_is_one_line_and_its_place_a_file(setting: Setting) -> None:
    state = attempt(BY_NAME["bad"], setting)
    assert (state.status, state.reason) == ("failed", "ValueError: two and two are five")
    assert "in bad" in (folder_of(BY_NAME["bad"], setting) / "failure.txt").read_text()
    assert attempt(BY_NAME["bad"], setting).attempts == 2


def test_a_step_is_interrupted_at_its_deadline(setting: Setting) -> None:
    state = attempt(ENDLESS, replace(setting, deadline=Deadline(0.05)))
    assert (state.status, state.reason) == ("unfinished", "its time was up")
    assert attempt(ENDLESS, replace(setting, deadline=Deadline(0.05))).attempts == 2


@pytest.mark.parametrize("torn", [b"", b'{"status": "do', b"[]", b'{"another": 1}', b"\xff\xfe"])
def test_a_torn_state_is_one_that_has_not_begun(torn: bytes, setting: Setting) -> None:
    attempt(BY_NAME["good"], setting)
    (folder_of(BY_NAME["good"], setting) / "state.json").write_bytes(torn)
    state = read_state(BY_NAME["good"], setting)
    assert state.status == "not begun"
    assert "could not be read" in state.reason
    assert attempt(BY_NAME["good"], setting).results == {"runs": 2}


def test_a_step_for_which_no_time_is_left_is_left_to_the_next_call(
    setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.run([BY_NAME["long"]], setting) == MORE_TO_DO
    assert "left for the next call: long" in capsys.readouterr().out
    assert read_state(BY_NAME["long"], setting) == State()


def test_without_a_device_the_call_says_what_to_do_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert gpu.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("no CUDA device can be used: ")
    assert "install" in said or "nvidia-smi" in said
    assert gpu.main(["--list"]) == 1
    assert "mix-cifar10-training" in capsys.readouterr().out


def test_results_are_those_of_a_gpu(setting: Setting, tmp_path: Path) -> None:
    elsewhere = replace(setting, results=tmp_path / "results")
    with pytest.raises(ValueError, match="device cpu are not kept"):
        write_results("serving", {}, elsewhere)
    with pytest.raises(ValueError, match="device cpu are not kept"):
        publish("cifar10h", tmp_path, elsewhere)
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_what_fails_or_is_killed_stops_nothing_else_and_the_next_call_goes_on(setting: Setting) -> None:
    steps = ("--steps", "tests.support.gpu_steps")
    first = _call(setting, *steps)
    assert first.returncode == 1
    assert "failed: bad, killed" in first.stdout
    assert "left for the next call: killed, long" in first.stdout
    assert read_state(BY_NAME["killed"], setting).reason == "its process ended with status -9"
    second = _call(setting, *steps)
    assert second.returncode == 1
    assert "good: done before" in second.stdout
    states = {name: read_state(step, setting) for name, step in BY_NAME.items()}
    assert {name: state.status for name, state in states.items()} == {
        "bad": "failed",
        "killed": "done",
        "skipped": "skipped",
        "good": "done",
        "long": "not begun",
    }
    assert states["killed"].attempts == 2
    listed = _call(setting, *steps, "--list").stdout
    assert "its process" not in listed
    assert "ValueError: two and two are five" in listed


def _done(name: str, setting: Setting) -> Document:
    state = attempt(next(step for step in REAL if step.name == name), setting)
    assert state.status == "done", state.reason
    assert state.results is not None
    return state.results


@pytest.mark.slow
@pytest.mark.usefixtures("datasets")
def test_the_training_step_stops_and_goes_on_to_the_same_weights(setting: Setting, tmp_path: Path) -> None:
    other = replace(setting, state=tmp_path / "other", deadline=Deadline(0))
    (step,) = (step for step in REAL if step.name == "mix-cifar10-training")
    assert step.configuration(other) == step.configuration(setting)
    assert attempt(step, other).status == "unfinished"
    for each in (setting, replace(other, deadline=Deadline(3600))):
        results = _done("mix-cifar10-training", each)
        assert results["epochs"] == 2
        assert results["images_per_second"] > 0
    runs = [next(each.state.glob("reproductions/mix-cifar10-*/seed-0")) for each in (setting, other)]
    assert RunFolder(runs[0]).network.read_bytes() == RunFolder(runs[1]).network.read_bytes()


@pytest.mark.heavy
@pytest.mark.usefixtures("datasets")
def test_the_report_finds_the_network_that_was_trained(setting: Setting) -> None:
    _done("mix-cifar10-training", setting)
    (run,) = setting.state.glob("reproductions/mix-cifar10-*/seed-0")
    weights = RunFolder(run).network.read_bytes()
    _done("mix-cifar10", setting)
    assert RunFolder(run).network.read_bytes() == weights
    assert json.loads((run.parent / "mix-cifar10.json").read_text())["quick"] is True


@pytest.mark.heavy
@pytest.mark.usefixtures("datasets")
def test_human_labels_run_whole_on_a_cpu(setting: Setting) -> None:
    assert set(_done("cifar10h", setting)["training_seconds"]) == {"labels-1_seed-0", "labels-3_seed-0"}


@pytest.mark.slow
def test_the_step_of_tests_runs_tests(setting: Setting) -> None:
    assert _done("tests", setting)["passed"] > 0


@pytest.mark.slow
def test_serving_is_measured_beside_the_runtime_alone(setting: Setting) -> None:
    figures = _done("serving", setting)["figures"]
    assert figures["service"]["images_per_run"] == 1  # on a CPU one image at a time
    assert 0 < figures["service"]["of_raw"] < 1


@pytest.mark.heavy
def test_several_devices_train_together(setting: Setting) -> None:
    runs = _done("several-devices", setting)["runs"]
    assert runs["1"]["images"] == runs["2"]["images"]


def test_a_state_is_written_whole_or_not_at_all(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    write_state(BY_NAME["good"], setting, State("done", results={"runs": 1}))

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_state(BY_NAME["good"], setting, State("failed"))
    assert read_state(BY_NAME["good"], setting).status == "done"
