"""Static quantisation of a network's convolutions by ONNX Runtime.

Weights have eight bits and a scale per output channel, activations eight (0 to 255) and one scale. Convolutions are
nearly all of the work; the linear layers behind them, which make logits and features, stay in float32, so that neither
is rounded to 256 levels.

x86 processors without VNNI add two products in sixteen bits (``vpmaddubsw``) and clip what does not fit, such as
2 · 255 · 127. ``ml.release.device`` notices such a processor and has ONNX Runtime compute in a slower way that does not
clip, so that every sum of a convolution is exact everywhere. Weights of seven bits (−64 to 64) need that nowhere, since
2 · 255 · 64 = 32,640 fits: for whatever else runs the network on such processors.

Source: B. Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
CVPR 2018; ONNX Runtime, "Quantize ONNX models" (``reduce_range``, U8S8).
"""

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

from ml.release.artifact import ReleaseError

#: How far an activation's range goes: where the histogram in 128 levels diverges least from the finer one, to the
#: 99.999 % quantile, or to the ends.
Ranges = Literal["entropy", "percentile", "minmax"]
#: Bits of a weight, its sign included.
WeightBits = Literal[7, 8]
#: What is computed in whole numbers; activations and poolings between convolutions are of them.
_OPERATORS = ("Conv", "MaxPool", "Relu")
Images = npt.NDArray[np.float32]


@dataclass(frozen=True)
class QuantizedGraph:
    """A quantised network."""

    network: bytes  # the ONNX file; the same inputs and outputs as before
    n_layers: int  # convolutions with weights of eight bits


@dataclass
class _Once:
    """A reader, as ONNX Runtime calls it, that gives one batch."""

    batches: Iterator[Images]

    def get_next(self) -> dict[str, Images] | None:
        """The next batch by the name of its input, None after the last."""
        batch = next(self.batches, None)
        return None if batch is None else {"image": batch}


def quantize_graph(
    network: Path,
    batches: Iterable[Images],
    ranges: Ranges,
    weight_bits: WeightBits = 8,
    observer: Callable[[int], None] = lambda n: None,
) -> QuantizedGraph:
    """Quantise the convolutions of a network."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = _folded(network, folder / "folded.onnx")
        with redirect_stdout(io.StringIO()):  # ONNX Runtime tells how it goes on
            activation_ranges = _found_ranges(plain, batches, ranges, folder, observer)
            quantised = _quantised(plain, activation_ranges, weight_bits)
    n_layers = _whole_convolutions(quantised)
    if n_layers == 0:
        raise ReleaseError(f"{network}: has no convolution, so there is nothing to quantise")
    onnx.checker.check_model(quantised)
    return QuantizedGraph(bytes(quantised.SerializeToString(deterministic=True)), n_layers)


def _folded(network: Path, out: Path) -> Path:
    """The network with batch normalisations in the weights of their convolutions, as every run computes it anyway."""
    import onnxruntime  # after ml.release, which keeps it from telling its maker about models

    if any(node.op_type == "DequantizeLinear" for node in onnx.load(network).graph.node):
        raise ReleaseError(f"{network}: is quantised already")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(out)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
    return out


def _found_ranges(
    network: Path, batches: Iterable[Images], ranges: Ranges, folder: Path, observer: Callable[[int], None]
) -> Any:
    """Ranges of activations, by their names."""
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    methods = {
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
        "minmax": CalibrationMethod.MinMax,
    }
    augmented = str(folder / "augmented.onnx")
    calibrator = create_calibrator(
        network, list(_OPERATORS), augmented_model_path=augmented, calibrate_method=methods[ranges]
    )
    for batch in batches:  # one after the other: the calibrators keep every activation of what they are given at once
        calibrator.collect_data(_Once(iter([batch])))
        observer(len(batch))
    return calibrator.compute_data()


def _quantised(network: Path, found: Any, weight_bits: WeightBits) -> onnx.ModelProto:
    """The network with whole weights, and steps to whole numbers and back around what is computed in them."""
    from onnxruntime.quantization import QDQQuantizer, QuantType

    quantizer = QDQQuantizer(
        onnx.load(network),
        per_channel=True,
        reduce_range=weight_bits == 7,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=found,
        nodes_to_quantize=[],
        nodes_to_exclude=[],
        op_types_to_quantize=list(_OPERATORS),
        extra_options={},
    )
    quantizer.quantize_model()
    quantizer.model.topological_sort()
    model: onnx.ModelProto = quantizer.model.model
    model.ClearField("metadata_props")
    used = {node.domain for node in model.graph.node}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    return model


def _whole_convolutions(model: onnx.ModelProto) -> int:
    """Convolutions whose weights are whole numbers."""
    whole = {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    nodes = model.graph.node
    weights = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear" and node.input[0] in whole}
    return sum(node.op_type == "Conv" and node.input[1] in weights for node in nodes)
