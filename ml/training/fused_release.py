"""``fused.onnx`` of a release whose calibration is new: its network as it was exported, the calibration behind it."""

import onnx
import onnx.compose
import torch

from ml.calibration.calibration import Calibration
from ml.calibration.summaries import N_SUMMARIES
from ml.release.artifact import Release
from ml.training.export import OPSET, to_onnx
from ml.training.fused import Calibrated, output_names


def fused_graph(release: Release, calibration: Calibration) -> bytes:
    """One graph from image to final probabilities.

    Args:
        release: whose network it is.
        calibration: with a concentration head.

    Raises:
        ValueError: an ensemble, a calibration without a head, or a network of another version of ONNX.
    """
    if release.head is not None or calibration.concentration is None:
        raise ValueError("only a release with a concentration head and without dropout has a fused graph: drop --fused")
    network = onnx.load(release.network)
    if [entry.version for entry in network.opset_import if entry.domain == ""] != [OPSET]:
        raise ValueError(f"{release.network}: not of ONNX's operators {OPSET}, so it cannot be fused: drop --fused")
    n_features = len(calibration.concentration.weight)
    n_features -= 0 if calibration.refinement.summaries is None else N_SUMMARIES
    example = {"logits": torch.zeros(2, len(release.classes)), "features": torch.zeros(2, n_features)}
    graph = to_onnx(Calibrated(calibration, len(release.classes)).eval(), example, output_names(calibration))
    behind = onnx.load_from_string(graph)
    behind = onnx.compose.add_prefix(behind, "calibration/", rename_inputs=False, rename_outputs=False)
    behind.ir_version = network.ir_version = max(behind.ir_version, network.ir_version)
    merged = onnx.compose.merge_models(network, behind, [(name, name) for name in example])
    return bytes(merged.SerializeToString(deterministic=True))
