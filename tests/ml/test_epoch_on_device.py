"""An epoch of a training: its batches, their augmentation, its losses, and checkpoints that lose nothing."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import gpu
from ml.datasets.base import ImageDataset
from ml.training import train as training
from ml.training.augmentation import augment
from ml.training.data import DeviceData
from ml.training.evaluation import validate
from ml.training.learner import Learner, StepReport, count_weighted_nll
from ml.training.run_folder import RunFolder
from ml.training.train import train
from tests.support.configs import quick_config
from tests.support.trains_together import small_cells

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cells() -> ImageDataset:
    return small_cells("compact")


def _by_hand(images: Tensor, turn: int) -> Tensor:
    turned = torch.rot90(images, turn % 4, (1, 2))
    return turned.flip(2) if turn >= 4 else turned


def test_turned_images_are_the_eight_symmetries() -> None:
    images = torch.randn(16, 1, 6, 6)
    turn = torch.randint(0, 8, (16,), generator=torch.Generator().manual_seed(3))
    expected = torch.stack([_by_hand(image, int(k)) for image, k in zip(images, turn, strict=True)])
    for layout in (torch.contiguous_format, torch.channels_last):
        found = augment(images.contiguous(memory_format=layout), "any", torch.Generator().manual_seed(3))
        assert torch.equal(found, expected)


def test_an_epoch_shows_each_image_as_often_as_asked_and_never_one_alone(cells: ImageDataset) -> None:
    learner = Learner(DeviceData(cells, CPU), quick_config(batch_size=13, passes=2))
    rows = cells.rows("train")[:33]
    batches = learner._batches(0, rows)
    assert [len(batch) for batch in batches] == [13] * 5  # the last image would be alone
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)[:33]), rows)
    assert np.unique(np.concatenate(batches)[33:]).size == 32


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


def test_large_checkpoints_are_written_now_and_then_and_lose_nothing_but_time(
    cells: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LARGE", 0)
    monkeypatch.setattr(training, "_AT_LEAST", 1e6)
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


@pytest.mark.gpu
def test_a_run_on_a_gpu_stops_and_goes_on(cells: ImageDataset, tmp_path: Path) -> None:
    folder, cuda = RunFolder(tmp_path / "run"), torch.device("cuda")
    config = quick_config(epochs=4, batch_size=8)

    def kill(report: StepReport) -> None:
        if report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(cells, config, folder, device=cuda, observer=kill)
    train(cells, config, folder, device=cuda)
    assert len(folder.read_metrics()) == 4
    assert all(np.isfinite(row["valid_loss"]) for row in folder.read_metrics())


def test_make_gpu_says_what_to_do_without_a_device_and_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.cuda.is_available():
        assert gpu.main([]) == 1
        said = capsys.readouterr().err
        assert said.startswith("no CUDA device can be used: ")
        assert "install" in said or "nvidia-smi" in said
    assert gpu.main(["--device", "cpu", "--cells", "240", "--images", "64"]) == 0
    assert "largest difference of logits: 0.0e+00" in capsys.readouterr().out
