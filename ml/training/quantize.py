"""Quantised release: network in whole numbers, recalibrated, and compared with its source.

Images of the calibration partition say how far activations reach; temperature, concentration head and the checks of
whether an image is familiar are fitted anew to what the quantised network makes of the same cases, since its logits and
features are others. Judged is on the test partition, to which nothing here is fitted, by what the gate calls harm
(``ml.metrics.paired_difference``): a release that is to be faster has to be no worse, not better.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.calibration.calibrators import Calibration, FitDocument
from ml.calibration.scaling import METHODS, Method
from ml.charts.rows import ShiftPoint
from ml.datasets.base import ImageDataset
from ml.distributions.families import PredictiveDistribution
from ml.images.image_quality_features import compute_quality_features
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import Pixels
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.paired_difference import describe_regressions, paired_change, paired_changes
from ml.release.artifact import HEAD_FILE, Release, ReleaseError, read_release, require_empty, write_release
from ml.release.card import CardContents, DisagreementDocument, QuantizedDocument, ReferenceDocument, readme_text
from ml.release.predictor import BATCH, Predictor
from ml.release.shift_suite import shift_suite
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.training.calibrate import clusters_of, fit_and_judge, held_out_metrics, member_outputs
from ml.training.quantized_graph import QuantizedGraph, Ranges, WeightBits, quantize_graph
from ml.training.release_checks import with_checks
from ml.training.report import class_recalls
from ml.training.run_folder import CachedOutputs
from ml.util.arrays import IntArray


class LeftOutDocument(TypedDict):
    """Cases that were left out because of what the release was made with: of those that calibrate, and that judge."""

    calibration: int
    test: int


@dataclass(frozen=True)
class Cases:
    """Cases that no network was fitted to."""

    pixels: Pixels  # (N, H, W, C) uint8, as the network sees them
    counts: IntArray  # (N, K) labels, in the order of the release's classes
    partition: npt.NDArray[np.str_]  # (N,) ``valid``, ``calibration`` or ``test``
    calibrates: str  # name of the partition that calibrates
    case_ids: npt.NDArray[np.str_]  # (N,)
    groups: npt.NDArray[np.str_]  # (N,) patient, or the case itself where there is none
    digests: list[bytes]  # N of the decoded pictures
    hmacs: list[str] | None  # N digests of patients by the service that exported them, None where none did
    uses: npt.NDArray[np.str_]  # (N,) what the release used each case for, the empty text for nothing
    left_out: LeftOutDocument  # what was left out

    def rows(self, *partitions: str) -> npt.NDArray[np.intp]:
        """Rows of partitions."""
        return np.flatnonzero(np.isin(self.partition, partitions))

    def outputs(
        self, predictor: Predictor, rows: npt.NDArray[np.intp], done: Callable[[int], None] = lambda n: None
    ) -> CachedOutputs:
        """Network outputs of the cases."""
        parts = []
        for start in range(0, len(rows), BATCH):
            parts.append(predictor.outputs(list(self.pixels[rows[start : start + BATCH]])))
            done(len(parts[-1][0]))
        logits, features = (np.concatenate(column) for column in zip(*parts, strict=True))
        return CachedOutputs(
            logits=logits,
            features=features,
            pooled=features,  # which they are in a release with a dropout head
            label_counts=self.counts[rows],
            partition=self.partition[rows],
            case_ids=self.case_ids[rows],
            groups=self.groups[rows],
        )


def cases_for(release: Release, dataset: ImageDataset) -> Cases:
    """The cases of a data set that may calibrate and judge a release."""
    _require_same_images(release, dataset)
    rows = dataset.rows("valid", "calibration", "test")
    counts, partition = _counts(release, dataset)[rows], dataset.partition[rows]
    digests = dataset.pixel_digests
    own = [pixel_digest(dataset.pixels[row]) if digests is None else digests[row] for row in rows]
    hmacs = None if dataset.patient_hmacs is None else [dataset.patient_hmacs[row] for row in rows]
    uses = calibrated = np.full(len(rows), "", dtype="U11")
    if release.training is not None:
        uses = release.training.uses_of(own, hmacs)
        calibrated = release.training.without_network().uses_of(own, hmacs)
    judged_before = (partition == "test") & (uses != "")
    fitted_before = (partition == "calibration") & (uses == "network") & (calibrated == "")
    cases = np.array(dataset.case_ids)[rows]
    groups = cases if dataset.patients is None else np.array(dataset.patients)[rows]
    calibrates = (partition == dataset.calibration_partition) & ~fitted_before
    # whatever a table says of its partitions: no picture and no patient may both calibrate and judge
    known_digests, known_groups = {own[row] for row in np.flatnonzero(calibrates)}, set(groups[calibrates])
    alike = np.array([own[row] in known_digests or groups[row] in known_groups for row in range(len(rows))], dtype=bool)
    judged_before |= (partition == "test") & alike
    kept = np.flatnonzero(~judged_before & ~fitted_before)
    chosen_cases = Cases(
        pixels=dataset.pixels[rows[kept]],
        counts=counts[kept],
        partition=partition[kept],
        calibrates=dataset.calibration_partition,
        case_ids=cases[kept],
        groups=groups[kept],
        digests=[own[row] for row in kept],
        hmacs=None if hmacs is None else [hmacs[row] for row in kept],
        uses=uses[kept],
        left_out={"calibration": int(fitted_before.sum()), "test": int(judged_before.sum())},
    )
    for name in (chosen_cases.calibrates, "test"):
        if not chosen_cases.rows(name).size:
            made_with = chosen_cases.left_out["calibration"] + chosen_cases.left_out["test"]
            raise ValueError(
                f"data set {dataset.name!r} has no case in partition {name!r} that the release was not made with"
                + (f" ({made_with:,} are left out): give the --seed of its split" if made_with else "")
            )
    return chosen_cases


def _require_same_images(release: Release, dataset: ImageDataset) -> None:
    """Refuse images that are not what the release's network sees."""
    seen, given = release.preprocessing, dataset.preprocessing
    for what in ("channels", "size", "crop"):
        given_value, expected = getattr(given, what), getattr(seen, what)
        if given_value != expected:
            raise ValueError(
                f"data set {dataset.name!r} has the {what} {given_value or 'none'}, the release's network reads "
                f"{expected or 'none'}"
            )


