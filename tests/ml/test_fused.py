"""One graph to the final probabilities says what network and refined calibration say."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import DisagreementMap, PiecewiseMap
from ml.calibration.scaling import Scaling
from ml.distributions.families import DirichletCpe
from ml.training.export import to_onnx
from ml.training.fused import Fused

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


def agree(results: Any, said: DirichletCpe) -> None:
    """Class probabilities, log concentration and disagreement probability of a graph are those said."""
    probs, a, differ = results
    np.testing.assert_allclose(probs, said.class_probs, atol=1e-5)
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


def says_the_same(results: Any, said: Any) -> None:
    """As ``agree``, where f follows φ badly: between two leaders 1 − Σf² hardly tells one sharpness from another."""
    probs, a, differ = results
    np.testing.assert_allclose(probs, said.class_probs, atol=5e-5)
    np.testing.assert_allclose(differ, said.disagreement_probs, atol=1e-5)
    np.testing.assert_allclose(a, said.log_concentration, atol=1e-3)


@pytest.mark.parametrize("mapped", [RAISED, FLOOR], ids=["raised", "floor"])
@pytest.mark.parametrize(("n_classes", "method"), [(2, "none"), (3, "temperature"), (8, "none")])
def test_whatever_the_leading_logits_the_graph_says_what_is_served(n_classes: int, mapped: Any, method: Any) -> None:
    """Also where two lead together, and a step by the slope alone would go past every solution."""
    images, calibration = unlike(n_classes), flattening(method, mapped)
    logits, features = images[:, 0, 0, :n_classes], images[:, 0, 0, n_classes:]
    with torch.inference_mode():
        results = Fused(Slices(n_classes), calibration, n_classes).eval()(torch.from_numpy(images))
    says_the_same([tensor.numpy() for tensor in results], calibration.apply(logits, features))


@pytest.mark.slow
@pytest.mark.parametrize(("n_classes", "mapped", "method"), [(3, RAISED, "none"), (8, FLOOR, "temperature")])
def test_onnx_runtime_says_so_too(n_classes: int, mapped: Any, method: Any) -> None:
    images, calibration = unlike(n_classes, 1000), flattening(method, mapped)
    names = ["class_probs", "log_concentration", "disagreement_prob"]
    graph = to_onnx(Fused(Slices(n_classes), calibration, n_classes).eval(), torch.from_numpy(images[:2]), names)
    said = calibration.apply(images[:, 0, 0, :n_classes], images[:, 0, 0, n_classes:])
    says_the_same(onnxruntime.InferenceSession(graph).run(names, {"image": images}), said)


MAPS = pytest.mark.parametrize("mapped", [BENT, STEPPED], ids=["beta", "piecewise"])


@MAPS
def test_float32_by_another_method_says_what_the_calibration_says(mapped: Any) -> None:
    """Summaries, temperatures by case, a map put back: concentrations raised and lowered, probabilities flattened."""
    calibration, images, said = refined(mapped)
    bare = replace(calibration, refinement=replace(calibration.refinement, disagreement_map=None))
    before = bare.apply(images[:, 0, 0, :K], images[:, 0, 0, K:])
    assert isinstance(before, DirichletCpe)
    risen = said.log_concentration - before.log_concentration
    flattened = np.abs(said.class_probs - before.class_probs).max(axis=1) > 1e-3
    assert min((risen > 0.1).sum(), (risen < -0.1).sum(), flattened.sum()) > 10
    with torch.inference_mode():
        results = Fused(Slices(), calibration, K).eval()(torch.from_numpy(images))
    agree([tensor.numpy() for tensor in results], said)


@pytest.mark.slow
@MAPS
def test_the_fused_graph_says_the_same_in_onnx_runtime(mapped: Any) -> None:
    calibration, images, said = refined(mapped)
    names = ["class_probs", "log_concentration", "disagreement_prob"]
    graph = to_onnx(Fused(Slices(), calibration, K).eval(), torch.from_numpy(images[:2]), names)
    agree(onnxruntime.InferenceSession(graph).run(names, {"image": images}), said)
