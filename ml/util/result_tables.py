"""Text tables of evaluations and comparisons, for people; free of NumPy, so that a command starts fast."""

from typing import TYPE_CHECKING

from ml.util.number_format import change, probability

if TYPE_CHECKING:
    from ml.metrics.evaluation import MetricsDocument
    from ml.metrics.jackknife import EstimateDocument
    from ml.tables.comparison import ComparisonDocument


def metrics_table(document: "MetricsDocument") -> str:
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
            f"{name:<{width}}{number_cell(row['value']):>10}{interval_cell(row):>22}{also}{row['n']:>9,}{row['dropped']:>9,}"
        )
    return "\n".join(lines + [f"warning: {text}" for text in document["warnings"]])


def number_cell(value: float | None) -> str:
    """Write a number with four digits, or a dash."""
    return "–" if value is None else f"{value:.4f}"


def interval_cell(row: "EstimateDocument") -> str:
    """Write the 95 % interval, or a dash."""
    return "–" if row["low"] is None else f"{row['low']:.4f} to {row['high']:.4f}"


def comparison_table(document: "ComparisonDocument") -> str:
    """Text table of two predictions of the same cases."""
    lines = [f"compared on {document['n_cases']:,} cases that both predict; change: second less first"]
    others = any(row["low_new"] is not None for row in document["changes"].values())
    head = f"{'for new annotators':>24}" if others else ""
    lines.append(f"{'metric':<12}{'first':>10}{'second':>10}{'change':>10}{'95 % interval':>24}{head}{'cases':>9}")
    for name, row in document["changes"].items():
        values = [document[side].get(name, row)["value"] for side in ("first", "second")]
        between = "–" if row["low"] is None else f"{change(row['low'], 4)} to {change(row['high'], 4)}"
        new = "–" if row["low_new"] is None else f"{change(row['low_new'], 4)} to {change(row['high_new'], 4)}"
        also = f"{new:>24}" if others else ""
        value_cells = "".join(f"{probability(value, 4):>10}" for value in values)
        lines.append(f"{name:<12}{value_cells}{change(row['value'], 4):>10}{between:>24}{also}{row['n']:>9,}")
    if document["left_out"]:
        lines.append(f"warning: {len(document['left_out']):,} labelled cases are not predicted by the second")
    return "\n".join(lines)
