"""Adoption: a model made elsewhere, calibrated on labelled cells and written as a release.

A table of outputs needs neither torch nor onnx, and an ONNX file needs no torch.
"""

import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.optimize import linear_sum_assignment

from ml.calibration.calibrators import Calibration, FitDocument, Level
from ml.calibration.optimise import FitError
from ml.calibration.scaling import METHODS, Method
from ml.datasets.base import ClassInfo, ImageDataset
from ml.datasets.folder import load_folder
from ml.images.image_quality_features import compute_quality_features
from ml.images.pixel_cache import decode_files, ignore_progress
from ml.images.preprocess import Pixels, Preprocessing, encode_png
from ml.messages import messages
from ml.metrics.jackknife import EstimateDocument
from ml.release.artifact import FAMILIARITY_FILE, require_empty, write_release
from ml.release.card import (
    LIMITS_OF_USE,
    AdoptedDocument,
    CardContents,
    DisagreementDocument,
    ParityDocument,
    ReferenceDocument,
)
from ml.release.predictor import BATCH
from ml.release.score import listed_images
from ml.release.training_index import INDEX_FILE, TrainingDocument, TrainingIndex
from ml.tables.files import case_column, check_labels
from ml.tables.logits import Output, log_probabilities, read_outputs
from ml.tables.reading import TableError, TableSource, open_table, table_kind
from ml.training.calibrate import calibration_steps, fit_and_judge, held_out_metrics
from ml.training.release_checks import compare_logits, stain_and_labels, with_checks
from ml.training.report import class_recalls
from ml.training.run_folder import CachedOutputs
from ml.util.arrays import IntArray
from ml.util.files import file_sha256, write_bytes_atomically, write_json
from ml.util.splits import stratified_partitions

Kind = Literal["onnx", "module", "table"]
Floats = npt.NDArray[np.float32]
Observer = Callable[[int, int], None]
#: Images on which the network is compared with its source, and how many a picture shows.
_COMPARED, _SHOWN = 64, 3
#: Side of a shown image in px, at least.
_SHOWN_SIDE = 160
#: Cells that calibrate without a warning.
_FEW = 30
#: Standard errors by which another order of the classes must be better, and pairs that a message lists.
_BETTER_ORDER, _LISTED = 3.0, 8

ADOPTED_LIMITS = messages(
    (
        "The network was made elsewhere: what it was trained on is not checked.",
        "Valid for images like those it was calibrated on: same stain, microscope, camera, magnification and framing.",
    )
)


class PreprocessingSteps(TypedDict, total=False):
    """A ``Preprocessing`` as far as it is known, as JSON values."""

    channels: int
    crop: int | None
    size: int
    mean: Sequence[float]
    std: Sequence[float]
    version: int


class JudgedDocument(TypedDict):
    """How a calibration was chosen, and its metrics by step on held-out cells."""

    fit: FitDocument
    n_calibration: int
    n_held_out: int
    held_out: dict[str, dict[str, EstimateDocument]]
    disagreement: DisagreementDocument | None
    constant_concentration: bool
    warnings: list[str]


class AdoptReport(JudgedDocument):
    """Result of an adoption, as ``secondread adopt --json`` prints it."""

    release: str
    card_sha256: str
    adopted: AdoptedDocument
    parity: ParityDocument | None
    # three images as the network sees them; None of a table
    picture: str | None


