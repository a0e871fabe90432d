"""Evaluation as a typed result: metrics, classes, reliability tables, warnings."""

from dataclasses import dataclass
from typing import TypedDict

from ml.metrics.jackknife import Estimate, EstimateDocument


class BinDocument(TypedDict):
    """A ``ReliabilityBin`` as JSON values."""

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None


#: A ``ClassEvaluation`` as JSON values.
ClassEvaluationDocument = TypedDict(
    "ClassEvaluationDocument", {"class": str, "CL": float | None, "EL": float | None, "bins": list[BinDocument]}
)


class EvaluationDocument(TypedDict):
    """An ``Evaluation`` as JSON values, the document of ``secondread evaluate --json``."""

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, EstimateDocument]
    classes: list[ClassEvaluationDocument]
    class_bins: list[BinDocument]
    disagreement_bins: list[BinDocument]
    warnings: list[str]


@dataclass(frozen=True)
class ReliabilityBin:
    """One row of a reliability diagram.

    Attributes:
        low: lower edge of the bin.
        high: upper edge.
        n: cases in it.
        mean_prob: mean probability; None in an empty bin.
        mean_freq: mean label frequency; None in an empty bin.
        freq_low: lower end of the 95 % interval of the mean frequency; None in bins with one member.
        freq_high: upper end.
    """

    low: float
    high: float
    n: int
    mean_prob: float | None
    mean_freq: float | None
    freq_low: float | None
    freq_high: float | None

    def to_dict(self) -> BinDocument:
        """Return it as JSON values."""
        return {
            "low": self.low,
            "high": self.high,
            "n": self.n,
            "mean_prob": self.mean_prob,
            "mean_freq": self.mean_freq,
            "freq_low": self.freq_low,
            "freq_high": self.freq_high,
        }


@dataclass(frozen=True)
class ClassEvaluation:
    """Evaluation of the probabilities of one class.

    Attributes:
        name: of the class.
        calibration_loss: its part of CL; None without a label.
        epistemic_loss: its part of EL; None without two labels of a case.
        bins: its reliability diagram.
    """

    name: str
    calibration_loss: float | None
    epistemic_loss: float | None
    bins: tuple[ReliabilityBin, ...]

    def to_dict(self) -> ClassEvaluationDocument:
        """Return it as JSON values."""
        return {
            "class": self.name,
            "CL": self.calibration_loss,
            "EL": self.epistemic_loss,
            "bins": [row.to_dict() for row in self.bins],
        }


@dataclass(frozen=True)
class Evaluation:
    """Every metric over one set of predictions.

    Attributes:
        n_cases: cases, with labels or without.
        n_labels: labels.
        n_classes: K.
        n_bins: equal-width bins of [0, 1].
        debias: form of CL: pair, paper or none.
        metrics: estimates by name.
        classes: one entry per class.
        class_bins: reliability diagram of all classes pooled.
        disagreement_bins: reliability diagram of the disagreement of two annotators.
        warnings: what a reader of the estimates must know.

    >>> from ml.metrics import evaluate
    >>> evaluation = evaluate([[2, 1], [0, 3]], [[0.7, 0.3], [0.2, 0.8]], classes=["benign", "malignant"])
    >>> round(evaluation.metrics["L"].value, 4), evaluation.classes[1].name, evaluation.to_dict()["n_labels"]
    (0.2633, 'malignant', 6)
    """

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, Estimate]
    classes: tuple[ClassEvaluation, ...]
    class_bins: tuple[ReliabilityBin, ...]
    disagreement_bins: tuple[ReliabilityBin, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> EvaluationDocument:
        """Return the JSON document of ``secondread evaluate --json``."""
        return {
            "n_cases": self.n_cases,
            "n_labels": self.n_labels,
            "n_classes": self.n_classes,
            "n_bins": self.n_bins,
            "debias": self.debias,
            "metrics": {name: estimate.to_dict() for name, estimate in self.metrics.items()},
            "classes": [row.to_dict() for row in self.classes],
            "class_bins": [row.to_dict() for row in self.class_bins],
            "disagreement_bins": [row.to_dict() for row in self.disagreement_bins],
            "warnings": list(self.warnings),
        }
