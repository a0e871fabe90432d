"""An epoch on the device: the numbers of the plain recipe, not one question to the device, stops that lose nothing."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ml.datasets.base import ImageDataset
from ml.training import checkpoint
from ml.training.augmentation import Draws, augment, changed, draw, joined, shift
from ml.training.deadline import Deadline, OutOfTimeError
from ml.training.device_data import DeviceData
from ml.training.epoch_plan import EpochPlan
from ml.training.evaluation import validate
from ml.training.learner import Learner, StepReport
from ml.training.losses import count_weighted_nll
from ml.training.processes import ALONE, Processes
from ml.training.run_folder import RunFolder, TrainConfig
from ml.training.train import train
from tests.support.configs import quick_config
from tests.support.trains_together import small_cells

CPU = torch.device("cpu")
#: Operations by which a host learns what a device has computed, and so waits for it.
ASKING = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "unique_dim")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cells() -> ImageDataset:
    return small_cells("compact")


class NoQuestions(TorchDispatchMode):
    """Fails where a result of the device is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.overloadpacket.__name__ not in ASKING, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def test_questions_are_seen() -> None:
    numbers = torch.arange(3)
    for question in (lambda: int(numbers[0]), lambda: numbers.nonzero(), lambda: bool(numbers.sum() > 1)):
        with pytest.raises(AssertionError, match="waits for the device"), NoQuestions():
            question()


def _as_on_a_gpu(dataset: ImageDataset, config: TrainConfig) -> Learner:
    """A learner with all images on its device and an optimiser that counts there."""
    learner = Learner(DeviceData(dataset, CPU, resident=True), config)
    learner._adam = {"fused": True, "capturable": True}
    learner._set_adam(config.learning_rate)
    return learner


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("orientation", ["any", "upright", "fixed"])
def test_no_step_asks_the_device_anything(orientation: Any, precision: str, cells: ImageDataset) -> None:
    config = quick_config(shift=1, class_balance=0.5, precision=precision)
    learner = _as_on_a_gpu(replace(cells, orientation=orientation), config)
    steps = EpochPlan(learner.data, config, ALONE, cells.rows("train"), torch.Generator().manual_seed(1))
    for step in steps:
        with NoQuestions():
            learner._step(step)