@dataclass(frozen=True)
class Cells:
    """Labelled cells, sorted by case id."""

    source: str  # the file or folder of the labels
    case_ids: list[str]
    label_counts: IntArray
    classes: tuple[ClassInfo, ...]
    patients: list[str] | None
    partition: npt.NDArray[np.str_] | None  # as the labels have it
    annotators: tuple[str, ...] | None
    pixels: Pixels | None = None
    digests: list[bytes] | None = None

    @classmethod
    def read(cls, labels: TableSource, classes: Sequence[str] | None, cluster: str | None) -> "Cells":
        """Cells of a LABELS table."""
        table, place = open_table(labels, "LABELS")
        given = check_labels(table, place, classes)
        infos = tuple(_info(code) for code in given.classes)
        patients = partition = None
        if cluster is not None or "patient" in given.columns:
            patients = [str(name) for name in case_column(given, cluster or "patient", place)]
        if "partition" in given.columns:
            partition = case_column(given, "partition", place).astype(str)
        cases = str(place), list(given.case_ids), given.counts(), infos, patients, partition
        return cls(*cases, given.annotators or None)

    @classmethod
    def of_dataset(cls, data: ImageDataset, source: str) -> "Cells":
        """Cells of a folder."""
        partition = data.partition if data.partition_given else None
        cases = source, data.case_ids, data.label_counts, data.classes, data.patients, partition
        return cls(*cases, data.annotators, data.pixels, data.digests())

    def take(self, rows: npt.NDArray[np.intp]) -> "Cells":
        """Some of the cells."""
        arrays = {name: values[rows] for name, values in vars(self).items() if isinstance(values, np.ndarray)}
        lists = {name: [values[row] for row in rows] for name, values in vars(self).items() if isinstance(values, list)}
        return replace(self, **cast(Any, arrays), **cast(Any, lists))

    def in_classes(self, codes: Sequence[str]) -> "Cells":
        """Label counts in the order of the model's classes."""
        own = [info.code for info in self.classes]
        unknown = [code for code in own if code not in codes]
        if unknown:
            raise TableError(
                f"{self.source}: class {unknown[0]!r} is none of the model's ({', '.join(codes)}): correct the labels "
                "or --classes"
            )
        counts = np.zeros((len(self.case_ids), len(codes)), dtype=np.int64)
        counts[:, [list(codes).index(code) for code in own]] = self.label_counts
        infos = tuple(self.classes[own.index(code)] if code in own else _info(code) for code in codes)
        return replace(self, label_counts=counts, classes=infos)

    @property
    def groups(self) -> list[str]:
        """Patient, else picture, else case: what no split divides."""
        if self.patients is not None:
            return self.patients
        return self.case_ids if self.digests is None else [digest.hex() for digest in self.digests]

    def split(self, held_out: float | None, seed: int) -> tuple["Cells", npt.NDArray[np.str_]]:
        """Labelled cells by case id, and whether each calibrates or is held out (test); without a share as given."""
        kept = self.label_counts.sum(axis=1) > 0
        if self.partition is not None:
            kept &= self.partition != "train"
        order = np.argsort(np.array(self.case_ids), kind="stable")
        cells = self.take(order[kept[order]])
        if not cells.case_ids:
            raise TableError(f"{self.source}: no cell has a label outside the partition 'train'")
        groups, in_test = np.array(cells.groups), np.array(cells.partition) == "test"
        if held_out is None and in_test.any() and not in_test.all():
            partition = np.where(in_test, "test", "calibration")
            torn = np.intersect1d(groups[in_test], groups[~in_test])
            if torn.size:
                raise TableError(
                    f"{self.source}: cells of {str(torn[0])!r} are in the partition 'test' and outside it, {torn.size} "
                    "such in all: correct the column partition, or split the cells again with --held-out"
                )
        else:
            share = 0.5 if held_out is None else held_out
            shares = {"calibration": 1 - share, "test": share}
            partition = stratified_partitions(cells.groups, cells.label_counts, shares, seed)
        if min((partition == name).sum() for name in ("calibration", "test")) < 2:
            raise TableError(
                f"{self.source}: {len(cells.case_ids)} labelled cells of {len(set(cells.groups))} patients cannot both "
                "calibrate and evaluate: add cells of other patients"
            )
        return cells, partition

    def sha256(self, partition: npt.NDArray[np.str_]) -> str:
        """Digest of everything that a card's numbers come from, except the model."""
        digests = [""] * len(self.case_ids) if self.digests is None else [digest.hex() for digest in self.digests]
        rows = zip(
            self.case_ids,
            digests,
            self.patients or digests,
            self.label_counts.tolist(),
            partition.tolist(),
            strict=True,
        )
        return hashlib.sha256(json.dumps([[info.code for info in self.classes], *rows]).encode()).hexdigest()


