"""Card of a release: data, metrics, limits, processes, quantisation and shifts."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from ml.calibration.calibrators import FitDocument
from ml.calibration.domain_adaptation import AdaptationDocument
from ml.charts.rows import EpochMetrics, ShiftPoint
from ml.images.preprocess import Orientation, PreprocessingDocument
from ml.images.standard_shifts import STANDARD_SHIFTS
from ml.metrics.jackknife import EstimateDocument
from ml.metrics.losses import Verdict
from ml.release.training_index import TrainingDocument

_BATCH_NORM = {"per-process": ", with batch normalisation over each process's part of it"}


class ProcessesDocument(TypedDict):
    """Epochs by number of training processes, with the source of batch normalisation statistics.

    ``batch_norm`` is ``per-process`` (each one's part of a batch), or None: one process, or a network without any.
    """

    processes: int
    batch_norm: str | None
    epochs: int


def processes_of(history: list[EpochMetrics]) -> list[ProcessesDocument]:
    """Which processes trained how many epochs, in their order; nothing where no epoch was trained by several."""
    rows: list[ProcessesDocument] = []
    for epoch in history:
        count, norm = epoch.get("processes", 1), epoch.get("batch_norm")
        if not rows or (rows[-1]["processes"], rows[-1]["batch_norm"]) != (count, norm):
            rows.append({"processes": count, "batch_norm": norm, "epochs": 0})
        rows[-1]["epochs"] += 1
    return rows if any(row["processes"] > 1 for row in rows) else []


def processes_sentence(rows: Sequence[ProcessesDocument]) -> str:
    """Sentence on distributed training; empty for networks trained by one process."""
    phrases = [
        f"{row['epochs']} epochs by {row['processes']}" + _BATCH_NORM.get(row["batch_norm"] or "", "") for row in rows
    ]
    return f" Number of processes that shared each batch of its training: {'; '.join(phrases)}." if phrases else ""


class SourceDocument(TypedDict):
    """The release that another one was made from, without a service: its name and the digest of its card."""

    name: str
    card_sha256: str


class QuantizedDocument(TypedDict):
    """Quantisation of a release, and its effect on held-out cells.

    ``weight_bits``: of weights, with their sign; activations have eight. ``ranges``: how those of activations were
    found, on ``n_range_images`` images of the calibration partition. ``changes``: of L, L_D and agreement from the
    source to this release, paired. ``harms``: what the gate calls harm, a sentence each, where somebody made it all
    the same.
    """

    kind: Literal["int8"]
    source: SourceDocument
    weight_bits: int
    ranges: str
    n_range_images: int
    n_layers: int
    changes: dict[str, EstimateDocument]
    harms: list[str]


_NAMES = {"L": "L", "L_D": "L_φ", "agreement": "agreement"}


def _figure(metric: EstimateDocument, *, sign: str = "", missing: str = "not measurable") -> str:
    """Value and 95 % interval, with a sign if they are a difference."""
    value, low, high = metric["value"], metric["low"], metric["high"]
    if value is None:
        return missing
    text = f"{value:{sign}.4f}"
    return text if low is None or high is None else f"{text} ({low:{sign}.4f} to {high:{sign}.4f})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown table."""
    lines = [heads, *rows]
    first, *others = ("| " + " | ".join(cells) + " |" for cells in lines)
    return "\n".join([first, "|" + "---|" * len(heads), *others])


def quantized_section(document: QuantizedDocument | None) -> str:
    """The section of the card about it; nothing where the network computes in float32."""
    if document is None:
        return ""
    source = document["source"]
    figures = {name: _figure(one, sign="+", missing="cannot be measured") for name, one in document["changes"].items()}
    changes = "; ".join(f"{_NAMES[name]} {figure}" for name, figure in figures.items())
    text = (
        f"## int8\n\nIt is the release {source['name']} (card {source['card_sha256'][:12]}…) with the weights of its "
        f"{document['n_layers']} convolutions in {document['weight_bits']} bits and what flows between them in 8, "
        f"whose ranges were found on {document['n_range_images']:,} images of the calibration partition "
        f"({document['ranges']}). Calibration and checks were fitted anew to its own outputs. From that release to "
        f"this one, on the same held-out cells: {changes} (losses: negative is better).\n"
    )
    if document["harms"]:
        text += f"\n**It is worse than that release, and was made all the same: {'; '.join(document['harms'])}.**\n"
    return text + "\n"


_MEANINGS = {shift.name: f"{shift.name} ({shift.standard})" for shift in STANDARD_SHIFTS}
_SHIFT_HEADS = ("images", "strength", "flagged", "agreement", "L", "mean disagreement", "n")


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def shifts_section(rows: Sequence[ShiftPoint], false_alarm_rate: float | None) -> str:
    """Section of a README: a sentence and a table, empty where no shift was tried."""
    if not rows:
        return ""
    cells = [
        (
            *(_MEANINGS.get(row["kind"], row["kind"]), row["strength"], f"{row['flagged']:.1%}"),
            *(_number(value) for value in (row["agreement"], row["loss"], row["mean_disagreement"])),
            f"{row['n']:,}",
        )
        for row in rows
    ]
    rate = (
        "" if false_alarm_rate is None else f", {false_alarm_rate:.1%} of familiar ones as measured on held-out cells"
    )
    return (
        "## Under shift\n\n"
        "What other microscopes, stains and cameras do to held-out cells, and how many it flags as unlike its own"
        f"{rate}. A mild shift is a tenth to a half of the standard one, at random.\n\n"
        f"{_table(_SHIFT_HEADS, cells)}\n\n"
    )


class ClassDocument(TypedDict):
    """A class of the reading task: code, name for people, key on the keyboard, heading in the list of classes."""

    code: str
    name: str
    shortcut: str
    group: NotRequired[str]


class DataDocument(TypedDict):
    """Where a release's cells come from: cases of each partition, and whether these were split by patient or case.

    ``class_counts``: cells of each class (in the order of the classes) by partition. ``annotators``: who labelled them,
    null where their names are not known.
    """

    name: str
    source: str
    partitions: dict[str, int]
    split_by: str
    class_counts: dict[str, list[int]]
    annotators: list[str] | None


RecallDocument = TypedDict("RecallDocument", {"class": str, "recall": float | None, "n_cells": int, "n_labels": int})
"""Recall of one class on held-out cells, and how many cells and labels of it there were."""


class BaselineDocument(TypedDict):
    """The simple baseline beside the network on the same cells; ``change`` is network minus baseline.

    ``judged_on`` is ``test``, or ``valid`` where no cell was held out.
    """

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
    """Held-out performance of the disagreement probability, and the constant that may replace it.

    ``verdict`` compares the network's own with a constant: better, no better so far, worse. ``constant`` is None where
    the network's own is served.
    """

    verdict: Verdict
    constant: float | None


class ParityDocument(TypedDict):
    """Differences between the exported and the trained network on n images."""

    n: int
    max_probability_difference: float
    max_relative_logit_difference: float


class ReferenceDocument(TypedDict):
    """Reference statistics of training data: stain colours, class shares, squared feature distances.

    ``false_alarm_rate``: expected share of such images that are flagged as unlike the release's.
    Distances are None where there were too few cells.
    """

    stain_mean: list[float]
    stain_sd: list[float]
    n_stain: int
    label_share: list[float]
    n_labels: int
    false_alarm_rate: NotRequired[float | None]
    distance_sq_mean: NotRequired[float | None]
    distance_sq_sd: NotRequired[float | None]
    n_distance: NotRequired[int | None]


class RecalibrationDocument(TypedDict):
    """Recalibration of a candidate; the gate's result is the service's (``app.releases.gate_verdicts``).

    ``kept_for_sets``: cases of the calibration partition that neither this fit nor an earlier one has seen.
    """

    label_snapshot: str
    change_plan_sha256: str
    gate: Mapping[str, object]
    method: str
    kept_for_sets: int


class CardContents(TypedDict):
    """A release's card before its files are listed.

    ``held_out`` has metrics by name, for each step of the calibration, or for champion and candidate. Keys that may be
    missing belong to some releases only.
    """

    name: str
    classes: list[ClassDocument]
    preprocessing: PreprocessingDocument
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
    held_out: dict[str, dict[str, EstimateDocument]]
    n_held_out: int
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


class Card(CardContents):
    """card.json: digests of all other files of a release, and what it says of itself."""

    version: int
    files: dict[str, str]


def _disagreement_paragraph(card: CardContents) -> str:
    judged = card.get("disagreement")
    if judged is not None and judged["constant"] is not None:
        return (
            f"**The disagreement probability of this release is {judged['constant']:.3f} for every cell**, the rate at "
            "which two experts differed on the cells that it was calibrated on: what the network said of single cells "
            "was worse than this constant on held-out cells. It is stated apart from the class probabilities, which "
            "are the network's own; once a cell has labels, its disagreement probability follows from them."
            + _adaptation_text(card)
        )
    if card["disagreement_calibrated"]:
        words = {"better": "", "no better so far": " It is no better than a constant so far."}
        words["worse"] = " **It is worse than a constant for all cells.**"
        return (
            "The disagreement probability says how likely two experts are to give this cell different labels. "
            "It was learned from cells that several experts had labelled."
            + ("" if judged is None else words[judged["verdict"]])
            + refinement_sentence(card["calibration"])
            + _adaptation_text(card)
        )
    return (
        "**The disagreement probability of this release is not calibrated.** Every cell it was trained and "
        "calibrated on carries one label, and one label says nothing about how often two experts differ. What is "
        "reported as disagreement follows from the class probabilities alone, as if they were the truth; labels "
        "that arrive do not change the prediction."
    )


_READ = {
    "head": " The concentration also reads how sure the network is.",
    "temperature": " The temperature of the class probabilities depends on how sure the network is.",
    "head and temperature": " Temperature and concentration also read how sure the network is.",
}


def refinement_sentence(fit: FitDocument) -> str:
    """Sentences on refinements beyond temperature and head, each after a space; empty without any."""
    refinement = fit.get("refinement", {})
    text = _READ.get(refinement.get("variant", ""), "")
    if refinement.get("map", "none") != "none":
        text += " It was calibrated once more by pairs of labels, and class probabilities and posteriors agree with it."
    return text


def adaptation_sentence(change: AdaptationDocument) -> str:
    """One or two sentences on an adaptation to other annotators."""
    text = (
        f"It was adapted to other annotators by {change['n_double_reads']:,} cells that they read twice, and differed "
        f"on by {change['seen']:.3f}: its mean disagreement there went from {change['mean_before']:.3f} to "
        f"{change['mean_after']:.3f}, its temperature from {change['temperature_before']:.3f} to "
        f"{change['temperature_after']:.3f}; log concentrations rose by {change['rise']:.2f}, the logit of φ was "
        f"multiplied by {change['slope']:.2f} and moved by {change['level']:+.2f}."
    )
    if change["constant"] is None:
        return text
    return f"{text} Their labels do not show that this is better than a constant, which is stated instead."


def _adaptation_text(card: CardContents) -> str:
    adaptation, source = card["calibration"].get("adaptation"), card.get("adapted_from")
    if adaptation is None:
        return ""
    origin = "" if source is None else f" It was the release {source['name']} (card {source['card_sha256'][:12]}…)."
    return f"{origin} {adaptation_sentence(adaptation)}"


def _ensemble_sentence(card: CardContents) -> str:
    dropout = card.get("mc_dropout")
    if dropout is None:
        return ""
    return f" Predictions are means of {dropout['samples']} samples of the network's head (dropout)."


_WORDS = {
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
CARD_METRICS = tuple(_WORDS)


def _metrics_table(card: CardContents) -> str:
    steps = list(card["held_out"])
    rows = []
    for name, meaning in _WORDS.items():
        figures = [card["held_out"][step].get(name) for step in steps]
        if not any(figures) and any(card["held_out"].values()):
            continue  # no step has it
        cells = ["–" if figure is None else _figure(figure) for figure in figures]
        rows.append([f"{name}: {meaning}", *cells])
    return _table(["measure", *steps], rows)


def _training_paragraph(card: CardContents) -> str:
    training = card.get("training")
    if training is None:
        return "Which cells it was trained on is unknown: it carries no digests of them."
    patients = "Whose they were is unknown: no service had exported them with digests of their patients."
    if training["n_patients"] is not None:
        patients = f"They are of {training['n_patients']:,} patients (a cell without a patient counts as one)."
    return (
        f"It was made with {training['n_images']:,} images, whose digests it carries (`training.index`), so that they "
        f"are left out wherever it is judged. {patients}"
    )


def _annotators_sentence(card: CardContents) -> str:
    names = card["data"]["annotators"]
    if names is None:
        return "Who labelled them is not known."
    return f"Labelled by {len(names)} annotators: {', '.join(names)}."


def _classes_table(card: CardContents) -> str:
    """Classes with the cells of each partition, and recall where cells were held out."""
    counts, recall = card["data"]["class_counts"], {row["class"]: row for row in card.get("recall", [])}
    parts = [name for name in ("train", "valid", "calibration", "test") if name in counts]
    rows = []
    for k, info in enumerate(card["classes"]):
        cells = [f"{counts[name][k]:,}" for name in parts]
        if recall:
            row = recall[info["code"]]
            cells += ["–" if row["recall"] is None else f"{row['recall']:.2f}", f"{row['n_cells']:,}"]
        rows.append([f"{info['name']} (`{info['code']}`)", *cells])
    return _table(["class", *parts, *(["recall", "of held-out cells"] if recall else [])], rows)


def baseline_verdict(document: BaselineDocument) -> str:
    """Sentence on the comparison with the simple baseline."""
    change, n = document["change"]["L"], document["n_cells"]
    where = f"{document['name']}, on {n:,} cells of the partition {document['judged_on']}"
    if change["value"] is None or change["low"] is None or change["high"] is None:
        return f"The network cannot be judged beside the simple baseline ({where}): too few cells."
    word = "no better than the simple baseline so far"
    if change["low"] > 0:
        word = "WORSE than the simple baseline: use that one, or collect more cells"
    if change["high"] < 0:
        word = "better than the simple baseline"
    figures = f"change of L {_figure(change, sign='+')}"
    return f"The network is {word} ({where}; {figures}, negative is better)."


def _baseline_paragraph(card: CardContents) -> str:
    document = card.get("baseline")
    return "" if document is None else f"\n{baseline_verdict(document)}\n"


def _shifts(card: CardContents) -> str:
    return shifts_section(card.get("shifts", []), card.get("reference", {}).get("false_alarm_rate"))


def _input_sentence(preprocessing: PreprocessingDocument) -> str:
    colour = "colour" if preprocessing["channels"] == 3 else "grey"
    square = "the largest central square"
    if preprocessing["crop"] is not None:
        square = f"the central {preprocessing['crop']} × {preprocessing['crop']} px (all of a smaller image)"
    side = preprocessing["size"]
    return f"One {colour} image of one cell. Of it, {square} is averaged down to {side} × {side} px."


def readme_text(card: CardContents) -> str:
    """The card as Markdown, for people."""
    parts = ", ".join(f"{name} {count:,}" for name, count in sorted(card["data"]["partitions"].items()))
    limits = "\n".join(f"- {sentence}" for sentence in card["limits_of_use"])
    together = processes_sentence(card.get("processes", []))
    network = f"Network `{card['network']}`, seed {card['seed']}.{_ensemble_sentence(card)}{together}"
    by = "patient" if card["data"]["split_by"] == "patient" else "cell (the source names no patients)"
    return f"""# Release {card["name"]}

{_input_sentence(card["preprocessing"])} The release answers with a probability for each class and with the
probability that two experts would disagree.

{_disagreement_paragraph(card)}

## Classes

{_classes_table(card)}

## Where it comes from

Data: {card["data"]["source"]}. Cells: {parts}; split by {by}. Licence of the data: {card["licence"]}.
{_annotators_sentence(card)} {network}

{_training_paragraph(card)}

## How good it was on {card["n_held_out"]:,} cells it had never seen

With 95 % intervals; smaller is better except for agreement and skill.

{_metrics_table(card)}
{_baseline_paragraph(card)}
{quantized_section(card.get("quantized"))}{_shifts(card)}## Limits of use

{limits}
"""
