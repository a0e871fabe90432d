"""Annotations of a table of any library, of a matrix and of names are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from ml.annotations import Annotations
from ml.tables import TableError, read_annotations, write_table

TABLE: dict[str, Any] = {
    "case_id": ["b", "a", "b", "c", "a"],
    "annotator": ["sam", "ria", "ria", "tom", "sam"],
    "label": ["mono", "blast", "blast", "mono", "blast"],
}
# cases b, a, c by ria, sam, tom in the classes blast, mono
MATRIX = np.array([[0, 1, -1], [0, 0, -1], [-1, -1, 1]])
KINDS = {
    "mapping": dict,
    "numpy": lambda table: {name: np.array(values) for name, values in table.items()},
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_any_library_is_the_matrix(kind: str) -> None:
    annotations = read_annotations(KINDS[kind](TABLE))
    assert annotations.case_ids == ("b", "a", "c")
    assert annotations.annotators == ("ria", "sam", "tom")
    assert annotations.classes == ("blast", "mono")
    matrix = Annotations.of_matrix(MATRIX, 2)
    assert annotations.counts().tolist() == matrix.counts().tolist() == [[1, 1], [2, 0], [0, 1]]
    assert (
        annotations.shares.toarray().tolist() == matrix.shares.toarray().tolist() == [[2, 2, 0], [2, 2, 0], [0, 0, 1]]
    )
    assert (annotations.one_hot != matrix.one_hot).nnz == 0


def test_a_file_is_its_table(tmp_path: Path) -> None:
    write_table(TABLE, tmp_path / "labels.csv")
    assert read_annotations(tmp_path / "labels.csv") == read_annotations(TABLE)


def test_some_cases_get_other_numbers() -> None:
    some = read_annotations(TABLE).renumbered(np.array([1, -1, 0]), 2)
    assert some.counts().tolist() == [[0, 1], [1, 1]]
    assert some.annotators == ("ria", "sam", "tom")
    assert some.case_ids == ()


def test_a_table_without_annotators_or_of_several_findings_is_refused() -> None:
    with pytest.raises(TableError, match="LABELS: a column 'annotator' is needed"):
        read_annotations({"case_id": ["a"], "count:x": [1], "count:y": [0]})
    with pytest.raises(TableError, match="LABELS: the table has several findings: take one at a time"):
        read_annotations(TABLE | {"finding": ["mass"] * 5})