def _info(code: str) -> ClassInfo:
    return ClassInfo(code, code.replace("_", " ").capitalize(), "")


def _cached(
    cells: Cells, partition: npt.NDArray[np.str_], logits: npt.NDArray[Any], features: npt.NDArray[Any]
) -> CachedOutputs:
    names = np.array(cells.case_ids), np.array(cells.groups)
    # a table keeps its float64
    return CachedOutputs(cast(Floats, logits), features, features, cells.label_counts, partition, *names)


def source_kind(source: TableSource) -> Kind:
    """Whether a model is an ONNX file, a factory in a Python file, or a table of its outputs."""
    if not isinstance(source, str | Path) or table_kind(Path(source)) in {".csv", ".parquet"}:
        return "table"
    if Path(source).suffix.lower() == ".onnx":
        return "onnx"
    if ".py:" in str(source):
        return "module"
    raise ValueError(
        f"{source}: must be an .onnx file, a factory such as model.py:network, or a table (.csv, .csv.gz, .parquet)"
    )


@dataclass(frozen=True)
class AdoptRequest:
    """Arguments of ``ml.adoption.adopt``."""

    source: TableSource
    data: str | Path | None = None
    labels: TableSource | None = None
    images: str | Path | None = None
    classes: Sequence[str] | None = None
    output: Output | None = None
    features: TableSource | None = None
    preprocessing: PreprocessingSteps | None = None
    cluster: str | None = None
    held_out: float | None = None
    seed: int = 0
    method: Method = "temperature"
    alpha: bool = True
    level: Level = "nominal"
    observer: Observer = ignore_progress

    def check(self) -> Kind:
        """Refuse arguments that do not go together; the kind of the source."""
        kind = source_kind(self.source)
        if self.method not in METHODS:
            raise ValueError(f"unknown method {self.method!r}; there are {', '.join(METHODS)}")
        if self.held_out is not None and not 0 < self.held_out < 1:
            raise ValueError(f"held-out must be a share between 0 and 1, got {self.held_out}")
        if self.classes is not None and (len(set(self.classes)) != len(self.classes) or len(self.classes) < 2):
            raise ValueError(f"classes must be at least two different names, got {', '.join(self.classes)}")
        if kind == "table":
            if self.labels is None or self.data is not None or self.images is not None or self.preprocessing:
                raise ValueError("a table of outputs needs labels, and takes no data, images or preprocessing")
        elif (self.data is None) == (self.labels is None) or (self.labels is None) != (self.images is None):
            raise ValueError("a network needs data (a folder of images with labels), or labels and images")
        return kind


def adopt_model(request: AdoptRequest, out: Path, name: str | None) -> AdoptReport:
    """Calibrate a model, and write its release: all of it or nothing."""
    require_empty(out)
    kind = request.check()
    model = _adopt_table(request) if kind == "table" else _adopt_network(request, kind)
    calibration, judged = judge_outputs(model, request)
    source = model.adopted["source"]
    name = name or source.rpartition(".py:")[0] or Path(source).stem
    card = _card(name, model, calibration, judged, request.seed)
    with _new_folder(out) as draft:
        release = write_release(draft, model.files, calibration, card)
    picture = None
    if model.cells.pixels is not None:
        picture = out.with_name(f"{out.name}.preprocessing.png")
        write_bytes_atomically(picture, _picture(model.cells.pixels[:_SHOWN]))
    return {
        **judged,
        "release": str(out),
        "card_sha256": release.card_sha256,
        "adopted": model.adopted,
        "parity": model.parity,
        "picture": None if picture is None else str(picture),
    }


def calibrate_tables(request: AdoptRequest, out: Path) -> JudgedDocument:
    """Calibrate a table of outputs as an adoption does, and write the calibration alone."""
    if out.suffix != ".json" or out.exists():
        raise ValueError(f"{out}: must be a new .json file; choose another --out")
    request.check()
    calibration, judged = judge_outputs(_adopt_table(request), request)
    write_json(out, calibration.to_dict())
    return judged


