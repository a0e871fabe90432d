"""Card of a release: data, metrics, limits, processes, quantisation and shifts."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict

from ml.calibration.calibrators import FitDocument
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.charts.rows import EpochMetrics, ShiftPoint
from ml.images.preprocess import Orientation, PreprocessingDocument
from ml.images.standard_shifts import STANDARD_SHIFTS
from ml.messages import messages
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.losses import Verdict
from ml.metrics.second_order import SecondOrderError
from ml.release.ood_detector import FALSE_ALARM_RATE
from ml.release.training_index import TrainingDocument

if TYPE_CHECKING:
    from jinja2 import Environment


class ProcessesDocument(TypedDict):
    """Epochs by number of training processes."""

    processes: int
    batch_norm: str | None
    epochs: int


def processes_of(history: list[EpochMetrics]) -> list[ProcessesDocument]:
    """Epochs by processes, empty if only one process trained."""
    rows: list[ProcessesDocument] = []
    for epoch in history:
        count, norm = epoch.get("processes", 1), epoch.get("batch_norm")
        if not rows or (rows[-1]["processes"], rows[-1]["batch_norm"]) != (count, norm):
            rows.append({"processes": count, "batch_norm": norm, "epochs": 0})
        rows[-1]["epochs"] += 1
    return rows if any(row["processes"] > 1 for row in rows) else []


class SourceDocument(TypedDict):
    """Parent release: name and digest of the card."""

    name: str
    card_sha256: str


class QuantizedDocument(TypedDict):
    """Quantisation of a release, with paired changes and the gate's harms."""

    kind: Literal["int8"]
    source: SourceDocument
    weight_bits: int
    ranges: str
    n_range_images: int
    n_layers: int
    changes: dict[str, EstimateDocument]
    harms: list[str]


class ClassDocument(TypedDict):
    """A class: code, name, keyboard shortcut and heading."""

    code: str
    name: str
    shortcut: str
    group: NotRequired[str]


class DataDocument(TypedDict):
    """Origin of a release's cells: partitions, and split by patient or case."""

    name: str
    source: str
    partitions: dict[str, int]
    split_by: str
    class_counts: dict[str, list[int]]
    annotators: list[str] | None


RecallDocument = TypedDict("RecallDocument", {"class": str, "recall": float | None, "n_cells": int, "n_labels": int})
"""Recall of one class on held-out cells, and how many cells and labels of it there were."""


class BaselineDocument(TypedDict):
    """The baseline on the same cells; ``change`` is network − baseline."""

    name: str
    judged_on: str
    n_cells: int
    baseline: dict[str, EstimateDocument]
    network: dict[str, EstimateDocument]
    change: dict[str, EstimateDocument]


class DropoutDocument(TypedDict):
    """Members of a Monte-Carlo dropout ensemble, and the seed of their masks."""

    samples: int
    seed: int


class DisagreementDocument(TypedDict):
    """Held-out verdict on the disagreement probability, and on pairs of labels where there are enough."""

    verdict: Verdict
    constant: float | None
    second_order: NotRequired[SecondOrderError]


class ParityDocument(TypedDict):
    """Differences between the exported and the trained network on n images."""

    n: int
    max_probability_difference: float
    max_relative_logit_difference: float


class ReferenceDocument(TypedDict):
    """Reference statistics of the training data, None with too few cells."""

    stain_mean: list[float]
    stain_sd: list[float]
    n_stain: int
    label_share: list[float]
    n_labels: int  # labelled cells
    false_alarm_rate: NotRequired[float | None]
    distance_sq_mean: NotRequired[float | None]
    distance_sq_sd: NotRequired[float | None]
    n_distance: NotRequired[int | None]


class RecalibrationDocument(TypedDict):
    """Recalibration of a candidate, with the gate's verdict."""

    label_snapshot: str
    change_plan_sha256: str
    gate: Mapping[str, object]
    method: str
    kept_for_sets: int


class AdoptedDocument(TypedDict):
    """A model made elsewhere: where its outputs come from, and the data of every number on the card."""

    kind: Literal["onnx", "module", "table"]
    source: str
    source_sha256: str
    output: Literal["logits", "probabilities"]
    features: str
    feature_names: list[str]
    # of case ids, pictures, groups and label counts
    data_sha256: str
    n_left_out: int


class CardContents(TypedDict):
    """A release's card without its files.

    ``held_out`` is by step; ``measured_network_sha256`` is of the network on which the card's metrics were measured.
    """

    name: str
    classes: list[ClassDocument]
    # None of a release that was adopted from a table and reads no images
    preprocessing: PreprocessingDocument | None
    orientation: NotRequired[Orientation]
    network: str
    seed: int
    processes: NotRequired[list[ProcessesDocument]]
    data: DataDocument
    licence: str
    calibration: FitDocument
    mc_dropout: NotRequired[DropoutDocument | None]
    disagreement_calibrated: bool
    disagreement: NotRequired[DisagreementDocument | None]
    constant_concentration: NotRequired[bool]  # left out if not
    held_out: dict[str, dict[str, EstimateDocument]]
    n_held_out: int
    measured_network_sha256: NotRequired[str]
    parity: ParityDocument | None
    parent: NotRequired[str | None]
    versions: dict[str, str]
    limits_of_use: Sequence[str]
    reference: NotRequired[ReferenceDocument]
    shifts: NotRequired[list[ShiftPoint]]
    training: NotRequired[TrainingDocument]
    recall: NotRequired[list[RecallDocument]]
    baseline: NotRequired[BaselineDocument | None]
    recalibration: NotRequired[RecalibrationDocument]
    adapted_from: NotRequired[SourceDocument]
    quantized: NotRequired[QuantizedDocument]
    adopted: NotRequired[AdoptedDocument]


