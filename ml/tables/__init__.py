"""LABELS and PREDICTIONS, on disk or in memory, and their evaluation."""

from ml.tables.evaluate import evaluate
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

__all__ = [
    "Labels",
    "Predictions",
    "TableError",
    "TableSource",
    "evaluate",
    "read_labels",
    "read_predictions",
    "read_table",
    "write_table",
]