@dataclass(frozen=True)
class _Model:
    """A model's outputs on labelled cells, and what its release has of it."""

    cells: Cells
    outputs: CachedOutputs
    adopted: AdoptedDocument
    warnings: list[str]
    files: dict[str, bytes]
    # none of these of a table
    preprocessing: Preprocessing | None = None
    parity: ParityDocument | None = None
    reference: ReferenceDocument | None = None
    training: TrainingDocument | None = None


def judge_outputs(model: _Model, request: AdoptRequest) -> tuple[Calibration, JudgedDocument]:
    """Calibrate outputs on one part of the cells, and judge them on the other."""
    outputs, source, method, alpha = model.outputs, model.cells.source, request.method, request.alpha
    if alpha and not (outputs.label_counts.sum(axis=1) >= 2).any():
        raise TableError(
            f"{source}: no cell has two labels, so disagreement cannot be calibrated: have some cells labelled "
            "by two annotators, or calibrate class probabilities alone with --no-alpha"
        )
    part, held_out = (outputs.take(outputs.partition == name) for name in ("calibration", "test"))
    try:
        fitted, calibration, disagreement = fit_and_judge(
            part, held_out, None, method=method, alpha=alpha, seed=request.seed, level=request.level
        )
    except FitError as exc:
        raise TableError(f"{source}: {exc}") from exc
    steps, n, warnings = calibration_steps(fitted, calibration, method), len(part.case_ids), list(model.warnings)
    if n < _FEW:
        warnings.append(f"only {n} cells calibrate: add labelled cells, or split them again with --held-out")
    return calibration, {
        "fit": fitted.report,
        "n_calibration": n,
        "n_held_out": len(held_out.case_ids),
        "held_out": {name: held_out_metrics(held_out, step) for name, step in steps.items()},
        "disagreement": disagreement,
        "constant_concentration": calibration.has_constant_concentration,
        "warnings": warnings,
    }


def _adopt_table(request: AdoptRequest) -> _Model:
    outputs = read_outputs(request.source, request.features, request.classes)
    if request.output not in {None, outputs.output}:
        raise ValueError(f"{outputs.place}: its columns are {outputs.output}, not {request.output}")
    whole = Cells.read(cast(TableSource, request.labels), outputs.classes, request.cluster)
    cells, partition = whole.split(request.held_out, request.seed)
    stray = sorted(set(cells.case_ids) - set(outputs.case_ids))
    if stray:
        lacks = f"case {stray[0]!r} has a label but no outputs in {outputs.place}"
        raise TableError(f"{cells.source}: {lacks}, {len(stray)} in all")
    outputs = outputs.take(cells.case_ids)
    file = Path(request.source) if isinstance(request.source, str | Path) else None
    values, hidden = outputs.logits.tobytes() + outputs.features.tobytes(), request.features
    named = (
        f"{Path(hidden).name} (SHA-256 {file_sha256(Path(hidden))})" if isinstance(hidden, str | Path) else "columns"
    )
    adopted: AdoptedDocument = {
        "kind": "table",
        "source": "a table in memory" if file is None else file.name,
        "source_sha256": hashlib.sha256(values).hexdigest() if file is None else file_sha256(file),
        "output": outputs.output,
        "features": named if outputs.feature_names else "none",
        "feature_names": outputs.feature_names,
        "data_sha256": cells.sha256(partition),
        "n_left_out": len(whole.case_ids) - len(cells.case_ids),
    }
    cached = _cached(cells, partition, outputs.logits, outputs.named_features(outputs.feature_names))
    return _Model(cells, cached, adopted, _class_order_warning(cached, outputs.classes), {})


