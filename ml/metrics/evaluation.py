"""Evaluation as a typed result: metrics, classes, reliability tables, warnings."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from typing import Any, TypedDict

from ml.metrics.jackknife import Estimate, EstimateDocument
from ml.util.arrays import EqualByValue

# of a representation: more would scroll a notebook or a debugger away
_MOST_LINES = 30


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


class MetricsDocument(TypedDict):
    """Metrics and what they were computed from, as JSON values."""

    n_cases: int
    n_labels: int
    n_classes: int
    n_bins: int
    debias: str
    metrics: dict[str, EstimateDocument]
    warnings: list[str]


class EvaluationDocument(MetricsDocument):
    """An ``Evaluation`` as JSON values, the document of ``secondread evaluate --json``."""

    classes: list[ClassEvaluationDocument]
    class_bins: list[BinDocument]
    disagreement_bins: list[BinDocument]


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
        calibration_loss: its part of CL; None without a label, or if no bin holds two cases to compare.
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


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation(EqualByValue):
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
    >>> print(evaluation.summary().splitlines()[0])
    2 cases, 6 labels, 2 classes
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

    def summary(self) -> str:
        """Return a table of the metrics with their intervals as text, and the warnings."""
        return metrics_table(self.to_dict())

    def to_frame(self) -> Any:
        """Return a pandas table of the metrics: a row each, with the numbers of its ``Estimate``.

        Raises:
            ImportError: pandas is not installed.
        """
        return estimates_frame(self.metrics)

    def __repr__(self) -> str:
        """The summary: at most 30 lines."""
        lines = self.summary().splitlines()
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES - 1 :] = [f"… {len(lines) - _MOST_LINES + 1} more lines: summary()"]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The summary as a table, for notebooks."""
        metrics = self.to_dict()["metrics"]
        cells = ((name, _number(m["value"]), _interval(m), f"{m['n']:,}") for name, m in metrics.items())
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        head = "<tr><th>metric</th><th>value</th><th>95 % interval</th><th>cases</th></tr>"
        caption = f"{self.n_cases:,} cases, {self.n_labels:,} labels, {self.n_classes} classes"
        warned = "".join(f"<p>warning: {escape(text)}</p>" for text in self.warnings)
        return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>{warned}"


def estimates_frame(estimates: Mapping[str, Estimate]) -> Any:
    """Return a pandas table of estimates by metric: a row each, with the numbers of its ``Estimate``.

    Raises:
        ImportError: pandas is not installed.
    """
    import pyarrow as pa

    whole = {"n": pa.int64(), "dropped": pa.int64(), "clipped": pa.bool_()}
    columns = {"metric": pa.array(list(estimates))}
    for name in (field.name for field in fields(Estimate) if field.name not in {"model_assisted", "p_of_fall"}):
        values = [getattr(estimate, name) for estimate in estimates.values()]
        columns[name] = pa.array(values, whole.get(name, pa.float64()))
    return pa.table(columns).to_pandas().set_index("metric")


def metrics_table(document: MetricsDocument) -> str:
    """Text table of an evaluation, with intervals, for people."""
    lines = [f"{document['n_cases']:,} cases, {document['n_labels']:,} labels, {document['n_classes']} classes"]
    width = max(12, 1 + max(map(len, document["metrics"]), default=0))
    others = any(row["low_new"] is not None for row in document["metrics"].values())
    head = f"{'for new annotators':>22}" if others else ""
    lines.append(f"{'metric':<{width}}{'value':>10}{'95 % interval':>22}{head}{'cases':>9}{'dropped':>9}")
    for name, row in document["metrics"].items():
        new = "–" if row["low_new"] is None else f"{row['low_new']:.4f} to {row['high_new']:.4f}"
        also = f"{new:>22}" if others else ""
        lines.append(
            f"{name:<{width}}{_number(row['value']):>10}{_interval(row):>22}{also}{row['n']:>9,}{row['dropped']:>9,}"
        )
    return "\n".join(lines + [f"warning: {text}" for text in document["warnings"]])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _interval(row: EstimateDocument) -> str:
    return "–" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"
