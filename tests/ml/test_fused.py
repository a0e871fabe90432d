"""One graph to the final probabilities says what network and refined calibration say."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import DisagreementMap, PiecewiseMap
from ml.calibration.scaling import Scaling
from ml.calibration.summaries import Summaries
from ml.distributions.families import DirichletCpe
from ml.training.export import to_onnx
from ml.training.fused import Fused

K, D = 5, 6
BENT = DisagreementMap(0.5, 0.8, -1.5)
STEPPED = PiecewiseMap(np.array([-3.0, -1.0]), np.array([0.4, 0.7, 1.3]), -3.3)


class Slices(nn.Module):
    """Logits and features that are parts of the image, so that a test can choose them."""

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        values = image.flatten(1)
        return values[:, :K], values[:, K:]


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
