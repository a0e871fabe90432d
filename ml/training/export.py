"""Stage 3: trained network + calibration → a release folder, after a parity check of ONNX against torch."""

import hashlib
import importlib
import importlib.util
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.compose
import torch
from torch import Tensor, nn

from ml.calibration.calibration import N_SUMMARIES
from ml.calibration.calibrators import Calibration
from ml.images.preprocess import Preprocessing
from ml.release.artifact import HEAD_FILE, Release, write_release
from ml.release.card import LIMITS_OF_USE, CardContents, ParityDocument, processes_of
from ml.release.device import open_session
from ml.release.dropout_head import DropoutHead
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.training.adopted_graph import SourceError, SourceGraph, plain_bytes
from ml.training.fused import Calibrated, Fused, output_names
from ml.training.networks import Network
from ml.training.release_checks import (
    LOGIT_TOLERANCE,
    ParityError,
    ShiftTrial,
    add_checks,
    compare_logits,
    try_shifts,
)
from ml.training.report import report_classes
from ml.training.run_folder import CalibrationReport, RunDocument, RunFolder
from ml.training.train import load_trained
from ml.util.files import read_json

OPSET = 18


class _Tapped(nn.Module):
    """Network with pooled vectors in place of the features."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        pooled = self.network.pooled(image)
        return self.network.apply_head(pooled)[0], pooled


def call_factory(source: str) -> nn.Module:
    """The torch module that a function in a Python file returns."""
    file, _, factory = source.rpartition(".py:")
    path = Path(file + ".py")
    if not path.is_file():
        raise SourceError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(f"adopted_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SourceError(f"{path}: is no Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))  # it may import its neighbours
    with suppress(ImportError):  # and torchvision, which then works next to torch for CPUs
        importlib.import_module("ml.util.torchvision_ops")
    try:
        spec.loader.exec_module(loaded)
        if not callable(getattr(loaded, factory, None)):
            raise SourceError(f"{path}: has no function {factory!r}: give it as {path.name}:FUNCTION")
        module = getattr(loaded, factory)()
    except SourceError:
        raise
    except Exception as exc:  # a file of the user raises anything
        raise SourceError(f"{source}: the factory failed: {type(exc).__name__}: {exc}") from exc
    finally:
        sys.path.remove(str(path.parent.absolute()))
    if not isinstance(module, nn.Module):
        raise SourceError(
            f"{source}: the factory must return a torch.nn.Module, and returned a {type(module).__name__}"
        )
    return module.eval()


class _Hooked(nn.Module):
    """A model made elsewhere, with what enters or leaves one of its layers as features."""

    def __init__(self, module: nn.Module, layer: nn.Module, *, entering: bool) -> None:
        super().__init__()
        # no attribute of tensors: the exporter takes these for state
        held: list[Tensor] = []
        self.module, self.last = module, held.pop
        if entering:
            layer.register_forward_pre_hook(lambda _layer, inputs: held.append(inputs[0]))
        else:
            layer.register_forward_hook(lambda _layer, _inputs, output: held.append(output))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        outputs: Tensor = self.module(image)
        return outputs, self.last()


def export_module(
    name: str, module: nn.Module, layer: str | None, shape: tuple[int, int, int]
) -> tuple[SourceGraph, str]:
    """Graph of a module, and where its features are: a layer's output, or what enters the last linear one."""
    example, layers, ran = torch.zeros(2, *shape), dict(module.named_modules()), list[str]()
    if layer is not None and layer not in layers:
        last = ", ".join(list(layers)[-8:])
        raise SourceError(f"{name}: has no layer {layer!r} for --features; its last ones are {last}")
    hooks = [
        part.register_forward_pre_hook(lambda _layer, _inputs, path=path: ran.append(path))
        for path, part in layers.items()
        if isinstance(part, nn.Linear)
    ]
    try:
        with torch.inference_mode():
            outputs = module(example)
    except Exception as exc:  # the model of a user raises anything
        raise SourceError(f"{name}: cannot run on images of shape {shape}: {exc}") from exc
    for hook in hooks:
        hook.remove()
    if not isinstance(outputs, Tensor) or outputs.ndim != 2:
        kind = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise SourceError(f"{name}: its output must be one tensor (N, K), and is {kind}: return the logits alone")
    if layer is None and not ran:
        raise SourceError(f"{name}: has no linear layer, so name the layer of the features with --features")
    path = layer or ran[-1]
    hooked = _Hooked(module, layers[path], entering=layer is None).eval()
    try:
        exported = onnx.load_from_string(to_onnx(hooked, example, ["logits", "features"]))
        return SourceGraph(name, exported).checked(), f"input of {path}" if layer is None else path
    except Exception as exc:  # so does the exporter
        raise SourceError(f"{name}: cannot be exported to ONNX: {' '.join(str(exc).split())[:200]}") from exc