def _adopt_network(request: AdoptRequest, kind: Kind) -> _Model:
    from ml.training.adopted_graph import SourceGraph, judge_output, run_network  # needs onnx

    name, module = str(request.source), None
    if kind == "onnx":
        graph = SourceGraph.read(Path(name))
        preprocessing = _preprocessing(request.preprocessing or {}, graph.image_shape, name)
    else:
        from ml.training.export import call_factory, export_module, run_module  # needs torch

        module = call_factory(name)
        preprocessing = _preprocessing(request.preprocessing or {}, (None, None), name)
    whole = _read_cells(request, preprocessing)
    named = [info.code for info in whole.classes] if request.classes is None else list(request.classes)
    cells, partition = whole.in_classes(named).split(request.held_out, request.seed)
    pixels = cast(Pixels, cells.pixels)
    first, tensor, layer = preprocessing.normalise(pixels[:_COMPARED]), "features", cast(str | None, request.features)
    if module is None:
        tensor, expected = graph.tensor(layer), graph.run(first)
    else:
        graph, layer = export_module(name, module, layer, first.shape[1:])
        expected = run_module(module, first)
    output = judge_output(name, expected, named, request.output)
    network = graph.for_release(tensor, first, log=output == "probabilities")
    batches = (preprocessing.normalise(pixels[start : start + BATCH]) for start in range(0, len(pixels), BATCH))
    logits, features = run_network(name, network, batches, cells.case_ids, request.observer)
    if output == "probabilities":
        expected = log_probabilities(expected).astype(np.float32)
    outputs = _cached(cells, partition, logits, features)
    files, warnings = {"network.onnx": network}, _class_order_warning(outputs, named)
    seen = stain_and_labels(pixels[partition == "test"][:_COMPARED], outputs)
    reference = with_checks(seen, outputs, compute_quality_features(pixels), preprocessing, files)
    if FAMILIARITY_FILE not in files:
        warnings.append("fewer than 20 images calibrate or evaluate: the release has no out-of-distribution check")
    uses = np.where(partition == "calibration", partition, "").tolist()
    index = TrainingIndex.of(cast(list[bytes], cells.digests), uses, None)
    files[INDEX_FILE] = index.to_bytes()
    adopted: AdoptedDocument = {
        "kind": kind,
        "source": Path(name).name,
        "source_sha256": file_sha256(Path(name.rpartition(".py:")[0] + ".py" if module is not None else name)),
        "output": output,
        "features": layer or tensor,
        "feature_names": [str(number) for number in range(features.shape[1])],
        "data_sha256": cells.sha256(partition),
        "n_left_out": len(whole.case_ids) - len(cells.case_ids),
    }
    parity = compare_logits(expected, logits[: len(expected)])
    return _Model(cells, outputs, adopted, warnings, files, preprocessing, parity, reference, index.document())


def _class_order_warning(outputs: CachedOutputs, classes: Sequence[str]) -> list[str]:
    """Warn if held-out labels, too, fit the order of the classes that suits the cells that calibrate."""
    shares = outputs.label_counts / outputs.label_counts.sum(axis=1, keepdims=True)
    leading, calibrates = outputs.logits.argmax(axis=1), outputs.partition == "calibration"
    together = np.eye(len(classes))[leading[calibrates]].T @ shares[calibrates]
    _, order = linear_sum_assignment(together, maximize=True)
    rows = np.flatnonzero(~calibrates)
    own, other = shares[rows, leading[rows]], shares[rows, order[leading[rows]]]
    gain = other - own
    if gain.mean() <= _BETTER_ORDER * gain.std() / np.sqrt(len(gain)):
        return []
    moved = [f"{classes[row]} is {classes[column]}" for row, column in enumerate(order) if row != column]
    listed = ", ".join(moved[:_LISTED]) + (", …" if len(moved) > _LISTED else "")
    return [
        f"the leading class agrees with {own.mean():.0%} of the held-out labels, and with {other.mean():.0%} if "
        f"{listed}: are the classes in the order of the outputs?"
    ]


def _preprocessing(given: PreprocessingSteps, shape: tuple[int | None, int | None], name: str) -> Preprocessing:
    """Steps before a network that reads images of a shape (C, side), as far as it is steps."""
    steps = PreprocessingSteps.__annotations__
    unknown = sorted(given.keys() - steps)
    if unknown:
        raise ValueError(f"preprocessing: {unknown[0]!r} is none of {', '.join(steps)}")
    channels, size = given.get("channels") or shape[0] or 3, given.get("size") or shape[1]
    if size is None:
        raise ValueError(f"{name}: takes images of any size: give the side of its input in px, --size")
    for what, value, own in (("channels (--colour)", channels, shape[0]), ("px a side (--size)", size, shape[1])):
        if own not in {None, value}:
            raise ValueError(f"{name}: reads images of {own} {what}, and {value} were given")
    try:
        mean, std = (
            tuple(map(float, values)) * (channels if len(values) == 1 else 1)
            for values in (given.get("mean") or [0.0], given.get("std") or [1.0])
        )
        return Preprocessing(channels, given.get("crop"), size, mean, std)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"preprocessing of {name}: {exc}") from exc