class Questions(TorchDispatchMode):
    """Counts them."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ASKING
        return func(*args, **(kwargs or {}))


def test_an_epoch_asks_once_for_its_loss_and_validation_for_its_sums(cells: ImageDataset) -> None:
    learner = _as_on_a_gpu(cells, quick_config(shift=1))
    with Questions() as questions:
        learner.train_epoch(0, cells.rows("train"), lambda report: None)
    assert questions.count == 1
    with Questions() as questions:
        validate(learner.judged, learner.data, cells.rows("valid"))
    assert questions.count <= 1


def _by_hand(images: Tensor, turn: int) -> Tensor:
    turned = torch.rot90(images, turn % 4, (1, 2))
    return turned.flip(2) if turn >= 4 else turned


def test_turned_images_are_the_eight_symmetries(cells: ImageDataset) -> None:
    images, turn = torch.randn(16, 3, 6, 6), torch.arange(16) % 8
    for layout in (torch.contiguous_format, torch.channels_last):
        found = changed(images.contiguous(memory_format=layout), Draws(turn=turn))
        expected = torch.stack([_by_hand(image, int(k)) for image, k in zip(images, turn, strict=True)])
        assert torch.equal(found, expected)


@pytest.mark.parametrize("orientation", ["any", "upright", "fixed"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_drawn_for_an_epoch_is_what_its_batches_would_draw(orientation: Any, channels: int) -> None:
    images = torch.randn(21, channels, 8, 8)
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    plain = torch.cat([augment(shift(part, 1, one), orientation, one) for part in images.split(8)])
    draws = joined([draw(len(part), channels, orientation, 1, other) for part in images.split(8)])
    parts = [changed(part, draws.rows(8 * k, 8 * k + len(part)), 1) for k, part in enumerate(images.split(8))]
    assert torch.equal(torch.cat(parts), plain)


def _weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}


@pytest.mark.parametrize("augmentation", ["light", "wide"])
def test_images_on_the_device_train_to_the_same_weights(augmentation: str, cells: ImageDataset) -> None:
    found = []
    for resident in (False, True):
        learner = Learner(DeviceData(cells, CPU, resident=resident), quick_config(augmentation=augmentation, shift=1))
        losses = [learner.train_epoch(epoch, cells.rows("train"), lambda report: None) for epoch in range(2)]
        found.append((losses, _weights(learner), validate(learner.judged, learner.data, cells.rows("valid"))))
    assert found[0][0] == found[1][0]
    assert found[0][2] == found[1][2]
    assert all(torch.equal(tensor, found[1][1][name]) for name, tensor in found[0][1].items())


def test_a_plan_has_each_image_as_often_as_asked_and_parts_that_make_a_batch(cells: ImageDataset) -> None:
    order = np.random.default_rng(0).permutation(np.repeat(cells.rows("train")[:33], 2))
    config = quick_config(batch_size=13)
    data = DeviceData(cells, CPU)
    plans = [list(EpochPlan(data, config, Processes(rank, 3), order, torch.Generator())) for rank in range(3)]
    whole = list(EpochPlan(data, config, ALONE, order, torch.Generator()))
    assert [len(step.batch) for step in whole] == [13] * 5  # the last image would be alone
    np.testing.assert_array_equal(np.concatenate([step.batch for step in whole]), order[:65])
    for step, *parts in zip(whole, *plans, strict=True):
        np.testing.assert_array_equal(step.part, step.batch)
        np.testing.assert_array_equal(np.concatenate([part.part for part in parts]), step.batch)
        for part in parts:
            assert len(part.draws.turn) == len(part.part)


def test_the_loss_of_a_report_is_the_mean_so_far(cells: ImageDataset) -> None:
    learner = Learner(DeviceData(cells, CPU), quick_config())
    losses: list[float] = []
    result = learner.train_epoch(0, cells.rows("train"), lambda report: losses.append(report.loss))
    assert losses[-1] == result
    assert len(set(losses)) == len(losses)


def test_validation_is_the_mean_over_labels(cells: ImageDataset) -> None:
    learner = Learner(DeviceData(cells, CPU), quick_config())
    rows = cells.rows("valid")
    network = learner.judged.eval()
    with torch.inference_mode():
        logits, _ = network(learner.data.inputs(rows))
    loss = float(count_weighted_nll(logits, learner.data.counts(rows)))
    assert validate(network, learner.data, rows)["valid_loss"] == pytest.approx(loss, rel=1e-5)


def test_a_run_that_stops_at_its_deadline_goes_on_to_the_same_weights(cells: ImageDataset, tmp_path: Path) -> None:
    config = quick_config(epochs=4, weight_averaging=0.9)
    whole, stopped = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "stopped")
    train(cells, config, whole, device=CPU)
    deadline = Deadline(3600)

    def stop(report: StepReport) -> None:
        if (report.epoch, report.step) == (1, 2):  # in the middle: the epoch is finished all the same
            deadline.end()

    with pytest.raises(OutOfTimeError, match="after 2 of at most 4 epochs"):
        train(cells, config, stopped, device=CPU, observer=stop, deadline=deadline)
    assert not stopped.finished
    assert [row["epoch"] for row in stopped.read_metrics()] == [0, 1]
    with pytest.raises(OutOfTimeError, match="after 2 of"):
        train(cells, config, stopped, device=CPU, deadline=Deadline(0))
    train(cells, config, stopped, device=CPU, deadline=Deadline(3600))
    first, second = load_file(whole.network), load_file(stopped.network)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert [row["seconds"] > 0 for row in stopped.read_metrics()] == [True] * 4


def test_large_checkpoints_are_written_now_and_then_and_lose_nothing_but_time(
    cells: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "LARGE", 0)
    monkeypatch.setattr(checkpoint, "_AT_LEAST", 1e6)
    config = quick_config(epochs=4)
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(cells, config, whole, device=CPU)

    def kill(report: StepReport) -> None:
        if report.epoch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(cells, config, broken, device=CPU, observer=kill)
    assert len(broken.read_metrics()) == 1  # the first one, and no other since
    train(cells, config, broken, device=CPU)
    assert len(broken.read_metrics()) == 4
    first, second = load_file(whole.network), load_file(broken.network)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_run_goes_on_where_the_optimiser_worked_otherwise(cells: ImageDataset) -> None:
    """A checkpoint of a GPU has its rate as a tensor and one kernel for all weights; a CPU goes on with its own."""
    data, config = DeviceData(cells, CPU), quick_config()
    one, other = Learner(data, config), Learner(data, config)
    one.train_epoch(0, cells.rows("train"), lambda report: None)
    state = copy.deepcopy(one.state_dict())
    for group in state["optimiser"]["param_groups"]:
        group |= {"fused": True, "capturable": True, "lr": torch.tensor(group["lr"])}
    other.load_state_dict(state)
    assert other.optimiser.param_groups[0]["fused"] is None
    losses = [each.train_epoch(1, cells.rows("train"), lambda report: None) for each in (one, other)]
    assert losses[0] == losses[1]


@pytest.mark.gpu
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("resident", [True, False])
def test_a_gpu_is_asked_nothing_within_an_epoch(recorded: bool, resident: bool, cells: ImageDataset) -> None:
    """CUDA itself fails where anything waits for it."""
    data = DeviceData(cells, torch.device("cuda"), resident=resident)
    learner = Learner(data, quick_config(batch_size=8, precision="bf16"))
    if not recorded:
        learner._recorder = None
    learner.train_epoch(0, cells.rows("train"), lambda report: None)
    assert learner.recorded == (recorded and resident)
    plan = EpochPlan(data, learner.config, ALONE, cells.rows("train"), torch.Generator().manual_seed(1))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in plan:
            learner._trained(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_recorded_steps_train_as_others_do(cells: ImageDataset) -> None:
    losses = []
    for recorded in (True, False):
        learner = Learner(DeviceData(cells, torch.device("cuda")), quick_config(batch_size=8))
        if not recorded:
            learner._recorder = None
        losses.append([learner.train_epoch(epoch, cells.rows("train"), lambda report: None) for epoch in range(4)])
        assert learner.recorded == recorded
    # rounding grows from step to step, and dropout may draw otherwise
    np.testing.assert_allclose(losses[0], losses[1], rtol=0.2)
    assert max(loss[-1] for loss in losses) < min(loss[0] for loss in losses)


@pytest.mark.gpu
def test_a_run_on_a_gpu_stops_and_goes_on(cells: ImageDataset, tmp_path: Path) -> None:
    folder, deadline, cuda = RunFolder(tmp_path / "run"), Deadline(3600), torch.device("cuda")
    config = quick_config(epochs=4, batch_size=8)

    def stop(report: StepReport) -> None:
        if report.epoch == 1:
            deadline.end()

    with pytest.raises(OutOfTimeError):
        train(cells, config, folder, device=cuda, observer=stop, deadline=deadline)
    train(cells, config, folder, device=cuda)
    assert len(folder.read_metrics()) == 4
    assert all(np.isfinite(row["valid_loss"]) for row in folder.read_metrics())