def run_module(module: nn.Module, inputs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Outputs (N, K) of a classifier made elsewhere."""
    with torch.inference_mode():
        outputs: npt.NDArray[np.float32] = module(torch.from_numpy(inputs)).numpy()
    return outputs


def to_onnx(network: nn.Module, example: Tensor | dict[str, Tensor], outputs: list[str]) -> bytes:
    """Export to ONNX with a dynamic batch, without traces of the machine."""
    batch = torch.export.Dim("batch", min=1)
    inputs = example if isinstance(example, dict) else {"image": example}
    with warnings.catch_warnings():
        # torch's exporter calls what torch itself has deprecated
        warnings.filterwarnings("ignore", message=".*LeafSpec.*", category=FutureWarning)
        # and warns that the batches of several inputs are one
        warnings.filterwarnings("ignore", message=".*axis name: batch.*", category=UserWarning)
        program = torch.onnx.export(
            network,
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=outputs,
            opset_version=OPSET,
            dynamo=True,
            dynamic_shapes=tuple({0: batch} for _ in inputs),
            verbose=False,
        )
    if program is None:
        raise ParityError("torch.onnx.export returned nothing")
    return plain_bytes(program.model_proto)


def check_parity(network: nn.Module, onnx_bytes: bytes, inputs: npt.NDArray[np.float32]) -> ParityDocument:
    """Compare ONNX Runtime with torch."""
    with torch.inference_mode():
        expected = network(torch.from_numpy(inputs))[0].numpy()
    session = open_session(onnx_bytes, device="cpu")
    return compare_logits(expected, session.run(["logits"], {"image": inputs})[0])


def check_head(files: dict[str, bytes], inputs: npt.NDArray[np.float32]) -> None:
    """Check that the numpy head without dropout gives the network's own logits."""
    logits, pooled = open_session(files["network.onnx"], device="cpu").run(["logits", "features"], {"image": inputs})
    recomputed = DropoutHead.from_bytes(files[HEAD_FILE]).without_dropout()(pooled)[0][0]
    gap = float(np.abs(recomputed - logits).max() / np.abs(logits).max())
    if not gap <= LOGIT_TOLERANCE:
        raise ParityError(f"the dropout head differs from the network's by {gap:.2g} of the largest logit")


def export_run(
    folder: RunFolder, out: Path, *, fused: bool = False, name: str | None = None, shifts: ShiftTrial | None = None
) -> Release:
    """Write the release of a trained and calibrated run."""
    config = folder.read_config()
    if not folder.calibration.is_file():
        raise ValueError(f"{folder.path}: not calibrated yet; run `secondread calibrate` first")
    calibration = Calibration.from_dict(read_json(folder.calibration))
    report = folder.read_report()
    network = load_trained(folder)
    preprocessing = Preprocessing.from_dict(config["dataset"]["preprocessing"])
    inputs = preprocessing.normalise(folder.read_examples())
    example = torch.from_numpy(inputs[:2])
    served = _Tapped(network).eval() if folder.dropout_head.is_file() else network
    files = {"network.onnx": to_onnx(served, example, ["logits", "features"])}
    parity = check_parity(network, files["network.onnx"], inputs)
    if folder.dropout_head.is_file():
        files[HEAD_FILE] = folder.dropout_head.read_bytes()
        check_head(files, inputs)
        if fused:
            raise ValueError("a Monte-Carlo dropout release has no fused graph: drop --fused, or --mc-dropout before")
    if fused:
        whole = Fused(network, calibration, len(config["dataset"]["classes"])).eval()
        files["fused.onnx"] = to_onnx(whole, example, output_names(calibration))
    card = _card(name or folder.path.name, config, report, parity)
    together = processes_of(folder.read_metrics() if folder.metrics.is_file() else [])
    if together:
        card["processes"] = together
    card["reference"] = add_checks(folder, preprocessing, files)
    head_of = DropoutHead.from_bytes(files[HEAD_FILE]) if HEAD_FILE in files else None
    card["recall"], card["baseline"] = report_classes(folder, calibration, head_of)
    files[INDEX_FILE] = folder.training_index.read_bytes()
    card["training"] = TrainingIndex.read(folder.training_index).document()
    if shifts is not None:
        images = folder.read_held_out()
        counts = folder.read_outputs().label_counts[images.rows]
        card["shifts"] = try_shifts(images.pixels, counts, files, calibration, card, shifts)
    card["measured_network_sha256"] = hashlib.sha256(files["network.onnx"]).hexdigest()
    return write_release(out, files, calibration, card)


def _card(name: str, config: RunDocument, report: CalibrationReport, parity: ParityDocument) -> CardContents:
    data = config["dataset"]
    return {
        "name": name,
        "classes": data["classes"],
        "preprocessing": data["preprocessing"],
        "orientation": data["orientation"],
        "network": config["train"]["network"],
        "seed": config["train"]["seed"],
        "data": {
            "name": data["name"],
            "source": data["source"],
            "partitions": data["partitions"],
            "split_by": data["split_by"],
            "class_counts": data["class_counts"],
            "annotators": data["annotators"],
        },
        "licence": data["licence"],
        "calibration": report["fit"],
        "mc_dropout": report["mc_dropout"],
        "disagreement_calibrated": report["disagreement_calibrated"],
        "disagreement": report["disagreement"],
        "held_out": report["held_out"],
        "n_held_out": report["n_held_out"],
        "parity": parity,
        "parent": None,
        "versions": config["versions"],
        "limits_of_use": LIMITS_OF_USE,
    }


def fused_graph(release: Release, calibration: Calibration) -> bytes:
    """One graph from image to final probabilities."""
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
