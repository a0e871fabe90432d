"""LABELS and PREDICTIONS tables and their evaluation."""

from ml.tables.evaluate import evaluate, evaluate_findings
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
from ml.tables.matching import Options

__all__ = [
    "Labels",
    "Options",
    "Predictions",
    "TableError",
    "TableSource",
    "evaluate",
    "evaluate_findings",
    "read_labels",
    "read_predictions",
    "read_table",
    "write_table",
]
