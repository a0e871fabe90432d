"""Tables with several findings, split into one table per finding."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ml.tables.files import Place, text_column


def by_finding(table: pa.Table, place: Place) -> dict[str, tuple[pa.Table, Place]]:
    """Part a table by its column ``finding``.

    Columns of classes that are empty in all rows of a finding are left out there: findings may have other classes.

    Args:
        table: LABELS or PREDICTIONS.
        place: what messages call it.

    Returns:
        The rows of each finding, in order of first appearance, and what messages call them.

    Raises:
        TableError: a finding is missing.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(text_column(table, "finding", place)):
        rows.setdefault(name, []).append(row)
    return {name: _part(table, place, np.array(chosen, dtype=np.intp)) for name, chosen in rows.items()}


def _part(table: pa.Table, place: Place, rows: npt.NDArray[np.intp]) -> tuple[pa.Table, Place]:
    part = table.take(pa.array(rows))
    used = [
        name
        for name in part.column_names
        if not name.startswith(("prob:", "count:")) or part.column(name).null_count < len(rows)
    ]
    return part.select(used), place.part(rows)
