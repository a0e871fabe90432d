"""Quantised release: convolutions in whole numbers, recalibrated, compared.

Weights have eight bits and a scale per output channel, activations eight and
one scale. Linear layers stay in float32. The gate judges on the test partition.

x86 processors without VNNI clip 2 · 255 · 127 to sixteen bits; ONNX Runtime
then computes in a slower, exact way. Weights of seven bits are for other
servers on such processors.

Source: B. Jacob et al., CVPR 2018; ONNX Runtime, "Quantize ONNX models".
"""

import hashlib
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import onnx

from ml.calibration.calibrators import Calibration, fitted_level
from ml.calibration.scaling import METHODS, Method
from ml.datasets.base import ClassInfo, ImageDataset
from ml.images.image_quality_features import compute_quality_features
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.paired_difference import describe_regressions, paired_change, paired_changes
from ml.release.artifact import HEAD_FILE, Release, ReleaseError, read_release, require_empty, write_release
from ml.release.card import CardContents, QuantizedDocument
from ml.release.predictor import BATCH, Predictor
from ml.release.training_index import INDEX_FILE
from ml.training.calibrate import clusters_of, fit_and_judge, held_out_metrics, member_outputs
from ml.training.release_checks import SHIFTED_IMAGES, ShiftTrial, try_shifts, with_checks
from ml.training.report import class_recalls
from ml.training.run_folder import CachedOutputs

Images = npt.NDArray[np.float32]
#: End of an activation's range: least divergence of the histogram in 128
#: levels, the 99.999 % quantile, or the extreme.
Ranges = Literal["entropy", "percentile", "minmax"]
#: Bits of a weight, its sign included.
WeightBits = Literal[7, 8]
#: Operators in whole numbers.
_OPERATORS = ["Conv", "MaxPool", "Relu"]


def quantize_graph(
    network: Path,
    batches: Iterable[Images],
    ranges: Ranges,
    weight_bits: WeightBits = 8,
    observer: Callable[[int], None] = lambda n: None,
) -> tuple[bytes, int]:
    """Quantise convolutions with ranges from inputs; count them."""
    import onnxruntime  # after ml.release, which disables telemetry
    from onnxruntime.quantization import CalibrationMethod, QDQQuantizer, QuantType, create_calibrator

    if any(node.op_type == "DequantizeLinear" for node in onnx.load(network).graph.node):
        raise ReleaseError(f"{network}: is quantised already")
    methods = {
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
        "minmax": CalibrationMethod.MinMax,
    }
    # ONNX Runtime prints how it goes on
    with TemporaryDirectory() as temporary, redirect_stdout(io.StringIO()):
        folded, augmented = (str(Path(temporary) / name) for name in ("folded.onnx", "augmented.onnx"))
        # with batch normalisations folded into convolutions
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = folded
        options.log_severity_level = 3
        onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
        calibrator = create_calibrator(
            Path(folded), _OPERATORS, augmented_model_path=augmented, calibrate_method=methods[ranges]
        )
        for batch in batches:  # a calibrator keeps all activations of a call
            calibrator.collect_data(_OneBatch(batch))
            observer(len(batch))
        quantizer = QDQQuantizer(
            onnx.load(folded),
            per_channel=True,
            reduce_range=weight_bits == 7,
            weight_qType=QuantType.QInt8,
            activation_qType=QuantType.QUInt8,
            tensors_range=calibrator.compute_data(),
            nodes_to_quantize=[],
            nodes_to_exclude=[],
            op_types_to_quantize=_OPERATORS,
            extra_options={},
        )
        quantizer.quantize_model()
    quantizer.model.topological_sort()
    return _plain_model(quantizer.model.model, network)


class _OneBatch:
    def __init__(self, batch: Images) -> None:
        self._inputs = iter([{"image": batch}])

    def get_next(self) -> dict[str, Images] | None:
        """The batch by the name of its input, then None."""
        return next(self._inputs, None)


def _plain_model(model: Any, network: Path) -> tuple[bytes, int]:
    """Checked model without unused parts; number of quantised layers."""
    model.ClearField("metadata_props")
    used = {node.domain for node in model.graph.node}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    whole = {tensor.name for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    nodes = model.graph.node
    weights = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear" and node.input[0] in whole}
    n_layers = sum(node.op_type == "Conv" and node.input[1] in weights for node in nodes)
    if n_layers == 0:
        raise ReleaseError(f"{network}: has no convolution, so there is nothing to quantise")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True)), n_layers


class LeftOutDocument(TypedDict):
    """Left-out cases of calibration and test."""

    calibration: int
    test: int