def _read_cells(request: AdoptRequest, preprocessing: Preprocessing) -> Cells:
    """Labelled images as the network sees them."""
    if request.data is not None:
        size, crop, grey = preprocessing.size, preprocessing.crop, preprocessing.channels == 1
        dataset = load_folder(Path(request.data), size=size, crop=crop, grey=grey, observer=request.observer)
        return Cells.of_dataset(dataset, str(request.data))
    images = Path(cast(str, request.images))
    if not images.exists():
        raise TableError(f"{images}: there is no such file or folder")
    cells = Cells.read(cast(TableSource, request.labels), request.classes, request.cluster)
    names, paths, _ = listed_images(images)
    file_of = dict(zip(names, paths, strict=True))
    missing = [case for case in cells.case_ids if case not in file_of]
    if missing:
        raise TableError(f"{cells.source}: case {missing[0]!r} has no image in {images}, {len(missing)} in all")
    decoded = decode_files([file_of[case] for case in cells.case_ids], preprocessing, None, request.observer)
    return replace(cells, pixels=decoded.pixels, digests=decoded.digests)


def _card(name: str, model: _Model, calibration: Calibration, judged: JudgedDocument, seed: int) -> CardContents:
    cells, partition = model.cells, model.outputs.partition
    rows = {part: partition == part for part in ("calibration", "test")}
    held_out = model.outputs.take(rows["test"])
    classes = [info.code for info in cells.classes]
    probs = calibration.apply(held_out.logits, held_out.features).class_probs
    source = (
        f"{len(cells.case_ids)} labelled cells of {Path(cells.source).name!r} (SHA-256 {model.adopted['data_sha256']})"
    )
    card: CardContents = {
        "name": name,
        "classes": [info.to_dict() for info in cells.classes],
        "preprocessing": None if model.preprocessing is None else model.preprocessing.to_dict(),
        "network": model.adopted["source"],
        "seed": seed,
        "data": {
            "name": Path(cells.source).name,
            "source": source,
            "partitions": {part: int(mask.sum()) for part, mask in rows.items()},
            "split_by": "case" if cells.patients is None else "patient",
            "class_counts": {part: (cells.label_counts[mask] > 0).sum(axis=0).tolist() for part, mask in rows.items()},
            "annotators": None if cells.annotators is None else list(cells.annotators),
        },
        "licence": "not stated",
        "calibration": judged["fit"],
        "disagreement_calibrated": calibration.concentration is not None,
        "disagreement": judged["disagreement"],
        "held_out": judged["held_out"],
        "n_held_out": judged["n_held_out"],
        "parity": model.parity,
        "versions": {package: version(package) for package in ("numpy", "scipy")},
        "limits_of_use": [LIMITS_OF_USE[0], *ADOPTED_LIMITS, LIMITS_OF_USE[2]],
        "recall": class_recalls(held_out.label_counts, probs, classes),
        "adopted": model.adopted,
    }
    if model.reference is not None and model.training is not None:
        card["reference"], card["training"] = model.reference, model.training
        card["measured_network_sha256"] = hashlib.sha256(model.files["network.onnx"]).hexdigest()
    return card


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to a path, which takes its place unless something fails."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        draft.replace(path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _picture(pixels: Pixels) -> bytes:
    """PNG of images (M, H, W, C) side by side, enlarged to be seen."""
    row = np.concatenate(list(pixels), axis=1).squeeze()
    factor = max(1, -(-_SHOWN_SIDE // len(row)))
    return encode_png(Image.fromarray(row.repeat(factor, axis=0).repeat(factor, axis=1)))
