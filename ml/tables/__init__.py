"""LABELS and PREDICTIONS tables and their evaluation."""

from ml.tables.comparison import Comparison, compare
from ml.tables.evaluate import evaluate, evaluate_findings, rank_second_reads
from ml.tables.files import (
    Labels,
    Predictions,
    TableError,
    TableSource,
    read_labels,
    read_predictions,
    read_table,
    write_table,
)
from ml.tables.matching import EvaluationOptions, read_annotations

__all__ = [
    "Comparison",
    "EvaluationOptions",
    "Labels",
    "Predictions",
    "TableError",
    "TableSource",
    "compare",
    "evaluate",
    "evaluate_findings",
    "rank_second_reads",
    "read_annotations",
    "read_labels",
    "read_predictions",
    "read_table",
    "write_table",
]