@dataclass(frozen=True)
class Cases:
    """Cases that no network was fitted to."""

    dataset: ImageDataset  # with the classes of the release, and digests
    uses: npt.NDArray[np.str_]  # (N,) use in the release, empty for none
    left_out: LeftOutDocument  # what was left out

    def calibrating(self) -> npt.NDArray[np.intp]:
        """Rows of the partition that calibrates."""
        return self.dataset.rows(self.dataset.calibration_partition)

    def outputs(self, predictor: Predictor, rows: npt.NDArray[np.intp], done: Callable[[int], None]) -> CachedOutputs:
        """Network outputs of the cases."""
        parts = []
        for start in range(0, len(rows), BATCH):
            parts.append(predictor.outputs(list(self.dataset.pixels[rows[start : start + BATCH]])))
            done(len(parts[-1][0]))
        logits, features = (np.concatenate(column) for column in zip(*parts, strict=True))
        # features are pooled vectors in a release with a dropout head
        return CachedOutputs.of(self.dataset, rows, (logits, features, features))


def cases_for(release: Release, dataset: ImageDataset) -> Cases:
    """Cases of a data set that may calibrate and judge a release."""
    # Left out are test cases that the release was made with or that calibrate here, and
    # calibration cases that fitted its network, unless they calibrated it as well.
    _require_same_images(release, dataset)
    calibrates = dataset.calibration_partition
    dataset = _in_classes_of(release, dataset).take(dataset.rows("valid", "calibration", "test"))
    own, partition, groups = dataset.digests(), dataset.partition, dataset.groups
    uses = calibrated = np.full(len(own), "", dtype="U11")
    if release.training is not None:
        uses = release.training.uses_of(own, dataset.patient_hmacs)
        calibrated = release.training.without_network().uses_of(own, dataset.patient_hmacs)
    judged_before = (partition == "test") & (uses != "")
    fitted_before = (partition == "calibration") & (uses == "network") & (calibrated == "")
    calibrating = (partition == calibrates) & ~fitted_before
    # no picture and no patient may both calibrate and judge
    known_digests, known_groups = {own[row] for row in np.flatnonzero(calibrating)}, set(groups[calibrating])
    alike = [digest in known_digests or group in known_groups for digest, group in zip(own, groups, strict=True)]
    judged_before |= (partition == "test") & np.array(alike, dtype=bool)
    kept = np.flatnonzero(~judged_before & ~fitted_before)
    chosen = replace(dataset, pixel_digests=own).take(kept)
    for name in (calibrates, "test"):
        if not chosen.rows(name).size:
            made_with = int(fitted_before.sum() + judged_before.sum())
            raise ValueError(
                f"data set {dataset.name!r} has no case in partition {name!r} that the release was not made with"
                + (f" ({made_with:,} are left out): give the --seed of its split" if made_with else "")
            )
    return Cases(chosen, uses[kept], {"calibration": int(fitted_before.sum()), "test": int(judged_before.sum())})


def _require_same_images(release: Release, dataset: ImageDataset) -> None:
    seen, given = release.preprocessing, dataset.preprocessing
    for what in ("channels", "size", "crop"):
        given_value, expected = getattr(given, what), getattr(seen, what)
        if given_value != expected:
            raise ValueError(
                f"data set {dataset.name!r} has the {what} {given_value or 'none'}, the release's network reads "
                f"{expected or 'none'}"
            )


def _in_classes_of(release: Release, dataset: ImageDataset) -> ImageDataset:
    unknown = [info.code for info in dataset.classes if info.code not in release.classes]
    if unknown:
        raise ValueError(
            f"data set {dataset.name!r} has the class {unknown[0]!r}, which the release does not have "
            f"({', '.join(release.classes)})"
        )
    counts = np.zeros((len(dataset.label_counts), len(release.classes)), dtype=np.int64)
    counts[:, [release.classes.index(info.code) for info in dataset.classes]] = dataset.label_counts
    return replace(dataset, classes=tuple(ClassInfo(**info) for info in release.card["classes"]), label_counts=counts)


#: Names of the two networks on the card: both on the same cells.
BEFORE, AFTER = "float32", "int8"
#: Images for the ranges of activations, by default.
RANGE_IMAGES = 256
# pixels of a batch whose activations are in memory at once, and images of it at most
_RANGE_PIXELS, _RANGE_BATCH = 200_000, 32
#: Called with what is being done, how much of it is done, and how much there is.
Observer = Callable[[str, int, int], None]


class WorseError(ValueError):
    """The quantised network is worse on held-out cases than the gate allows."""


