"""VGG16 with batch normalisation in one cycle: its network, rates, resumption, and outputs that are passed on."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from ml.cli.shared import Pace
from ml.datasets.base import ImageDataset
from ml.reproduce.kept_outputs import Outputs, keep_outputs, read_kept_outputs
from ml.reproduce.report import Setting, reproduce
from ml.training import learner as learning
from ml.training.augmentation import flip
from ml.training.data import DeviceData
from ml.training.export import check_parity, to_onnx
from ml.training.learner import Learner, StepReport
from ml.training.networks import Network, build_network
from ml.training.run_folder import RunFolder
from ml.training.train import train
from tests.support.configs import quick_config
from tests.support.trains_together import small_cells

CPU = torch.device("cpu")
CYCLE = {"schedule": "one-cycle", "learning_rate": 0.1, "augmentation": "flips", "shift": 4}


@pytest.fixture(scope="module")
def few() -> ImageDataset:
    return small_cells("compact")


@pytest.fixture(scope="module")
def vgg() -> Network:
    torch.manual_seed(0)
    return build_network("vgg16-bn", 3, 10).eval()


def test_the_network_is_as_described(vgg: Network) -> None:
    convolutions = [layer for layer in vgg.backbone.modules() if isinstance(layer, nn.Conv2d)]
    widths = [64, 64, 128, 128, *[256] * 3, *[512] * 6]
    assert [layer.out_channels for layer in convolutions] == widths
    # weights, biases and batch normalisation, then the two layers of the head
    expected = sum(9 * a * b + 3 * b for a, b in pairwise([3, *widths])) + 513 * 128 + 129 * 10
    assert sum(parameter.numel() for parameter in vgg.parameters()) == expected == 14_790_090
    assert [rate for rate, _ in vgg.head_layers()] == [0.5, 0.5]
    images = torch.randn(3, 3, 32, 32)
    with torch.inference_mode():
        maps, (logits, features) = vgg.backbone(images), vgg(images)
        assert (maps.shape, logits.shape, features.shape) == ((3, 512, 2, 2), (3, 10), (3, 128))
        assert torch.equal(vgg.pooled(images), maps.amax(dim=(2, 3)))


@pytest.mark.slow
def test_the_network_is_exported_as_it_is(vgg: Network) -> None:
    exported = to_onnx(vgg, torch.zeros(2, 3, 32, 32), ["logits", "features"])
    check_parity(vgg, exported, np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32))


@pytest.mark.parametrize(("epochs", "steps"), [(24, 235), (3, 4), (30, 1)])
def test_rates_are_those_of_torch(epochs: int, steps: int) -> None:
    config = quick_config(epochs=epochs, **CYCLE)
    optimiser, total = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), epochs * steps
    reference = OneCycleLR(optimiser, 0.1, total_steps=total, pct_start=0.25, cycle_momentum=False)
    expected = reference.get_last_lr()
    while len(expected) < total:
        optimiser.step()
        reference.step()
        expected += reference.get_last_lr()
    rates = [config.rate(epoch, step, steps) for epoch in range(epochs) for step in range(steps)]
    np.testing.assert_allclose(rates, expected, rtol=1e-9)
    assert quick_config(epochs=4, **CYCLE).rate(0) == rates[0]  # the rise of one step


def test_steps_are_of_clipped_gradients_with_momentum_and_decay(
    few: ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "_GRADIENT_NORM", 1e-3)
    learner = Learner(DeviceData(few, CPU), quick_config(**CYCLE))
    learner.train_epoch(0, few.rows("train"), lambda report: None)
    (group,) = learner.optimiser.param_groups
    assert (group["momentum"], group["weight_decay"], group["nesterov"]) == (0.9, 5e-4, True)
    norm = torch.nn.utils.get_total_norm([p.grad for p in learner.network.parameters() if p.grad is not None])
    assert float(norm) == pytest.approx(1e-3, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_killed_cycle_goes_on_to_the_same_bytes(few: ImageDataset, tmp_path: Path, precision: str) -> None:
    config = quick_config(epochs=3, precision=precision, **CYCLE)
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(few, config, whole, device=CPU)

    def kill(report: StepReport) -> None:
        if (report.epoch, report.step) == (2, 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(few, config, broken, device=CPU, observer=kill)
    epochs: list[int] = []
    train(few, config, broken, device=CPU, observer=lambda report: epochs.append(report.epoch))
    assert set(epochs) == {2}
    assert whole.network.read_bytes() == broken.network.read_bytes()


@pytest.mark.slow
def test_the_network_learns_in_bf16(few: ImageDataset, tmp_path: Path) -> None:
    changes = {"network": "vgg16-bn", "epochs": 5, "batch_size": 16, "learning_rate": 0.02, "shift": 1}
    config = quick_config(precision="bf16", **(CYCLE | changes))
    train(few, config, RunFolder(tmp_path), device=CPU)
    losses = [row["train_loss"] for row in RunFolder(tmp_path).read_metrics()]
    assert losses[-1] < losses[0] - 0.1, losses


def test_flips_mirror_about_half_and_leave_fixed_images() -> None:
    images = torch.rand((200, 3, 5, 6), generator=torch.Generator().manual_seed(0))
    flipped = flip(images, "upright", torch.Generator().manual_seed(1))
    mirrored = (flipped == images.flip(3)).flatten(1).all(1)
    assert (mirrored | (flipped == images).flatten(1).all(1)).all()
    assert 70 < int(mirrored.sum()) < 130
    assert flip(images, "fixed", torch.Generator()) is images


def test_time_left_is_by_the_steps_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ml.cli.shared.time.monotonic", lambda: now[0])
    pace = Pace(60.0)
    due = []
    for done in range(41, 101):  # forty steps were an earlier process's
        now[0] += 10.0
        due.append(pace.line_is_due(done))
    assert sum(due) == 10
    assert str(pace.left(100, 460)) == "1:00:00"


@pytest.mark.heavy
@pytest.mark.usefixtures("datasets")
def test_tables_are_made_from_kept_outputs(tmp_path: Path) -> None:
    def losses(out: str, **changes: Any) -> dict[tuple[str, int], float]:
        document: dict[str, Any] = dict(reproduce(Setting("mix-cifar10", tmp_path / out, quick=True, **changes)))
        assert document["network"] == "vgg16-bn"
        return {(row["method"], row["labels"]): row["metrics"].get("L_D") for row in document["rows"]}

    before = losses("run", network="vgg16-bn")
    assert (tmp_path / "run" / "outputs-seed-0.npz").stat().st_size < 20_000_000
    after = losses("again", from_outputs=tmp_path / "run")
    assert after == pytest.approx(before, abs=0.01)
    single = [key for key in before if key[0].startswith("Raw")]
    assert [after[key] for key in single] == pytest.approx([before[key] for key in single], abs=5e-4)


def test_kept_outputs_are_half_precision_and_some_members(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "outputs.npz"
    raw = Outputs(rng.normal(size=(40, 4)).astype(np.float32), rng.normal(size=(40, 30)).astype(np.float32))
    several = Outputs(rng.normal(size=(14, 40, 4)).astype(np.float32), np.stack([raw.features] * 14))
    keep_outputs(path, {"Raw": raw, "TTA": several}, "compact")
    kept, network = read_kept_outputs(path, 40, 4)
    assert (network, list(kept)) == ("compact", ["Raw", "TTA"])
    np.testing.assert_allclose(kept["TTA"].logits, several.logits[:4], rtol=1e-3)
    np.testing.assert_allclose(kept["Raw"].features, raw.features, rtol=1e-3)
    np.testing.assert_array_equal(kept["TTA"].features[3], kept["Raw"].features)
    with pytest.raises(ValueError, match="Raw has outputs of 40 images; the data set has 41"):
        read_kept_outputs(path, 41, 4)
