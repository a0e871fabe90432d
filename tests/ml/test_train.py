"""Training, export and releases: resumable, identical, verified."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from benchmarks import gpu
from ml.calibration.calibrators import Calibration
from ml.calibration.scaling import Scaling
from ml.datasets.base import ImageDataset
from ml.datasets.cells import load_cells, simulate_cells
from ml.distributions.families import DirichletCpe
from ml.images.preprocess import Preprocessing, fit_normalisation
from ml.images.standard_shifts import turned_hue
from ml.release import artifact
from ml.release.artifact import ReleaseError, read_release
from ml.release.predictor import Predictor
from ml.release.score import predict_files
from ml.training import train as training
from ml.training.augmentation import (
    DENSITY,
    _hue_matrix,
    augment,
    augment_stain_and_optics,
    blur_images,
    reframe_images,
    restain_images,
    shift,
)
from ml.training.calibrate import calibrate_run
from ml.training.data import DeviceData
from ml.training.evaluation import validate
from ml.training.export import check_parity, export_run, to_onnx
from ml.training.learner import Learner, StepReport, average_weights, count_weighted_nll
from ml.training.networks import NETWORK_NAMES, build_network
from ml.training.release_checks import ParityError
from ml.training.run_folder import RunFolder
from ml.training.train import train
from ml.util.files import read_json, write_json
from tests.support.configs import quick_config
from tests.support.sabotage import undone
from tests.support.trains_together import small_cells

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def cells() -> ImageDataset:
    return load_cells(240, seed=3)


class KilledError(Exception):
    """Stands for a kill in the middle of an epoch."""


def killed_in(epoch: int, step: int = 0) -> Callable[[StepReport], None]:
    """An observer that ends a training after a step of an epoch."""

    def kill(report: StepReport) -> None:
        if (report.epoch, report.step) >= (epoch, step):
            raise KilledError

    return kill


def assert_same_weights(one: RunFolder, other: RunFolder) -> None:
    first, second = load_file(one.network), load_file(other.network)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def _untimed(run: RunFolder) -> list[dict[str, Any]]:
    """Rows of the epochs without what the clock said."""
    timed = {"images_per_second", "seconds"}
    return [{name: value for name, value in row.items() if name not in timed} for row in run.read_metrics()]


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_weights(cells: ImageDataset, tmp_path: Path) -> None:
    config = quick_config(epochs=3, decay_epochs=(2,), weight_averaging=0.9, shift=1)
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(cells, config, whole, device=CPU)

    with pytest.raises(KilledError):
        train(cells, config, broken, device=CPU, observer=killed_in(2, 1))
    assert not broken.finished
    train(cells, config, broken, device=CPU)
    assert_same_weights(whole, broken)
    np.testing.assert_array_equal(whole.read_outputs().logits, broken.read_outputs().logits)
    assert _untimed(whole) == _untimed(broken)


def test_averaged_weights_follow_their_recurrence() -> None:
    network = build_network("compact", 3, 4)
    average = average_weights(network, 0.6)
    expected: dict[str, torch.Tensor] = {}
    for step in range(12):
        with torch.no_grad():
            for tensor in network.state_dict().values():
                tensor.copy_(torch.rand(tensor.shape) if tensor.is_floating_point() else torch.tensor(step))
        average.update_parameters(network)
        kept = min(0.6, (1 + step) / (10 + step)) if step else 0.0
        for name, tensor in network.state_dict().items():
            expected[name] = kept * expected.get(name, torch.zeros(())) + (1 - kept) * tensor
    for name, tensor in average.module.state_dict().items():
        if tensor.is_floating_point():  # the count of batches seen is a whole number, which nothing reads
            torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_what_is_judged_and_kept_is_the_average(cells: ImageDataset, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = quick_config(weight_averaging=0.9)
    best = train(cells, config, folder, device=CPU)
    outputs = folder.read_outputs().take(folder.read_outputs().partition == "valid")
    loss = count_weighted_nll(torch.from_numpy(outputs.logits), torch.from_numpy(outputs.label_counts))
    assert float(loss) == pytest.approx(best["valid_loss"], rel=1e-5)
    plain = RunFolder(tmp_path / "plain")
    train(cells, quick_config(), plain, device=CPU)
    # the steps are the same, what is kept of them is not
    assert [row["train_loss"] for row in folder.read_metrics()] == [row["train_loss"] for row in plain.read_metrics()]
    assert not torch.equal(load_file(folder.network)["head.weight"], load_file(plain.network)["head.weight"])


def test_a_run_folder_is_whole_and_belongs_to_one_config(
    cells: ImageDataset, trained_run: Path, tmp_path: Path
) -> None:
    names = {path.name for path in trained_run.iterdir()}
    assert {"config.json", "metrics.jsonl", "learning_curves.svg", "network.safetensors", "outputs.npz"} <= names
    assert "checkpoint.pt" not in names
    assert "<svg" in (trained_run / "learning_curves.svg").read_text()
    copy = tmp_path / "run"
    shutil.copytree(trained_run, copy)
    before = (copy / "network.safetensors").read_bytes()
    train(cells, quick_config(), RunFolder(copy), device=CPU)  # finished already: nothing to do
    assert (copy / "network.safetensors").read_bytes() == before
    with pytest.raises(ValueError, match=r"other settings \(epochs\)"):
        train(cells, quick_config(epochs=5), RunFolder(copy), device=CPU)


def test_training_and_serving_see_the_same_input(cells: ImageDataset) -> None:
    data = DeviceData(cells, CPU)
    rows = np.arange(5)
    served = np.stack([cells.preprocessing(Image.fromarray(cells.pixels[row])) for row in rows])
    np.testing.assert_allclose(data.inputs(rows).numpy(), served, atol=1e-6)


def test_loss_weighs_cases_by_their_labels() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    counts = torch.tensor([[3, 0], [0, 1]])
    logs = torch.log_softmax(logits, dim=1)
    assert count_weighted_nll(logits, counts).item() == pytest.approx(-(3 * logs[0, 0] + logs[1, 1]).item() / 4)
    assert count_weighted_nll(logits, torch.zeros(2, 2)).item() == 0


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", NETWORK_NAMES)
def test_networks_return_logits_and_features_and_gradients_reach_everything(name: str) -> None:
    torch.manual_seed(0)
    channels, side = (1, 28) if name == "cnn3" else (3, 32)
    network = build_network(name, channels, 5)
    logits, features = network(torch.randn(4, channels, side, side))
    assert logits.shape == (4, 5)
    assert features.shape == (4, network.head.in_features)
    logits.square().sum().backward()
    for parameter, tensor in network.named_parameters():
        assert tensor.grad is not None, parameter
    network.eval()
    logits, features = network(torch.randn(2, channels, side, side))
    torch.testing.assert_close(network.head(features), logits)


def test_unknown_networks_and_wrong_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown network"):
        build_network("huge", 3, 5)
    with pytest.raises(ValueError, match="RGB"):
        build_network("vgg16", 1, 5)
    with pytest.raises(ValueError, match="vgg16"):
        build_network("vgg16", 3, 5, {"features.0.weight": torch.zeros(1)})


def test_shifted_images_are_crops_of_the_image_with_its_edge_repeated() -> None:
    images = torch.rand((200, 3, 6, 5), generator=torch.Generator().manual_seed(0))
    moved = shift(images, 1, torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate")
    crops = torch.stack([padded[:, :, y : y + 6, x : x + 5] for y in range(3) for x in range(3)])
    same = (crops == moved).flatten(2).all(dim=2)
    assert (same.sum(dim=0) == 1).all()
    # all nine moves occur, about equally often: 200 / 9 each, with a standard deviation of 4.4
    assert ((same.sum(dim=1) > 5) & (same.sum(dim=1) < 40)).all()
    assert torch.equal(moved, shift(images, 1, torch.Generator().manual_seed(1)))
    assert shift(images, 0, torch.Generator()) is images


@pytest.mark.parametrize("orientation", ["any", "upright", "fixed"])
def test_augmentation_depends_on_the_generator_only(orientation: Any) -> None:
    images = torch.randn(16, 3, 24, 24)
    first, second, other = (augment(images, orientation, torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, second)
    assert torch.equal(first, images) == torch.equal(first, other) == (orientation == "fixed")


@pytest.mark.slow
def test_identical_inputs_give_identical_bytes(trained_run: Path, small_release: Path, tmp_path: Path) -> None:
    export_run(RunFolder(trained_run), tmp_path / "again", fused=True, name="small cells")
    for path in small_release.iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name
    content = (small_release / "network.onnx").read_bytes()
    for trace in (b"site-packages", b"/ml/networks.py", b"stack_trace"):
        assert trace not in content


def test_the_export_has_a_dynamic_batch_and_agrees_with_torch(trained_run: Path, small_release: Path) -> None:
    session = onnxruntime.InferenceSession(str(small_release / "network.onnx"))
    for batch in (1, 3, 17):
        logits, features = session.run(None, {"image": np.zeros((batch, 3, 48, 48), dtype=np.float32)})
        assert (logits.shape, features.shape) == ((batch, 8), (batch, 128))
    parity = json.loads((small_release / "card.json").read_text())["parity"]
    assert parity["max_probability_difference"] <= 1e-5
    assert parity["max_relative_logit_difference"] <= 1e-4


@pytest.mark.slow
def test_an_export_that_differs_is_refused(trained_run: Path) -> None:
    torch.manual_seed(1)
    network, other = (build_network("compact", 3, 8).eval() for _ in range(2))
    exported = to_onnx(other, torch.zeros(2, 3, 48, 48), ["logits", "features"])
    with pytest.raises(ParityError, match="differs"):
        check_parity(network, exported, np.random.default_rng(0).normal(size=(4, 3, 48, 48)).astype(np.float32))


def test_the_fused_graph_says_what_the_calibration_says(small_release: Path) -> None:
    predictor = Predictor(read_release(small_release))
    inputs = np.random.default_rng(0).normal(size=(6, 3, 48, 48)).astype(np.float32)
    expected = predictor.release.calibration.apply(*predictor.run(inputs))
    assert isinstance(expected, DirichletCpe)
    session = onnxruntime.InferenceSession(str(small_release / "fused.onnx"))
    probs, a, differ = session.run(["class_probs", "log_concentration", "disagreement_prob"], {"image": inputs})
    np.testing.assert_allclose(probs, expected.class_probs, atol=1e-5)
    np.testing.assert_allclose(a, expected.log_concentration, atol=1e-4)
    np.testing.assert_allclose(differ, expected.disagreement_probs, atol=1e-5)


@pytest.mark.parametrize(
    "method", [pytest.param("vector", marks=pytest.mark.heavy), pytest.param("matrix", marks=pytest.mark.slow)]
)
def test_the_fused_graph_holds_any_scaling(trained_run: Path, tmp_path: Path, method: Any) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(trained_run, run.path)
    rng = np.random.default_rng(0)
    weight = rng.normal(1, 0.3, 8) if method == "vector" else np.eye(8) + rng.normal(0, 0.1, (8, 8))
    calibration = Calibration(Scaling(method, 0.0, weight, rng.normal(size=8)), None, constant_disagreement=0.17)
    write_json(run.calibration, calibration.to_dict())
    predictor = Predictor(export_run(run, tmp_path / "release", fused=True))
    inputs = np.random.default_rng(0).normal(size=(6, 3, 48, 48)).astype(np.float32)
    expected = predictor.release.calibration.apply(*predictor.run(inputs))
    session = onnxruntime.InferenceSession(str(predictor.release.path / "fused.onnx"))
    probs, differ = session.run(["class_probs", "disagreement_prob"], {"image": inputs})
    np.testing.assert_allclose(probs, expected.class_probs, atol=1e-5)
    np.testing.assert_allclose(differ, np.full(6, 0.17), atol=1e-7)


@pytest.mark.slow
def test_one_label_a_case_gives_a_release_that_says_so(cells: ImageDataset, trained_run: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(trained_run, run.path)
    report = calibrate_run(run, method="temperature", alpha=False)
    assert report["disagreement_calibrated"] is False
    release = export_run(run, tmp_path / "release", fused=True)
    assert release.card["disagreement_calibrated"] is False
    assert "not calibrated" in (release.path / "README.md").read_text()
    outputs = onnxruntime.InferenceSession(str(release.path / "fused.onnx")).get_outputs()
    assert [output.name for output in outputs] == ["class_probs", "disagreement_prob"]


@pytest.mark.slow
def test_a_constant_goes_from_the_calibration_to_card_and_prediction(trained_run: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(trained_run, run.path)
    calibration = Calibration.from_dict(read_json(run.calibration))
    write_json(run.calibration, replace(calibration, constant_disagreement=0.2).to_dict())
    write_json(run.report, run.read_report() | {"disagreement": {"verdict": "worse", "constant": 0.2}})
    release = export_run(run, tmp_path / "release")
    assert release.card["disagreement"] == {"verdict": "worse", "constant": 0.2}
    assert "is 0.200 for every cell" in (release.path / "README.md").read_text()
    image = tmp_path / "cell.png"
    Image.fromarray(run.read_examples()[0]).save(image)
    (row,) = predict_files(release.path, [image])
    assert (row["disagreement_prob"], row["disagreement_constant"]) == (0.2, True)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@undone("T8", "a release with one changed bit is refused", artifact, "file_sha256", lambda _: ANY)
@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda r: _flip(r / "network.onnx"), "network.onnx: does not match"),
        (lambda r: _flip(r / "calibration.json"), "calibration.json"),
        (lambda r: (r / "network.onnx").unlink(), "network.onnx: missing"),
        (lambda r: (r / "extra.bin").write_bytes(b"x"), "extra.bin: not listed"),
        (lambda r: (r / "card.json").unlink(), "no card.json"),
        (lambda r: (r / "card.json").write_text("{"), "cannot be read"),
        (lambda r: (r / "card.json").write_text("[]"), "JSON object"),
    ],
)
def test_a_harmed_release_is_refused_by_name(harm: Any, words: str, small_release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(small_release, copy)
    harm(copy)
    with pytest.raises(ReleaseError, match=words):
        read_release(copy)


def test_a_link_in_a_release_is_refused(small_release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(small_release, copy)
    (copy / "network.onnx").unlink()
    (copy / "network.onnx").symlink_to(small_release / "network.onnx")
    with pytest.raises(ReleaseError, match="plain file"):
        read_release(copy)


def test_predictions_do_not_depend_on_the_company(small_release: Path, cells: ImageDataset) -> None:
    predictor = Predictor(read_release(small_release))
    images = [Image.fromarray(pixels) for pixels in cells.pixels[:70]]
    together = predictor.predict(images).distribution.class_probs
    alone = np.concatenate([predictor.predict([image]).distribution.class_probs for image in images[:5]])
    np.testing.assert_allclose(together[:5], alone, atol=1e-6)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def few_cells() -> ImageDataset:
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


def test_an_epoch_shows_each_image_as_often_as_asked_and_never_one_alone(few_cells: ImageDataset) -> None:
    learner = Learner(DeviceData(few_cells, CPU), quick_config(batch_size=13, passes=2))
    rows = few_cells.rows("train")[:33]
    batches = learner._batches(0, rows)
    assert [len(batch) for batch in batches] == [13] * 5  # the last image would be alone
    np.testing.assert_array_equal(np.sort(np.concatenate(batches)[:33]), rows)
    assert np.unique(np.concatenate(batches)[33:]).size == 32


def test_the_loss_of_a_report_is_the_mean_so_far(few_cells: ImageDataset) -> None:
    learner = Learner(DeviceData(few_cells, CPU), quick_config())
    losses: list[float] = []
    result = learner.train_epoch(0, few_cells.rows("train"), lambda report: losses.append(report.loss))
    assert losses[-1] == result
    assert len(set(losses)) == len(losses)


def test_validation_is_the_mean_over_labels(few_cells: ImageDataset) -> None:
    learner = Learner(DeviceData(few_cells, CPU), quick_config())
    rows = few_cells.rows("valid")
    network = learner.judged.eval()
    with torch.inference_mode():
        logits, _ = network(learner.data.inputs(rows))
    loss = float(count_weighted_nll(logits, learner.data.counts(rows)))
    assert validate(network, learner.data, rows)["valid_loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.slow
def test_large_checkpoints_are_written_now_and_then_and_lose_nothing_but_time(
    few_cells: ImageDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LARGE", 0)
    monkeypatch.setattr(training, "_AT_LEAST", 1e6)
    config = quick_config(epochs=4)
    whole, broken = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "broken")
    train(few_cells, config, whole, device=CPU)
    with pytest.raises(KilledError):
        train(few_cells, config, broken, device=CPU, observer=killed_in(3))
    assert len(broken.read_metrics()) == 1  # the first one, and no other since
    train(few_cells, config, broken, device=CPU)
    assert len(broken.read_metrics()) == 4
    assert_same_weights(whole, broken)


@pytest.mark.gpu
def test_a_run_on_a_gpu_stops_and_goes_on(few_cells: ImageDataset, tmp_path: Path) -> None:
    folder, cuda = RunFolder(tmp_path / "run"), torch.device("cuda")
    config = quick_config(epochs=4, batch_size=8)
    with pytest.raises(KilledError):
        train(few_cells, config, folder, device=cuda, observer=killed_in(2))
    train(few_cells, config, folder, device=cuda)
    assert len(folder.read_metrics()) == 4
    assert all(np.isfinite(row["valid_loss"]) for row in folder.read_metrics())


@pytest.mark.slow
def test_make_gpu_says_what_to_do_without_a_device_and_runs_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    if not torch.cuda.is_available():
        assert gpu.main([]) == 1
        said = capsys.readouterr().err
        assert said.startswith("no CUDA device can be used: ")
        assert "install" in said or "nvidia-smi" in said
    assert gpu.main(["--device", "cpu", "--cells", "240", "--images", "64"]) == 0
    assert "largest difference of logits: 0.0e+00" in capsys.readouterr().out


SIDE = 32
PIXELS = np.stack([cell.pixels for cell in simulate_cells(64, seed=8, size=SIDE)])
PREPROCESSING = Preprocessing(3, None, SIDE, *fit_normalisation(PIXELS))
IMAGES = torch.from_numpy(PREPROCESSING.normalise(PIXELS))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def light(images: Tensor) -> Tensor:
    """Pixels in [0, 1]."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (PREPROCESSING.mean, PREPROCESSING.std))
    return images * std + mean


