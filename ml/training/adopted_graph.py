"""ONNX graph of a classifier made elsewhere → ``network.onnx`` of a release.

Every name of the graph gets a prefix. New nodes lead from ``image`` to its
input, and from its output and a hidden tensor to ``logits`` and ``features``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnx.compose
from onnx import TensorProto, helper, numpy_helper

from ml.release.device import open_session
from ml.tables.logits import LEAST_PROBABILITY, Output
from ml.util.arrays import refuse_probabilities

Floats = npt.NDArray[np.float32]
_PREFIX = "source/"
#: Types that an image or an output may have.
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE}
_LINEAR = {"Gemm", "MatMul"}
#: Tensors that a message lists.
_LISTED = 8
_CHANNELS = (1, 3)
#: Since this version an initializer is no input.
_LEAST_IR = 4


class SourceError(ValueError):
    """A model that cannot be adopted; the message names the file, the place and what to do."""


@dataclass(frozen=True)
class SourceGraph:
    """A classifier as an ONNX graph with one image input."""

    name: str  # in messages
    model: Any

    @classmethod
    def read(cls, path: Path) -> "SourceGraph":
        """Read an ONNX file, with weights that lie in files next to it."""
        if not path.is_file():
            raise SourceError(f"{path}: no such file")
        try:
            model = onnx.load(path)
            onnx.checker.check_model(model)
        except Exception as exc:  # the parser raises its own unrelated classes
            raise SourceError(f"{path}: cannot be read as ONNX: {' '.join(str(exc).split())[:200]}") from exc
        return cls(str(path), model).checked()

    def checked(self) -> "SourceGraph":
        """Refuse a graph that does not map one image to one table of outputs."""
        inputs = [value for value in self.model.graph.input if value.name not in self._weights]
        if len(inputs) != 1:
            listed = ", ".join(value.name for value in inputs) or "none"
            raise SourceError(f"{self.name}: must have one input, the image, and has {len(inputs)} ({listed})")
        if len(self._dims(inputs[0])) != 4:
            raise SourceError(
                f"{self.name}: input {self.input.name!r} has shape {self._dims(inputs[0])}, and an image input has "
                "(N, channels, height, width): export the model with its image input, or adopt a TABLE of its outputs"
            )
        for value in (self.input, self.output):
            if value.type.tensor_type.elem_type not in _FLOATS:
                kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type)
                raise SourceError(
                    f"{self.name}: {value.name!r} is of {kind}, and must be of floating-point numbers: "
                    "export it so, or adopt a TABLE of its outputs"
                )
        return self

    @cached_property
    def _weights(self) -> set[str]:
        graph = self.model.graph
        return {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}

    @property
    def input(self) -> Any:
        """The image."""
        return next(value for value in self.model.graph.input if value.name not in self._weights)

    @property
    def output(self) -> Any:
        """The output of classes: the only one, or the one that is called logits."""
        outputs = list(self.model.graph.output)
        chosen = outputs if len(outputs) == 1 else [value for value in outputs if value.name == "logits"]
        if len(chosen) != 1:
            listed = ", ".join(value.name for value in outputs) or "none"
            raise SourceError(
                f"{self.name}: has {len(outputs)} outputs ({listed}): export it with one, or call the one with the "
                "classes 'logits'"
            )
        return chosen[0]

    @staticmethod
    def _dims(value: Any) -> tuple[int | str, ...]:
        shape = value.type.tensor_type.shape.dim
        return tuple(dim.dim_value or dim.dim_param or "?" for dim in shape)

    @property
    def channels_last(self) -> bool:
        """Whether the image is (N, H, W, C)."""
        dims = self._dims(self.input)
        return dims[3] in _CHANNELS and dims[1] not in _CHANNELS

    @property
    def image_shape(self) -> tuple[int | None, int | None]:
        """Channels and side of the image, None if any will do."""
        dims = self._dims(self.input)
        channels, height, width = (dims[3], *dims[1:3]) if self.channels_last else dims[1:]
        if isinstance(channels, int) and channels not in _CHANNELS:
            raise SourceError(f"{self.name}: reads {channels} channels; an image has 1 (grey) or 3 (RGB)")
        sides = {side for side in (height, width) if isinstance(side, int)}
        if len(sides) > 1:
            raise SourceError(f"{self.name}: reads images of {height} x {width} px, and only squares are supported")
        return channels if isinstance(channels, int) else None, next(iter(sides), None)

    def tensor(self, name: str | None) -> str:
        """The tensor with the features: by name, or the input of the last linear layer."""
        graph = self.model.graph
        names = [out for node in graph.node for out in node.output if out]
        if name is not None:
            if name not in names:
                last = ", ".join(names[-_LISTED:])
                raise SourceError(f"{self.name}: has no tensor {name!r} for --features; its last ones are {last}")
            return name
        if "features" in {value.name for value in graph.output}:
            return "features"
        needed, fixed = {self.output.name}, self._fixed()
        for node in reversed(graph.node):
            if needed.isdisjoint(node.output):
                continue
            varying = [name for name in node.input[:2] if name not in fixed]
            if node.op_type in _LINEAR and len(varying) == 1:
                return str(varying[0])
            needed.update(node.input)
        last = ", ".join(names[-_LISTED:])
        raise SourceError(f"{self.name}: has no linear layer, so name the features with --features; tensors: {last}")

    def _fixed(self) -> set[str]:
        """Tensors that do not depend on the image."""
        fixed = {"", *self._weights}
        for node in self.model.graph.node:
            if fixed.issuperset(node.input):
                fixed.update(node.output)
        return fixed

    def run(self, inputs: Floats) -> npt.NDArray[Any]:
        """Outputs of the graph as it was made, for network inputs (N, C, H, W)."""
        images = inputs.transpose(0, 2, 3, 1) if self.channels_last else inputs
        images = images.astype(helper.tensor_dtype_to_np_dtype(self.input.type.tensor_type.elem_type))
        batch = self._dims(self.input)[0]
        step = batch if isinstance(batch, int) else len(images)
        try:
            session = open_session(self.model.SerializeToString(), device="cpu", quiet=True)
            starts = range(0, len(images) - step + 1, step)
            parts = [session.run([self.output.name], {self.input.name: images[s : s + step]})[0] for s in starts]
            return np.concatenate(parts)
        except Exception as exc:  # the runtime raises its own unrelated classes
            raise self._cannot_run(inputs, exc) from exc

    def _cannot_run(self, inputs: Floats, exc: Exception) -> SourceError:
        return SourceError(
            f"{self.name}: cannot run on {len(inputs)} images of shape {inputs.shape[1:]}: check its input, and export "
            f"it with a dynamic batch ({' '.join(str(exc).split())[:200]})"
        )

    def for_release(self, features: str, inputs: Floats, *, log: bool) -> bytes:
        """``network.onnx`` with the features of a tensor, tried on network inputs (N, C, H, W)."""
        shape = inputs.shape[1:]
        try:
            session = open_session(self._extended(features, shape, log=log), device="cpu", quiet=True)
            logits, hidden = session.run(["logits", "features"], {"image": inputs})
        except Exception as exc:  # the runtime raises its own unrelated classes
            raise self._cannot_run(inputs, exc) from exc
        if hidden.ndim < 2 or len(hidden) != len(inputs) or hidden[0].size != hidden.shape[1]:
            raise SourceError(
                f"{self.name}: the features {features!r} have shape {hidden.shape}, and (N, D) is needed: name a "
                "tensor with a vector for each image with --features"
            )
        widths = logits.shape[1], hidden.shape[1]
        return plain_bytes(onnx.load_from_string(self._extended(features, shape, log=log, widths=widths)))

    def _extended(
        self, features: str, shape: tuple[int, ...], *, log: bool, widths: tuple[int, int] | None = None
    ) -> bytes:
        """The graph between ``image`` and ``logits`` and ``features``, whose widths (K, D) may be unknown."""
        source = onnx.compose.add_prefix(self.model, _PREFIX)
        graph, kind = source.graph, self.input.type.tensor_type.elem_type
        turn, axes = ("Transpose", {"perm": [0, 2, 3, 1]}) if self.channels_last else ("Identity", {})
        nodes = [helper.make_node("Cast", ["image"], ["pixels"], to=kind)]
        nodes.append(helper.make_node(turn, ["pixels"], [_PREFIX + self.input.name], **cast(Any, axes)))
        nodes += graph.node
        nodes.append(helper.make_node("Cast", [_PREFIX + self.output.name], ["classes"], to=TensorProto.FLOAT))
        if log:
            graph.initializer.append(numpy_helper.from_array(np.array(LEAST_PROBABILITY, dtype=np.float32), "least"))
            nodes.append(helper.make_node("Max", ["classes", "least"], ["positive"]))
        nodes.append(helper.make_node("Log" if log else "Identity", [nodes[-1].output[0]], ["logits"]))
        nodes.append(helper.make_node("Cast", [_PREFIX + features], ["hidden"], to=TensorProto.FLOAT))
        # of shape (N, D, 1, 1) only once it is known to have one
        flat = helper.make_node("Identity" if widths is None else "Flatten", ["hidden"], ["features"])
        for field in ("node", "input", "output", "value_info"):  # shapes inside may have a fixed batch
            graph.ClearField(field)
        graph.node.extend([*nodes, flat])
        graph.input.append(helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape]))
        for name, width in zip(("logits", "features"), widths or (None, None), strict=True):
            ends: list[str | int | None] | None = None if width is None else ["batch", width]
            graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ends))
        source.ir_version = max(source.ir_version, _LEAST_IR)
        return bytes(source.SerializeToString())


def judge_output(name: str, outputs: npt.NDArray[Any], classes: list[str], wanted: Output | None) -> Output:
    """Whether outputs (N, K) are logits or probabilities."""
    if outputs.ndim != 2:
        raise SourceError(f"{name}: its output has shape {outputs.shape}, and (N, K) is needed: a row for each image")
    if outputs.shape[1] == 1:
        raise SourceError(
            f"{name}: has one output, such as a sigmoid's: export it with one for each class, or adopt a table of "
            "prob:<class>"
        )
    if outputs.shape[1] != len(classes):
        raise SourceError(
            f"{name}: has {outputs.shape[1]} outputs for {len(classes)} classes ({', '.join(classes)}): give --classes "
            "with a name for each output, in their order"
        )
    if not np.isfinite(outputs).all():
        raise SourceError(f"{name}: some outputs are not finite: check the model and its --mean and --std")
    try:
        refuse_probabilities(outputs.astype(np.float64))
    except ValueError:
        return wanted or "probabilities"
    if wanted == "probabilities":
        raise SourceError(f"{name}: its outputs are not probabilities: rows must lie in [0, 1] and sum to 1")
    return "logits"


def run_network(
    name: str, network: bytes, batches: Iterable[Floats], case_ids: list[str], observer: Callable[[int, int], None]
) -> tuple[Floats, Floats]:
    """Logits (N, K) and features (N, D) of a release's network, all finite."""
    session, parts, done = open_session(network, device="cpu", quiet=True), [], 0
    for batch in batches:
        parts.append(session.run(["logits", "features"], {"image": batch}))
        done += len(batch)
        observer(done, len(case_ids))
    logits, features = (np.concatenate(column) for column in zip(*parts, strict=True))
    finite = np.isfinite(logits).all(axis=1) & np.isfinite(features).all(axis=1)
    if not finite.all():
        case = case_ids[int(np.argmin(finite))]
        raise SourceError(f"{name}: the output for case {case!r} is not finite, {int((~finite).sum())} in all")
    return logits, features


def plain_bytes(model: Any) -> bytes:
    """Checked model without traces of the machine that exported it."""
    # stack traces name files of that machine
    model.ClearField("metadata_props")
    for graph in [model.graph, *model.functions]:
        graph.ClearField("metadata_props")
        for node in graph.node:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
        for value in [*graph.value_info, *getattr(graph, "input", []), *getattr(graph, "output", [])]:
            if not isinstance(value, str):
                value.ClearField("metadata_props")
    for tensor in model.graph.initializer:
        tensor.ClearField("metadata_props")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
