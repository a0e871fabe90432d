"""LABELS and PREDICTIONS tables and their evaluation."""

from ml.tables.comparison import Comparison, compare
from ml.tables.evaluate import EvaluationOptions, evaluate, evaluate_findings, rank_second_reads
from ml.tables.files import Predictions, read_annotations, read_labels, read_predictions
from ml.tables.reading import TableError, TableSource, read_table, write_table

__all__ = [
    "Comparison",
    "EvaluationOptions",
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
