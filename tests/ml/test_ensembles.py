"""Monte-Carlo dropout, augmented views, and one graph to the final probabilities."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import DisagreementMap, PiecewiseMap
from ml.calibration.scaling import Scaling
from ml.datasets.cells import simulate_cell
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, has_concentration
from ml.images.augmented_views import views
from ml.release.artifact import ReleaseError, read_release
from ml.release.dropout_head import DropoutHead
from ml.release.predictor import Predictor
from ml.release.score import predict_files
from ml.scoring.table import ScoreRequest, score_images
from ml.tables.files import read_predictions
from ml.training.calibrate import calibrate_run
from ml.training.export import check_head, export_run, to_onnx
from ml.training.fused import Fused
from ml.training.networks import build_network
from ml.training.release_checks import ParityError
from ml.training.run_folder import RunFolder
from tests.support.command import run_here
from tests.support.images import encode


@pytest.fixture
def cells() -> list[Image.Image]:
    return [Image.fromarray(simulate_cell(index, seed=5, size=48).pixels) for index in range(7)]


@pytest.mark.parametrize("name", ["compact", "cnn3", pytest.param("vgg16", marks=pytest.mark.slow)])
def test_the_numpy_head_is_the_networks_head(name: str) -> None:
    torch.manual_seed(0)
    channels, side = (1, 28) if name == "cnn3" else (3, 32)
    network = build_network(name, channels, 5).eval()
    layers = [(p, layer.weight.detach().numpy(), layer.bias.detach().numpy()) for p, layer in network.head_layers()]
    with torch.inference_mode():
        pooled = network.pooled(torch.randn(4, channels, side, side))
        logits, features = network.apply_head(pooled)
    head = DropoutHead.draw(layers, samples=9, seed=3)
    plain_logits, plain_features = head.without_dropout()(pooled.numpy())
    np.testing.assert_allclose(plain_logits[0], logits, atol=1e-5)
    np.testing.assert_allclose(plain_features[0], features, atol=1e-5)
    member_logits, member_features = head(pooled.numpy())
    assert member_logits.shape == (9, 4, 5)
    # one member by torch, with the same masks
    hidden = pooled
    for index, ((_, layer), drawn) in enumerate(zip(network.head_layers(), head.layers, strict=True)):
        if index == len(layers) - 1:
            np.testing.assert_allclose(member_features[2], hidden.detach().numpy(), atol=1e-5)
        hidden = layer(hidden * torch.from_numpy(drawn.mask[2]))
        hidden = torch.relu(hidden) if index < len(layers) - 1 else hidden
    np.testing.assert_allclose(member_logits[2], hidden.detach().numpy(), atol=1e-4)


def test_masks_follow_the_seed_and_drop_the_asked_share() -> None:
    weight, bias = np.ones((3, 2000), np.float32), np.zeros(3, np.float32)
    head, same, other = (DropoutHead.draw([(0.3, weight, bias)], samples=20, seed=s) for s in (1, 1, 2))
    assert head.to_bytes() == same.to_bytes()
    assert head.to_bytes() != other.to_bytes()
    assert (head.layers[0].mask == 0).mean() == pytest.approx(0.3, abs=0.01)
    assert head.layers[0].mask.max() == pytest.approx(1 / 0.7)
    back = DropoutHead.from_bytes(head.to_bytes())
    pooled = np.random.default_rng(0).normal(size=(2, 2000)).astype(np.float32)
    np.testing.assert_array_equal(back(pooled)[0], head(pooled)[0])


@pytest.mark.slow
def test_a_dropout_release_gives_a_mixture_that_does_not_depend_on_the_batch(
    dropout_release: Path, cells: list[Image.Image]
) -> None:
    predictor = Predictor(read_release(dropout_release))
    together = predictor.predict(cells).distribution
    assert isinstance(together, DirichletMixtureCpe)
    assert together.member_class_probs.shape == (6, 7, 8)
    alone = predictor.predict(cells[3:4]).distribution
    assert isinstance(alone, DirichletMixtureCpe)
    np.testing.assert_allclose(alone.member_class_probs[:, 0], together.member_class_probs[:, 3], atol=1e-5)
    assert np.ptp(together.member_class_probs, axis=0).max() > 0.01  # the members do differ
    assert "samples of the network's head" in (dropout_release / "README.md").read_text()


@pytest.mark.slow
def test_calibrating_without_dropout_again_removes_the_head(trained_run: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(trained_run, run.path)
    report = calibrate_run(run, method="none", alpha=False, mc_dropout=3, seed=1)
    assert (report["mc_dropout"], run.dropout_head.is_file()) == ({"samples": 3, "seed": 1}, True)
    release = export_run(run, tmp_path / "points")
    assert release.card["disagreement_calibrated"] is False
    image = Image.fromarray(simulate_cell(0, seed=5, size=48).pixels)
    assert isinstance(Predictor(release).predict([image]).distribution, EnsembleCpe)
    with pytest.raises(ValueError, match="fused"):
        export_run(run, tmp_path / "fused", fused=True)
    calibrate_run(run, method="none", alpha=False)
    assert not run.dropout_head.exists()


@pytest.mark.slow
def test_a_head_that_does_not_belong_is_refused(dropout_release: Path, tmp_path: Path) -> None:
    wrong = DropoutHead.draw([(0.3, np.ones((8, 128), np.float32), np.zeros(8, np.float32))], samples=2)
    files = {"network.onnx": (dropout_release / "network.onnx").read_bytes(), "head.safetensors": wrong.to_bytes()}
    with pytest.raises(ParityError, match="head"):
        check_head(files, np.random.default_rng(0).normal(size=(2, 3, 48, 48)).astype(np.float32))
    copy = tmp_path / "release"
    shutil.copytree(dropout_release, copy)
    (copy / "head.safetensors").write_bytes(wrong.to_bytes())
    with pytest.raises(ReleaseError, match="sha256"):
        read_release(copy)
    for broken in (b"", b"nonsense", b"\x00" * 20):
        with pytest.raises(ValueError, match="head"):
            DropoutHead.from_bytes(broken)


@pytest.mark.parametrize("orientation", ["any", "upright"])
def test_views_are_the_same_for_every_image_and_follow_the_seed(orientation: str) -> None:
    inputs = np.random.default_rng(0).normal(size=(3, 3, 16, 16)).astype(np.float32)
    seen = views(inputs, orientation, samples=10, seed=4)  # type: ignore[arg-type]
    assert seen.shape == (10, 3, 3, 16, 16)
    np.testing.assert_array_equal(seen[:, 1:2], views(inputs[1:2], orientation, samples=10, seed=4))  # type: ignore[arg-type]
    assert not np.array_equal(seen, views(inputs, orientation, samples=10, seed=5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="turned"):
        views(inputs, "fixed", samples=2)


def test_grey_cells_are_seen_in_each_of_the_eight_ways() -> None:
    inputs = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    seen = views(inputs, "any", samples=8)
    assert len({view.tobytes() for view in seen}) == 8
    for view in seen:
        np.testing.assert_array_equal(np.sort(view.ravel()), np.arange(16))


@pytest.mark.slow
def test_predict_and_score_with_augmented_views(small_release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(3):
        (folder / f"{index}.png").write_bytes(encode(simulate_cell(index, seed=5, size=48).pixels))
    paths = sorted(folder.iterdir())
    rows = predict_files(small_release, paths, tta=5, seed=2)
    assert rows == predict_files(small_release, paths, tta=5, seed=2)
    assert rows[0]["log_concentration"] is None
    assert rows[0]["disagreement_calibrated"] is True
    score_images(ScoreRequest(small_release, folder, tta=5, seed=2), tmp_path / "p.csv")
    table = read_predictions(tmp_path / "p.csv")
    np.testing.assert_allclose(table.class_probs[1], list(rows[1]["class_probs"].values()), atol=1e-6)
    np.testing.assert_allclose(table.disagreement_probs[1], rows[1]["disagreement_prob"], atol=1e-6)
    plain = predict_files(small_release, paths[:1])[0]
    assert plain["class_probs"] != rows[0]["class_probs"]


@pytest.mark.slow
def test_a_dropout_release_takes_no_augmented_views(dropout_release: Path, cells: list[Image.Image]) -> None:
    predictor = Predictor(read_release(dropout_release))
    assert has_concentration(predictor.predict(cells[:1]).distribution)
    with pytest.raises(ValueError, match="already"):
        predictor.predict_augmented(cells[:1], samples=4)


@pytest.mark.slow
def test_the_commands_make_and_use_an_ensemble(trained_run: Path, tmp_path: Path) -> None:
    run, release = tmp_path / "run", tmp_path / "release"
    shutil.copytree(trained_run, run)
    image = tmp_path / "cell.png"
    image.write_bytes(encode(simulate_cell(0, seed=5, size=48).pixels))
    for arguments in (
        ["calibrate", run, "--mc-dropout", "4"],
        ["export", run, "--out", release],
        ["predict", release, image, "--json"],
    ):
        done = run_here(*arguments)
        assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)
    assert row["log_concentration"] is None
    assert row["disagreement_calibrated"] is True
    refused = run_here("predict", release, image, "--tta", "3")
    assert refused.returncode == 1
    assert "already" in refused.stderr


K, D = 5, 6
BENT = DisagreementMap(0.5, 0.8, -1.5)
STEPPED = PiecewiseMap(np.array([-3.0, -1.0]), np.array([0.4, 0.7, 1.3]), -3.3)


class Slices(nn.Module):
    """Logits and features that are parts of the image, so that a test can choose them."""

    def __init__(self, n_classes: int = K) -> None:
        super().__init__()
        self.n_classes = n_classes

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        values = image.flatten(1)
        return values[:, : self.n_classes], values[:, self.n_classes :]


def outputs(n: int = 400) -> Any:
    """Images (n, 1, 1, K + D): logits from flat to nearly certain, features."""
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1, (n, K)) * rng.choice([0.3, 2.0, 8.0], n)[:, None]
    return np.concatenate([logits, rng.normal(0, 1, (n, D))], axis=1)[:, None, None].astype(np.float32)


def refined(mapped: Any) -> tuple[Calibration, Any, DirichletCpe]:
    """A calibration with everything that a refinement can have, images, and what it says of them."""
    images = outputs()
    logits, features = images[:, 0, 0, :K], images[:, 0, 0, K:]
    refinement = Refinement(Summaries.of(logits[:300]), np.array([0.2, -0.1, 0.1, 0.05]), mapped)
    head = ConcentrationHead(np.random.default_rng(1).normal(0, 0.5, D + 4), 0.5)
    calibration = Calibration(Scaling("temperature", 0.2), head, refinement=refinement)
    said = calibration.apply(logits, features)
    assert isinstance(said, DirichletCpe)
    return calibration, images, said


RUNTIMES = pytest.mark.parametrize("in_onnx", [False, pytest.param(True, marks=pytest.mark.slow)])


def assert_served(calibration: Calibration, n_classes: int, images: Any, *, in_onnx: bool, atol: float) -> None:
    """Compare what a fused graph gives, by torch or by ONNX Runtime, with what the calibration serves."""
    graph = Fused(Slices(n_classes), calibration, n_classes).eval()
    if in_onnx:
        names = ["class_probs", "log_concentration", "disagreement_prob"]
        session = onnxruntime.InferenceSession(to_onnx(graph, torch.from_numpy(images[:2]), names))
        probs, a, differ = session.run(names, {"image": images})
    else:
        with torch.inference_mode():
            probs, a, differ = (tensor.numpy() for tensor in graph(torch.from_numpy(images)))
    said: Any = calibration.apply(images[:, 0, 0, :n_classes], images[:, 0, 0, n_classes:])
    np.testing.assert_allclose(probs, said.class_probs, atol=atol)
    np.testing.assert_allclose(differ, said.disagreement_probs, atol=1e-5)
    np.testing.assert_allclose(a, said.log_concentration, atol=1e-3)


#: Disagreement made much more frequent, and nowhere less than some: most cases are flattened, some of them far.
RAISED = DisagreementMap(1.0, 1.0, 1.0)
FLOOR = PiecewiseMap(np.array([-3.0, -1.0, 0.0]), np.array([0.0, 0.5, 1.0, 1.0]), -2.0)


def unlike(n_classes: int, n: int = 50) -> Any:
    """Images (8 n, 1, 1, K + 1) whose leading logits are equal, almost, near or more than 70 apart; a ~ N(1.5, 1)."""
    rng = np.random.default_rng(n_classes)
    rows = [rng.normal(0, scale, (n, n_classes)) for scale in (0.3, 3.0, 30.0)]
    for spread in (0.0, 1e-4, 0.05, 1.0, 75.0):
        led = rng.normal(0, 0.3, (n, n_classes))
        led[:, :2] = 12 + rng.normal(0, 1, (n, 2)) * spread
        rows.append(led)
    logits = np.concatenate(rows)
    a = rng.normal(1.5, 1, (len(logits), 1))
    return np.concatenate([logits, a], axis=1)[:, None, None].astype(np.float32)


def flattening(method: Any, mapped: Any) -> Calibration:
    """A calibration whose log concentration is the one feature, and whose map flattens."""
    head = ConcentrationHead(np.array([1.0]), 0.0)
    return Calibration(Scaling(method, 0.4), head, refinement=Refinement(None, None, mapped))


@RUNTIMES
@pytest.mark.parametrize("mapped", [RAISED, FLOOR], ids=["raised", "floor"])
@pytest.mark.parametrize(("n_classes", "method"), [(2, "none"), (3, "temperature"), (8, "none")])
def test_whatever_the_leading_logits_the_graph_says_what_is_served(
    n_classes: int, mapped: Any, method: Any, in_onnx: bool
) -> None:
    """Also where two lead together, and a step by the slope alone would go past every solution.

    There f follows φ badly: between two leaders 1 − Σf² hardly tells one sharpness from another.
    """
    assert_served(flattening(method, mapped), n_classes, unlike(n_classes), in_onnx=in_onnx, atol=5e-5)


@RUNTIMES
@pytest.mark.parametrize("mapped", [BENT, STEPPED], ids=["beta", "piecewise"])
def test_float32_by_another_method_says_what_the_calibration_says(mapped: Any, in_onnx: bool) -> None:
    """Summaries, temperatures by case, a map put back: concentrations raised and lowered, probabilities flattened."""
    calibration, images, said = refined(mapped)
    bare = replace(calibration, refinement=replace(calibration.refinement, disagreement_map=None))
    before = bare.apply(images[:, 0, 0, :K], images[:, 0, 0, K:])
    assert isinstance(before, DirichletCpe)
    risen = said.log_concentration - before.log_concentration
    flattened = np.abs(said.class_probs - before.class_probs).max(axis=1) > 1e-3
    assert min((risen > 0.1).sum(), (risen < -0.1).sum(), flattened.sum()) > 10
    assert_served(calibration, K, images, in_onnx=in_onnx, atol=1e-5)