class QuantizeReport(TypedDict):
    """Result of a quantisation, as ``secondread quantize --json`` prints it."""

    release: str
    card_sha256: str
    quantized: QuantizedDocument
    figures: dict[str, dict[str, EstimateDocument]]  # by network and metric
    n_calibration: int
    n_held_out: int
    left_out: LeftOutDocument
    trained_on: str  # ``known``, or ``unknown`` without digests
    network_bytes: dict[str, int]


@dataclass(frozen=True)
class QuantizationRequest:
    """Options of a quantisation."""

    ranges: Ranges = "percentile"
    n_images: int = RANGE_IMAGES  # at most, for the ranges
    seed: int = 0  # of which images these are, and of the shifts
    name: str | None = None  # of the new release
    despite_gate: bool = False  # accept a worse network
    shifts: bool = True  # try standard shifts
    weight_bits: WeightBits = 8


def quantize_release(
    source: Path,
    dataset: ImageDataset,
    out: Path,
    wish: QuantizationRequest,
    observer: Observer = lambda what, done, total: None,
) -> QuantizeReport:
    """Write an int8 release; equal inputs give equal bytes."""
    release = read_release(source)
    require_empty(out)
    _require_own_calibration(release)
    cases = cases_for(release, dataset)
    if not wish.despite_gate:
        require_pairs(cases)
    network, quantized = _quantized_network(release, cases, wish, observer)
    files = {"network.onnx": network}
    if release.head is not None:
        files[HEAD_FILE] = (release.path / HEAD_FILE).read_bytes()
    outputs, before = _outputs(release, cases, files, observer)
    # refitted as that of the source was fitted
    method: Method = next((name for name in METHODS if name in release.card["calibration"]), "none")
    alpha, dropout = release.calibration.concentration is not None, release.card.get("mc_dropout")
    seed = 0 if dropout is None else dropout["seed"]  # as `calibrate` has it
    part, after = (outputs.take(outputs.partition == name) for name in (cases.dataset.calibration_partition, "test"))
    level = fitted_level(release.card["calibration"])
    fitted, calibration, disagreement = fit_and_judge(
        part, after, release.head, method=method, alpha=alpha, seed=seed, level=level
    )
    quantized["changes"], quantized["harms"] = _compared(release, before, calibration, after)
    if quantized["harms"] and not wish.despite_gate:
        raise WorseError(
            f"the int8 network is worse than {release.card['name']} on {len(after.case_ids):,} held-out cells: "
            f"{'; '.join(quantized['harms'])}. Nothing was written; try other --ranges or more --images, or write it "
            "anyway with --despite-gate"
        )
    card = _card(release, wish.name or f"{release.card['name']} int8", calibration, before, after)
    card["quantized"], card["calibration"], card["disagreement"] = quantized, fitted.report, disagreement
    _add_checks_and_index(release, cases, outputs, files, card)
    if wish.shifts:
        data = cases.dataset
        rows = np.sort(np.random.default_rng([wish.seed, 1]).permutation(data.rows("test"))[:SHIFTED_IMAGES])
        trial = ShiftTrial(None, partial(observer, "standard shifts"))
        card["shifts"] = try_shifts(data.pixels[rows], data.label_counts[rows], files, calibration, card, trial)
    card["measured_network_sha256"] = hashlib.sha256(network).hexdigest()
    written = write_release(out, files, calibration, card)
    return {
        "release": str(out),
        "card_sha256": written.card_sha256,
        "quantized": quantized,
        "figures": card["held_out"],
        "n_calibration": int(cases.calibrating().size),
        "n_held_out": len(after.case_ids),
        "left_out": cases.left_out,
        "trained_on": "unknown" if release.training is None else "known",
        "network_bytes": {BEFORE: release.network.stat().st_size, AFTER: len(network)},
    }


def _progress(observer: Observer, what: str, total: int) -> Callable[[int], None]:
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        observer(what, done, total)

    advance(0)
    return advance


def require_pairs(cases: Cases) -> None:
    """Refuse data by which disagreement cannot be judged, before all the work."""
    test = cases.dataset.rows("test")
    with_pair = test[cases.dataset.label_counts[test].sum(axis=1) >= 2]
    n_patients = len(set(cases.dataset.groups[with_pair]))
    if n_patients < 2:
        raise ValueError(
            f"harm to the disagreement probability cannot be judged: of {test.size:,} held-out cases "
            f"{with_pair.size:,} have two labels, of {n_patients} patients where two are needed; collect second "
            "labels, or use --despite-gate"
        )