LIMITS_OF_USE = messages(
    (
        "For research. Not a medical device: not to be used for diagnosis or treatment.",
        "Valid for images like those it was trained on: same stain, microscope, camera, magnification and framing.",
        "Cells of classes that are not listed get one of the listed classes all the same.",
    )
)


class Card(CardContents):
    """card.json: description of a release, and digests of its files."""

    version: int
    files: dict[str, str]


def has_measured_metrics(card: Card) -> bool:
    """Whether the metrics were measured on this network; otherwise they are stated by the maker."""
    return card.get("measured_network_sha256") == card["files"].get("network.onnx")


def measured_reference(card: Card) -> ReferenceDocument | None:
    """Reference statistics without those of another network."""
    if "reference" not in card or has_measured_metrics(card):
        return card.get("reference")
    unknown: ReferenceDocument = {**card["reference"], "distance_sq_mean": None, "distance_sq_sd": None}
    return {**unknown, "n_distance": None, "false_alarm_rate": FALSE_ALARM_RATE}


_METRICS = {
    "agreement": "share of the experts who name the most probable class",
    "L": "squared error of the class probabilities for one expert's label (0 best, 2 worst)",
    "skill": "by how much L is smaller than that of the class frequencies (1 best, 0 no better)",
    "EL": "the part of L that better probabilities could avoid",
    "CE": "calibration error of the class probabilities",
    "L_D": "squared error of the disagreement probability",
    "skill_D": "by how much L_D is smaller than that of one constant for all cells (1 best, 0 no better)",
    "CE_D": "calibration error of the disagreement probability",
}


#: Metrics that go on a card.
CARD_METRICS = tuple(_METRICS)


_SHIFTS = {shift.name: shift.standard for shift in STANDARD_SHIFTS}


CONSTANT_CONCENTRATION = "One concentration for all cells: disagreement ranks cells as the class probabilities do."


def readme_text(card: Card) -> str:
    """The card as Markdown for people, behind the front matter of a Hugging Face model card."""
    stated, template = not has_measured_metrics(card), _templates().get_template("readme.md")
    constant = CONSTANT_CONCENTRATION if card.get("constant_concentration") else ""
    text = template.render(card=card, metrics=_METRICS, shifts=_SHIFTS, stated=stated, constant=constant)
    return front_matter(card) + str(text)


#: Identifiers of licences in front matter; any other text is the name of another one.
_LICENCES = {"CC BY 4.0": "cc-by-4.0", "CC0 1.0": "cc0-1.0", "MIT": "mit", "Apache-2.0": "apache-2.0"}
_UNKNOWN_LICENCES = {"", "not stated"}


def front_matter(card: Card) -> str:
    """YAML of a Hugging Face model card, with what the card knows; the values are JSON, which YAML contains."""
    fields: list[tuple[str, object]] = []
    if card["licence"] in _LICENCES:
        fields.append(("license", _LICENCES[card["licence"]]))
    elif card["licence"] not in _UNKNOWN_LICENCES:
        fields += [("license", "other"), ("license_name", card["licence"])]
    fields += [("library_name", "secondread"), ("pipeline_tag", "image-classification")]
    fields.append(("tags", ["onnx", "cell-images", "calibration", "annotator-disagreement"]))
    values = list(card["held_out"].values())[-1] if card["held_out"] else {}
    metrics = [
        {"type": name, "name": meaning, "value": round(metric["value"], 4)}
        for name, meaning in _METRICS.items()
        if (metric := values.get(name)) is not None and metric["value"] is not None
    ]
    if metrics:
        cells = {"type": "held-out-cells", "name": f"{card['n_held_out']:,} held-out cells"}
        result = {"task": {"type": "image-classification"}, "dataset": cells, "metrics": metrics}
        fields.append(("model-index", [{"name": card["name"], "results": [result]}]))
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields]
    return f"---\n{''.join(lines)}---\n\n"


def adaptation_sentence(change: AdaptationDocument) -> str:
    """One or two sentences on an adaptation to other annotators."""
    return _sentence("adaptation", change)


def refinement_sentence(fit: FitDocument) -> str:
    """Sentences on refinements beyond temperature and head; empty without any."""
    return _sentence("refinement", fit)


def second_order_sentence(error: SecondOrderError) -> str:
    """Sentence on pairs of labels beside those that the release expects."""
    return _sentence("second_order", error)


def baseline_verdict(document: BaselineDocument) -> str:
    """Sentence on the comparison with the simple baseline."""
    return _sentence("baseline", document)


def _sentence(macro: str, document: object) -> str:
    return str(getattr(_templates().get_template("sentences.md").module, macro)(document)).strip()


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
