"""What the graph of a release may not contain: other files, operators of other makers, work that nothing bounds."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from ml.release.artifact import ReleaseError

_STANDARD = {"", "ai.onnx"}
_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}


def require_plain_graph(file: Path) -> None:
    """Refuse a network that is more than a fixed sequence of standard operators on weights of its own.

    Args:
        file: ONNX file.

    Raises:
        ReleaseError: it is no ONNX file, or refers to another file, has operators of another domain, or loops.
    """
    try:
        model = onnx.load_model(file, load_external_data=False)
    except Exception as exc:  # the parser raises its own unrelated classes
        raise ReleaseError(f"{file}: not an ONNX file") from exc
    own = {(function.domain, function.name) for function in model.functions}
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        has_graph = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if node.op_type in _CONTROL_FLOW or has_graph:
            raise ReleaseError(f"{file}: contains {node.op_type}: a release may not loop or branch")
        if node.domain not in _STANDARD and (node.domain, node.op_type) not in own:
            raise ReleaseError(f"{file}: contains {node.op_type} of {node.domain}: only standard operators are run")
    if any(tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _tensors(model)):
        raise ReleaseError(f"{file}: keeps weights in another file; a release has them in the network's own")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values."""
    yield from model.graph.initializer
    yield from _parts(model.graph.sparse_initializer)
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        yield from _constants(node.attribute)
    for function in model.functions:
        yield from _constants(function.attribute_proto)


def _constants(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield attribute.t
        yield from attribute.tensors
        yield from _parts([attribute.sparse_tensor, *attribute.sparse_tensors])


def _parts(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices
