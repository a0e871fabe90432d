"""Safety checks of a release's ONNX graph: no external files, no custom operators, no unbounded work or text."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ml.release.artifact import ReleaseError

_STANDARD = {"", "ai.onnx"}
_CONTROL_FLOW = {"If", "Loop", "Scan", "SequenceMap"}
#: Bytes of all names and descriptions together.
_MAX_TEXT_BYTES = 4_000_000
#: Fields of bytes that are text.
_TEXT_FIELDS = {"s", "strings", "string_data"}


def require_plain_graph(file: Path) -> None:
    """Refuse a network that is more than a fixed sequence of standard operators on weights of its own."""
    try:
        model = onnx.load_model(file, load_external_data=False)
    except Exception as exc:  # the parser raises its own unrelated classes
        raise ReleaseError(f"{file}: not an ONNX file") from exc
    if (text := _count_text_bytes(model)) > _MAX_TEXT_BYTES:
        most = _MAX_TEXT_BYTES / 1e6
        raise ReleaseError(f"{file}: contains {text / 1e6:.1f} MB of text; a network has at most {most:.0f} MB")
    own = {(function.domain, function.name) for function in model.functions}
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        has_graph = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if node.op_type in _CONTROL_FLOW or has_graph:
            raise ReleaseError(f"{file}: contains {node.op_type}: a release may not loop or branch")
        if node.domain not in _STANDARD and (node.domain, node.op_type) not in own:
            raise ReleaseError(f"{file}: contains {node.op_type} of {node.domain}: only standard operators are run")
    if any(
        tensor.external_data or tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _iter_tensors(model)
    ):
        raise ReleaseError(f"{file}: keeps weights in another file; a release has them in the network's own")


def _count_text_bytes(message: Message) -> int:
    """Bytes of all strings in a message and in those that it contains."""
    total = 0
    for field, value in message.ListFields():
        values = [value] if isinstance(value, str | bytes | Message) else value
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            total += sum(map(_count_text_bytes, values))
        elif field.type == FieldDescriptor.TYPE_STRING or field.name in _TEXT_FIELDS:
            total += sum(map(len, values))
    return total


def _iter_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from model.graph.initializer
    yield from _iter_sparse_parts(model.graph.sparse_initializer)
    for node in [*model.graph.node, *(node for function in model.functions for node in function.node)]:
        yield from _iter_constants(node.attribute)
    for function in model.functions:
        yield from _iter_constants(function.attribute_proto)


def _iter_constants(attributes: Iterable[onnx.AttributeProto]) -> Iterator[onnx.TensorProto]:
    for attribute in attributes:
        yield attribute.t
        yield from attribute.tensors
        yield from _iter_sparse_parts([attribute.sparse_tensor, *attribute.sparse_tensors])


def _iter_sparse_parts(sparse: Iterable[onnx.SparseTensorProto]) -> Iterator[onnx.TensorProto]:
    for tensor in sparse:
        yield tensor.values
        yield tensor.indices
