"""A table whose columns stand in another order gives the same result or an error, never another number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import secondread
from tests.support.tables import labels_table

CLASSES = ["blue", "green", "red"]
RNG = np.random.default_rng(3)
F = RNG.dirichlet([1, 1, 1], 40)
Y = np.stack([RNG.multinomial(RNG.integers(0, 4), f) for f in F])
KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "arrow": pa.table,
    "mapping": dict,
}
LOSSES = ["expected_squared_loss", "epistemic_loss", "calibration_loss", "dispersion_loss"]


def columns(values: Any, prefix: str = "", order: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    return {prefix + CLASSES[k]: values[:, k] for k in order}


def numbers(result: Any) -> dict[str, float | None]:
    document = result.to_dict()
    metrics = {
        f"{name} {part}": row[part] for name, row in document["metrics"].items() for part in ("value", "se", "n")
    }
    return metrics | {f"CL of {row['class']}": row["CL"] for row in document["classes"]}


def same(found: Any, expected: Any) -> None:
    assert numbers(found) == {
        name: value if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)
        for name, value in numbers(expected).items()
    }


#: Kinds of tables and orders of their columns.
ORDERED = [("pandas", (2, 0, 1)), ("polars", (1, 0, 2)), ("arrow", (2, 1, 0)), ("mapping", (0, 2, 1))]


@pytest.mark.parametrize(("kind", "order"), ORDERED)
def test_histograms_and_probabilities_meet_by_class(kind: str, order: tuple[int, ...]) -> None:
    make = KINDS[kind]
    y, f = make(columns(Y, "count:")), make(columns(F, "prob:", order))
    same(secondread.evaluate(y, f), secondread.metrics.evaluate(Y, F, classes=CLASSES))
    for name in LOSSES:
        loss = getattr(secondread, name)
        assert loss(y, f).value == pytest.approx(loss(Y, F).value, abs=1e-12), name


PATIENTS = [f"p{case // 3}" for case in range(40)]
LONG = labels_table(Y, CLASSES, patient=PATIENTS)


@pytest.mark.parametrize(("kind", "order"), ORDERED)
def test_tables_with_cases_meet_by_case_and_class(kind: str, order: tuple[int, ...]) -> None:
    make, shuffled = KINDS[kind], np.random.default_rng(0).permutation(40)
    predictions = make({**columns(F[shuffled], "prob:", order), "case_id": [f"c{case}" for case in shuffled]})
    # a case without a label is a cluster of its own, and is used by no metric
    expected = secondread.evaluate(Y, F, cluster=PATIENTS, classes=CLASSES)
    labels = make({name: LONG[name] for name in reversed(LONG)})
    same(secondread.evaluate(labels, predictions, cluster="patient"), expected)
    cases = [f"c{case}" for case in range(40)]
    wide = make({"patient": PATIENTS, **columns(Y, "count:", order[::-1]), "case_id": cases})
    same(secondread.evaluate(wide, predictions, cluster="patient"), expected)


def test_typed_columns_of_data_frames_are_read() -> None:
    labels = pd.DataFrame(LONG).astype({"label": "category", "annotator": "category"})
    predictions = pd.DataFrame(columns(F, "prob:"), index=pd.Index([f"c{i}" for i in range(40)], name="case_id"))
    same(secondread.evaluate(labels, predictions.reset_index()), secondread.evaluate(Y, F, classes=CLASSES))
    nullable = pd.DataFrame(columns(Y)).astype("Int64")
    assert secondread.epistemic_loss(nullable, pd.DataFrame(columns(F))).value == secondread.epistemic_loss(Y, F).value


def test_an_accumulator_keeps_classes_apart_over_batches() -> None:
    make, whole, parts = pl.DataFrame, secondread.Accumulator(3), secondread.Accumulator(3)
    whole.update(Y, F)
    parts.update(make(columns(Y[:15], order=(1, 0, 2))), make(columns(F[:15], order=(2, 1, 0))))
    read_back = secondread.Accumulator.from_dict(parts.to_dict())
    read_back.update(make(columns(Y[15:])), make(columns(F[15:], order=(1, 2, 0))))
    assert read_back.compute() == pytest.approx(whole.compute(), rel=1e-12)
    before = read_back.to_dict()
    for y, f in (
        (Y, F),
        (make(columns(Y)), F),
        (make({"x": Y[:, 0], "y": Y[:, 1]}), make({"x": F[:, 0], "y": 1 - F[:, 0]})),
    ):
        with pytest.raises(ValueError, match=r"name|class"):
            read_back.update(y, f)
    with pytest.raises(ValueError, match="cannot merge cases of classes"):
        read_back.merge(whole)
    assert read_back.to_dict() == before
    assert secondread.Accumulator(3).merge(read_back).classes == CLASSES


def test_a_frame_without_names_is_an_array() -> None:
    assert secondread.epistemic_loss(pd.DataFrame(Y), pd.DataFrame(F)).value == secondread.epistemic_loss(Y, F).value
    with pytest.raises(ValueError, match="are named"):
        secondread.epistemic_loss(pd.DataFrame(Y), pd.DataFrame(F)[[1, 0, 2]])


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("case_id,prob:x,prob:x\na,0.5,0.5\n")
    with pytest.raises(secondread.TableError, match="several columns 'prob:x'"):
        secondread.tables.read_predictions(tmp_path / "p.csv")
    twice = pd.DataFrame(np.column_stack([Y, Y[:, 0]]), columns=[*CLASSES, "red"])
    with pytest.raises(ValueError, match="several columns 'red'"):
        secondread.epistemic_loss(twice, F)