def _counts(release: Release, dataset: ImageDataset) -> IntArray:
    """Labels (N, K) in the order of the release's classes."""
    unknown = [info.code for info in dataset.classes if info.code not in release.classes]
    if unknown:
        raise ValueError(
            f"data set {dataset.name!r} has the class {unknown[0]!r}, which the release does not have "
            f"({', '.join(release.classes)})"
        )
    counts = np.zeros((len(dataset.label_counts), len(release.classes)), dtype=np.int64)
    counts[:, [release.classes.index(info.code) for info in dataset.classes]] = dataset.label_counts
    return counts


#: Names of the two networks on the card: both on the same cells.
BEFORE, AFTER = "float32", "int8"
#: Images on which ranges of activations are found, unless somebody asks for another number.
RANGE_IMAGES = 256
#: Held-out images on which standard shifts are tried.
_SHIFTED_IMAGES = 500
# pixels of a batch whose activations are in memory at once, and images of it at most
_RANGE_PIXELS, _RANGE_BATCH = 200_000, 32
_UNKNOWN: ReferenceDocument = {"stain_mean": [], "stain_sd": [], "n_stain": 0, "label_share": [], "n_labels": 0}
#: Called with what is being done, how much of it is done, and how much there is.
Observer = Callable[[str, int, int], None]


class WorseError(ValueError):
    """The quantised network is worse on held-out cases than the gate allows."""


class QuantizeReport(TypedDict):
    """Result of a quantisation, as ``secondread quantize --json`` prints it."""

    release: str
    card_sha256: str
    quantized: QuantizedDocument
    figures: dict[str, dict[str, EstimateDocument]]
    n_calibration: int
    n_held_out: int
    left_out: LeftOutDocument
    trained_on: str
    network_bytes: dict[str, int]


@dataclass(frozen=True)
class QuantizationRequest:
    """Options of a quantisation."""

    ranges: Ranges = "percentile"  # how ranges of activations are found
    n_images: int = RANGE_IMAGES  # on how many images at most
    seed: int = 0  # of which images these are, and of the shifts
    name: str | None = None  # of the new release; the old one's with ``int8`` where None
    despite_gate: bool = False  # make it although it is worse than the gate allows
    shifts: bool = True  # whether standard shifts are tried out for the card
    weight_bits: WeightBits = 8  # of each weight (``ml.training.quantized_graph``)


@dataclass(frozen=True)
class _Source:
    """The release that is quantised, the cases that serve, what is asked for, and who is told how it goes on."""

    release: Release
    cases: Cases
    wish: QuantizationRequest
    observer: Observer

    def progress(self, what: str, total: int) -> Callable[[int], None]:
        """Something to be called with each number of images that is done."""
        done = 0

        def advance(n: int) -> None:
            nonlocal done
            done += n
            self.observer(what, done, total)

        self.observer(what, 0, total)
        return advance