@pytest.mark.parametrize("orientation", ["any", "upright", "fixed"])
def test_a_seed_gives_the_same_images_and_about_half_stay_as_they_are(orientation: str) -> None:
    before = IMAGES.clone()
    first, again = (augment_stain_and_optics(IMAGES, PREPROCESSING, orientation, seeded(3)) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(first, again)
    assert torch.equal(IMAGES, before)
    alone = (first == IMAGES).flatten(1).all(1).float().mean()
    steps = {"any": 3, "upright": 2, "fixed": 0}[orientation]
    assert alone == pytest.approx(0.5 + 0.5 * (1 / 3) ** steps, abs=0.2)
    assert torch.isfinite(first).all()


def test_of_those_that_vary_each_change_reaches_about_two_thirds() -> None:
    ways = (reframe_images, blur_images, lambda images, generator: restain_images(images, PREPROCESSING, generator))
    changed = [
        (way(IMAGES, seeded(seed)) != IMAGES).flatten(1).any(1).float().mean() for way in ways for seed in range(5)
    ]
    assert sum(changed) / len(changed) == pytest.approx(2 / 3, abs=0.06)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_last_batch_of_few_images_is_varied_too(count: int) -> None:
    few = [augment_stain_and_optics(IMAGES[:count], PREPROCESSING, "any", seeded(seed)) for seed in range(20)]
    assert {images.shape for images in few} == {IMAGES[:count].shape}
    assert {torch.equal(images, IMAGES[:count]) for images in few} == {False, True}


def test_grey_images_keep_their_stain() -> None:
    grey = Preprocessing(1, None, SIDE, PREPROCESSING.mean[:1], PREPROCESSING.std[:1])
    varied = augment_stain_and_optics(IMAGES[:, :1], grey, "any", seeded(1))
    assert varied.shape == IMAGES[:, :1].shape
    assert not torch.equal(varied, IMAGES[:, :1])


def test_blur_lowers_contrast_between_neighbours_and_keeps_the_mean() -> None:
    blurred = blur_images(IMAGES, seeded(2))
    changed = (blurred != IMAGES).flatten(1).any(1)
    rough, smooth = (images[changed].diff(dim=2).abs().mean((1, 2, 3)) for images in (IMAGES, blurred))
    assert (smooth <= rough + 1e-6).all()
    torch.testing.assert_close(blurred.mean((2, 3)), IMAGES.mean((2, 3)), atol=0.05, rtol=0)


def test_density_lies_within_its_bounds_and_nothing_leaves_the_range_of_pixels() -> None:
    varied = light(restain_images(IMAGES, PREPROCESSING, seeded(4)))
    assert varied.min() >= -1e-5
    assert varied.max() <= 1 + 1e-5
    ratio = (varied.clamp(1 / 256).log().mean((1, 2, 3)) / light(IMAGES).clamp(1 / 256).log().mean((1, 2, 3))).numpy()
    assert ratio.min() < 1 / 1.1
    assert ratio.max() > 1.1
    assert (np.abs(np.log(ratio)) < np.log(DENSITY) + 0.3).all()


def test_turns_of_the_hue_are_rotations_and_go_the_way_of_hsv() -> None:
    angles = torch.tensor([0.0, 0.3, 2 * torch.pi / 3])
    matrices = _hue_matrix(angles)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3).expand(3, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(matrices.sum(2), torch.ones(3, 3), atol=1e-6, rtol=0)  # grey stays grey
    red = matrices @ torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(red[2], torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    np.testing.assert_array_equal(turned_hue(np.array([[[255, 0, 0]]], dtype=np.uint8), 1 / 3)[0, 0], [0, 255, 0])


def test_framing_moves_and_scales_but_shows_the_cell() -> None:
    framed = reframe_images(IMAGES, seeded(5))
    assert 0.2 < (framed != IMAGES).flatten(1).any(1).float().mean() < 0.8
    middle = slice(SIDE // 4, 3 * SIDE // 4)
    before, after = (light(images)[:, :, middle, middle].mean() for images in (IMAGES, framed))
    assert after == pytest.approx(float(before), abs=0.05)


def test_a_word_that_means_no_augmentation_is_refused() -> None:
    with pytest.raises(ValueError, match="flips, light or wide"):
        quick_config(augmentation="x")