def _require_own_calibration(release: Release) -> None:
    """Refuse an adapted release: refitting would lose its calibration."""
    if "adaptation" in release.card["calibration"]:
        raise ReleaseError(
            f"{release.path}: was adapted to other annotators, which a new calibration would lose: quantise the "
            "release that it was adapted from, and adapt the result"
        )
    if "recalibration" in release.card:
        raise ReleaseError(
            f"{release.path}: was recalibrated from labels that a service collected, which a new calibration would "
            "lose: quantise the release that it was recalibrated from, and let the service recalibrate the result"
        )


def _quantized_network(
    release: Release, cases: Cases, wish: QuantizationRequest, observer: Observer
) -> tuple[bytes, QuantizedDocument]:
    drawn = np.random.default_rng(wish.seed).permutation(cases.calibrating())[: wish.n_images]
    size = max(1, min(_RANGE_BATCH, _RANGE_PIXELS // release.preprocessing.size**2))

    def batches() -> Iterator[Images]:
        for start in range(0, len(drawn), size):
            yield release.preprocessing.normalise(cases.dataset.pixels[drawn[start : start + size]])

    done = _progress(observer, "finding ranges of activations", len(drawn))
    network, n_layers = quantize_graph(release.network, batches(), wish.ranges, wish.weight_bits, done)
    return network, {
        "kind": "int8",
        "source": {"name": release.card["name"], "card_sha256": release.card_sha256},
        "weight_bits": wish.weight_bits,
        "ranges": wish.ranges,
        "n_range_images": len(drawn),
        "n_layers": n_layers,
        "changes": {},
        "harms": [],
    }


def _outputs(
    release: Release, cases: Cases, files: dict[str, bytes], observer: Observer
) -> tuple[CachedOutputs, CachedOutputs]:
    """Served outputs of the quantised network and of its source."""
    rows, held_out = np.arange(len(cases.uses)), cases.dataset.rows("test")
    done = _progress(observer, "predicting with both networks", len(rows) + len(held_out))
    with TemporaryDirectory() as temporary:
        draft = write_release(Path(temporary) / "draft", files, release.calibration, _contents(release), "")
        quantized = cases.outputs(Predictor(draft, device="cpu"), rows, done)
    return quantized, cases.outputs(Predictor(release, device="cpu"), held_out, done)


def _contents(release: Release) -> CardContents:
    card: CardContents = release.card.copy()
    card.pop("training", None)
    return card


def _compared(
    release: Release, before: CachedOutputs, calibration: Calibration, after: CachedOutputs
) -> tuple[dict[str, EstimateDocument], list[str]]:
    """Paired changes on held-out cases, and the harms for the gate."""
    distributions = (
        release.calibration.apply(*member_outputs(before, release.head)),
        calibration.apply(*member_outputs(after, release.head)),
    )
    first, second = ((each.class_probs, each.disagreement_probs) for each in distributions)
    cluster = clusters_of(after)
    changes = paired_changes(after.label_counts, first, second, cluster=cluster)
    harms = describe_regressions(paired_change(after.label_counts, first, second, cluster=cluster))
    return {name: changes[name].to_dict() for name in ("L", "L_D", "agreement")}, harms


def _card(
    release: Release, name: str, calibration: Calibration, before: CachedOutputs, after: CachedOutputs
) -> CardContents:
    probs = calibration.apply(*member_outputs(after, release.head)).class_probs
    return {
        **_contents(release),
        "name": name,
        "parent": None,  # which only a service knows by its own identifier
        "disagreement_calibrated": calibration.concentration is not None,
        "held_out": {
            BEFORE: held_out_metrics(before, release.calibration, release.head),
            AFTER: held_out_metrics(after, calibration, release.head),
        },
        "n_held_out": len(after.case_ids),
        "parity": None,  # of the network in float32
        "recall": class_recalls(after.label_counts, probs, list(release.classes)),
        "baseline": None,
        "shifts": [],
    }


def _add_checks_and_index(
    release: Release, cases: Cases, outputs: CachedOutputs, files: dict[str, bytes], card: CardContents
) -> None:
    """Add familiarity checks and the training index to files and card."""
    data = cases.dataset
    appearance = compute_quality_features(data.pixels)
    card["reference"] = with_checks(card["reference"], outputs, appearance, release.preprocessing, files)
    if release.training is not None:
        new = data.take(np.array([row for row in cases.calibrating() if cases.uses[row] == ""], dtype=np.intp))
        index = release.training.with_calibration(new.digests(), new.patient_hmacs)
        files[INDEX_FILE], card["training"] = index.to_bytes(), index.document()