@dataclass(frozen=True)
class _QuantizedCalibration:
    """The calibration of the quantised network, and how it compares on held-out cases."""

    # as it is served
    calibration: Calibration
    # how it came about
    fit: FitDocument
    # what the card says of the disagreement probability
    disagreement: DisagreementDocument | None
    # metrics by name of both networks
    figures: dict[str, dict[str, EstimateDocument]]
    # of L, L_D and agreement, paired
    changes: dict[str, EstimateDocument]
    # what the gate calls harm
    harms: list[str]


def quantize_release(
    source: Path,
    dataset: ImageDataset,
    out: Path,
    wish: QuantizationRequest,
    observer: Observer = lambda what, done, total: None,
) -> QuantizeReport:
    """Write a release whose network computes in whole numbers; the same inputs give the same bytes."""
    release = read_release(source)
    require_empty(out)
    _require_own_calibration(release)
    work = _Source(release, cases_for(release, dataset), wish, observer)
    if not wish.despite_gate:
        require_pairs(work.cases)
    with TemporaryDirectory() as temporary:
        graph, n_images = _quantised(work)
        outputs = _outputs(work, graph, Path(temporary) / "network")
        calibrated = _calibrated(work, outputs)
        if calibrated.harms and not wish.despite_gate:
            raise WorseError(_refusal(work, calibrated))
        document = _document(work, graph, n_images, calibrated)
        files, card = _parts(work, graph, outputs, calibrated, document)
        if wish.shifts:
            trial = write_release(Path(temporary) / "trial", files, calibrated.calibration, card, "")
            card["shifts"] = _shifts(work, trial)
    written = write_release(out, files, calibrated.calibration, card, readme_text(card))
    return {
        "release": str(out),
        "card_sha256": written.card_sha256,
        "quantized": document,
        "figures": calibrated.figures,
        "n_calibration": int(work.cases.rows(work.cases.calibrates).size),
        "n_held_out": int(work.cases.rows("test").size),
        "left_out": work.cases.left_out,
        "trained_on": "unknown" if release.training is None else "known",
        "network_bytes": {BEFORE: release.network.stat().st_size, AFTER: len(graph.network)},
    }


def require_pairs(cases: Cases) -> None:
    """Refuse data by which disagreement cannot be judged, before all the work."""
    test = cases.rows("test")
    with_pair = test[cases.counts[test].sum(axis=1) >= 2]
    n_patients = len(set(cases.groups[with_pair]))
    if n_patients < 2:
        raise ValueError(
            f"harm to the disagreement probability cannot be judged: of {test.size:,} held-out cases "
            f"{with_pair.size:,} have two labels, of {n_patients} patients where two are needed; collect second "
            "labels, or use --despite-gate"
        )


def _require_own_calibration(release: Release) -> None:
    """Refuse a release that was adapted: a calibration that is fitted anew would lose it."""
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


