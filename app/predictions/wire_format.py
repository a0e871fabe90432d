"""Wire format of the Open Inference Protocol v2: JSON with tensors inline or as bytes after it."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

#: Names of a header: bytes of the JSON document, where tensors follow it.
HEADER_LENGTH = "inference-header-content-length"
#: The JSON document at most: Python takes many times the memory of its text. More numbers than that come as bytes.
MAX_JSON = 4 * 1024**2
_NUMBERS = {int, float, type(None)}
_KINDS = {"FP32": "<f4", "FP64": "<f8"}
_LENGTH = struct.Struct("<I")


class TensorError(ValueError):
    """Message that contradicts itself."""


@dataclass(frozen=True)
class InferenceMessage:
    """A message as it came."""

    document: dict[str, Any]
    # the bytes after it
    rest: memoryview


def document_size(body: bytes, header_length: str | None) -> int:
    """Bytes of a message's document."""
    if header_length is None:
        return len(body)
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise TensorError("Inference-Header-Content-Length must be the number of bytes of the JSON document")
    if int(header_length) > len(body):
        raise TensorError(f"Inference-Header-Content-Length says {int(header_length):,} bytes; there are {len(body):,}")
    return int(header_length)


def read_message(body: bytes, header_length: str | None) -> InferenceMessage:
    """Read the document of a message."""
    size = document_size(body, header_length)
    if size > MAX_JSON:
        raise TensorError(f"the JSON document is larger than {MAX_JSON // 1024**2} MiB; send tensors as binary data")
    try:
        document = json.loads(body[:size], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise TensorError("the JSON document cannot be read; NaN and infinity are not JSON") from exc
    if not isinstance(document, dict):
        raise TensorError("the JSON document must be an object")
    return InferenceMessage(document, memoryview(body)[size:])


def _refuse_constant(name: str) -> float:
    raise ValueError(name)


def read_object_list(document: Mapping[str, object], name: str) -> list[dict[str, Any]]:
    """The objects of a list in a document."""
    value = document.get(name)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TensorError(f"`{name}` must be a list of objects")
    return value


def parameters_of(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Parameters of a document, none where it has none."""
    value = document.get("parameters") or {}
    if not isinstance(value, dict):
        raise TensorError(f"`parameters` of {where} must be an object")
    return value


def binary_parts(message: InferenceMessage, name: str) -> list[memoryview | None]:
    """Bytes of each tensor of a list, None for those within the document."""
    parts: list[memoryview | None] = []
    left = message.rest
    for tensor in read_object_list(message.document, name):
        size = parameters_of(tensor, f"a tensor of `{name}`").get("binary_data_size")
        if size is None:
            parts.append(None)
            continue
        if type(size) is not int or not 0 <= size <= len(left):
            raise TensorError(f"`binary_data_size` of a tensor of `{name}` is not the number of bytes that came for it")
        parts.append(left[:size])
        left = left[size:]
    if len(left):
        raise TensorError(f"{len(left):,} bytes after the document belong to no tensor")
    return parts


def shape_of(tensor: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape that a tensor claims; nothing is made of that size."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or len(shape) > 8 or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise TensorError("`shape` must be a list of whole numbers")
    return tuple(shape)


def numbers_of(tensor: Mapping[str, Any], part: memoryview | None, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Numbers of a tensor whose shape was found good."""
    kind = _KINDS.get(str(tensor.get("datatype")))
    if kind is None:
        raise TensorError("`datatype` must be FP32 or FP64")
    count = math.prod(shape)
    if part is not None:
        if len(part) != count * np.dtype(kind).itemsize:
            raise TensorError(f"{len(part):,} bytes came for a tensor of {count:,} numbers ({tensor['datatype']})")
        return np.frombuffer(part, dtype=kind).reshape(shape)
    flat = _flatten_rows(tensor.get("data"), tuple(shape))
    if not all(type(value) in _NUMBERS for value in flat):
        raise TensorError("`data` must be numbers, row after row")
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=np.float64).astype(kind).reshape(shape)  # null becomes NaN
    except OverflowError as exc:
        raise TensorError("`data` has a number that is too large") from exc


def _flatten_rows(data: object, shape: tuple[int, ...]) -> list[Any]:
    """Elements of rows of rows, or of one flat list; lengths are compared before anything is made of them."""
    if not isinstance(data, list):
        raise TensorError("`data` must be numbers, row after row")
    if len(shape) > 1 and data and isinstance(data[0], list):
        if len(data) != shape[0]:
            raise TensorError(f"`data` has {len(data):,} rows, and the shape says {shape[0]:,}")
        return [value for row in data for value in _flatten_rows(row, shape[1:])]
    if len(data) != math.prod(shape):
        raise TensorError(f"`data` has {len(data):,} numbers, and the shape says {math.prod(shape):,}")
    return data


def texts_of(part: memoryview, count: int) -> list[bytes]:
    """Elements of a BYTES tensor in binary: each four bytes of length, little-endian, and its content."""
    elements: list[bytes] = []
    while len(part):
        size = _LENGTH.unpack(part[:4])[0] if len(part) >= _LENGTH.size else -1
        if not 0 <= size <= len(part) - _LENGTH.size or len(elements) == count:
            raise TensorError("the lengths within a BYTES tensor are not those of what came")
        elements.append(bytes(part[4 : 4 + size]))
        part = part[4 + size :]
    if len(elements) != count:
        raise TensorError(f"a BYTES tensor has {len(elements):,} elements, and its shape says {count:,}")
    return elements


@dataclass(frozen=True)
class OutputTensor:
    """A tensor to send."""

    # of the input or output
    name: str
    # FP32 or FP64, by their type
    values: npt.NDArray[Any]
    # whether it goes as bytes after the document
    binary: bool


def write_message(
    document: Mapping[str, object], name: str, tensors: Sequence[OutputTensor]
) -> tuple[bytes, int | None]:
    """A message with tensors; NaN, which JSON does not know, is null within the document."""
    described: list[dict[str, object]] = []
    parts: list[bytes] = []
    for tensor in tensors:
        kind = "FP64" if tensor.values.dtype == np.float64 else "FP32"
        entry: dict[str, object] = {"name": tensor.name, "shape": list(tensor.values.shape), "datatype": kind}
        if tensor.binary:
            parts.append(np.ascontiguousarray(tensor.values, dtype=_KINDS[kind]).tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            flat = tensor.values.ravel().tolist()
            entry["data"] = [value if math.isfinite(value) else None for value in flat]
        described.append(entry)
    head = json.dumps({**document, name: described}).encode()
    return (b"".join([head, *parts]), len(head)) if parts else (head, None)