def _quantised(work: _Source) -> tuple[QuantizedGraph, int]:
    """The quantised network, and on how many images ranges were found."""
    cases, wish = work.cases, work.wish
    drawn = np.random.default_rng(wish.seed).permutation(cases.rows(cases.calibrates))[: wish.n_images]
    side = work.release.preprocessing.size
    size = max(1, min(_RANGE_BATCH, _RANGE_PIXELS // side**2))

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        for start in range(0, len(drawn), size):
            yield work.release.preprocessing.normalise(cases.pixels[drawn[start : start + size]])

    done = work.progress("finding ranges of activations", len(drawn))
    graph = quantize_graph(work.release.network, batches(), wish.ranges, wish.weight_bits, done)
    return graph, len(drawn)


@dataclass(frozen=True)
class _Outputs:
    """Quantised network's outputs of all cases, and the source's of the judging cases."""

    quantised: CachedOutputs
    source: CachedOutputs

    def of(self, partition: str) -> CachedOutputs:
        """Outputs of the quantised network for a partition."""
        return self.quantised.take(self.quantised.partition == partition)


def _outputs(work: _Source, graph: QuantizedGraph, folder: Path) -> _Outputs:
    """Outputs of both networks, by the path that serves them."""
    release, held_out = work.release, work.cases.rows("test")
    draft = write_release(folder, _network_files(release, graph), release.calibration, _contents(release), "")
    rows = np.arange(len(work.cases.counts))
    done = work.progress("predicting with both networks", len(rows) + len(held_out))
    quantised, source = Predictor(draft, device="cpu"), Predictor(release, device="cpu")
    return _Outputs(work.cases.outputs(quantised, rows, done), work.cases.outputs(source, held_out, done))


def _contents(release: Release) -> CardContents:
    """A release's card without what belongs to its own files."""
    card: CardContents = release.card.copy()
    card.pop("training", None)
    return card


def _calibrated(work: _Source, outputs: _Outputs) -> _QuantizedCalibration:
    """Fit the calibration anew, and compare both networks on held-out cases."""
    release, held_out = work.release, outputs.of("test")
    method: Method = next((name for name in METHODS if name in release.card["calibration"]), "none")
    alpha = release.calibration.concentration is not None
    dropout = release.card.get("mc_dropout")
    seed = 0 if dropout is None else dropout["seed"]  # as `calibrate` has it, so that the fits differ in nothing else
    part = outputs.of(work.cases.calibrates)
    fitted, calibration, disagreement = fit_and_judge(
        part, held_out, release.head, method=method, alpha=alpha, seed=seed
    )
    predictions = (
        _pair(release.calibration.apply(*member_outputs(outputs.source, release.head))),
        _pair(calibration.apply(*member_outputs(held_out, release.head))),
    )
    cluster = clusters_of(held_out)
    change = paired_change(held_out.label_counts, *predictions, cluster=cluster)
    every = paired_changes(held_out.label_counts, *predictions, cluster=cluster)
    return _QuantizedCalibration(
        calibration,
        fitted.report,
        disagreement,
        {
            BEFORE: held_out_metrics(outputs.source, release.calibration, release.head),
            AFTER: held_out_metrics(held_out, calibration, release.head),
        },
        {name: every[name].to_dict() for name in ("L", "L_D", "agreement")},
        describe_regressions(change),
    )


def _pair(distribution: PredictiveDistribution) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    return distribution.class_probs, distribution.disagreement_probs


def _refusal(work: _Source, made: _QuantizedCalibration) -> str:
    return (
        f"the int8 network is worse than {work.release.card['name']} on {work.cases.rows('test').size:,} held-out "
        f"cells: {'; '.join(made.harms)}. Nothing was written; try other --ranges or more --images, or make it all "
        "the same with --despite-gate"
    )


def _document(work: _Source, graph: QuantizedGraph, n_images: int, made: _QuantizedCalibration) -> QuantizedDocument:
    release = work.release
    return {
        "kind": "int8",
        "source": {"name": release.card["name"], "card_sha256": release.card_sha256},
        "weight_bits": work.wish.weight_bits,
        "ranges": work.wish.ranges,
        "n_range_images": n_images,
        "n_layers": graph.n_layers,
        "changes": made.changes,
        "harms": made.harms,
    }


def _parts(
    work: _Source, graph: QuantizedGraph, outputs: _Outputs, made: _QuantizedCalibration, document: QuantizedDocument
) -> tuple[dict[str, bytes], CardContents]:
    """Files and card of the new release."""
    release, held_out = work.release, outputs.of("test")
    files = _network_files(release, graph)
    parent = _contents(release)
    probs = made.calibration.apply(*member_outputs(held_out, release.head)).class_probs
    card: CardContents = {
        **parent,
        "name": work.wish.name or f"{parent['name']} int8",
        "parent": None,  # which only a service knows by its own identifier
        "quantized": document,
        "calibration": made.fit,
        "disagreement_calibrated": made.calibration.concentration is not None,
        "disagreement": made.disagreement,
        "held_out": made.figures,
        "n_held_out": len(held_out.case_ids),
        "parity": None,  # of the network in float32
        "recall": class_recalls(held_out.label_counts, probs, list(release.classes)),
        "baseline": None,
        "shifts": [],
    }
    seen = compute_quality_features(work.cases.pixels)
    parent_reference = parent.get("reference", _UNKNOWN)
    reference = with_checks(parent_reference, outputs.quantised, seen, release.preprocessing, files)
    if "reference" in parent:  # releases of the first versions have none
        card["reference"] = reference
    if release.training is not None:
        index = _index(work.cases, release.training)
        files[INDEX_FILE], card["training"] = index.to_bytes(), index.document()
    return files, card


def _network_files(release: Release, graph: QuantizedGraph) -> dict[str, bytes]:
    files = {"network.onnx": graph.network}
    if release.head is not None:
        files[HEAD_FILE] = (release.path / HEAD_FILE).read_bytes()
    return files


def _index(cases: Cases, before: TrainingIndex) -> TrainingIndex:
    """Training index of the release with the images that recalibrated it."""
    new = [row for row in cases.rows(cases.calibrates) if cases.uses[row] == ""]
    hmacs = None if cases.hmacs is None else [cases.hmacs[row] for row in new]
    return before.with_calibration([cases.digests[row] for row in new], hmacs)


def _shifts(work: _Source, trial: Release) -> list[ShiftPoint]:
    """Rows of the card on standard shifts of held-out images."""
    test = work.cases.rows("test")
    rows = np.sort(np.random.default_rng([work.wish.seed, 1]).permutation(test)[:_SHIFTED_IMAGES])
    observer = partial(work.observer, "standard shifts")
    predictor = Predictor(trial, device="cpu")
    return shift_suite(predictor, work.cases.pixels[rows], work.cases.counts[rows], None, observer)
