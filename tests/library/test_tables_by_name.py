"""A table whose columns stand in another order gives the same result or an error, never another number."""

from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import secondread

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
kinds = pytest.mark.parametrize("kind", KINDS)


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


@kinds
@pytest.mark.parametrize("prefixes", [("", ""), ("count:", "prob:")])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_histograms_and_probabilities_meet_by_class(
    kind: str, prefixes: tuple[str, str], order: tuple[int, ...]
) -> None:
    make = KINDS[kind]
    y, f = make(columns(Y, prefixes[0])), make(columns(F, prefixes[1], order))
    same(secondread.evaluate(y, f), secondread.metrics.evaluate(Y, F, classes=CLASSES))
    for name in LOSSES:
        loss = getattr(secondread, name)
        assert loss(y, f).value == pytest.approx(loss(Y, F).value, abs=1e-12), name


def long_labels() -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {"case_id": [], "annotator": [], "label": [], "patient": []}
    for case, counts in enumerate(Y):
        for reader, label in enumerate(np.repeat(CLASSES, counts)):
            values = (f"c{case}", f"r{reader}", str(label), f"p{case // 3}")
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    return rows


def expected_of_tables() -> Any:
    cluster = np.arange(40) // 3
    # a case without a label is a cluster of its own, and is used by no metric
    return secondread.evaluate(Y, F, cluster=cluster, classes=CLASSES)


@kinds
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_tables_with_cases_meet_by_case_and_class(kind: str, order: tuple[int, ...]) -> None:
    make, shuffled = KINDS[kind], np.random.default_rng(0).permutation(40)
    cases = [f"c{case}" for case in shuffled]
    predictions = make({**columns(F[shuffled], "prob:", order), "case_id": cases})
    long = long_labels()
    labels = make({name: long[name] for name in reversed(long)})
    same(secondread.evaluate(labels, predictions, cluster="patient"), expected_of_tables())
    patient = [f"p{case // 3}" for case in range(40)]
    wide = make(
        {"patient": patient, **columns(Y, "count:", order[::-1]), "case_id": [f"c{case}" for case in range(40)]}
    )
    same(secondread.evaluate(wide, predictions, cluster="patient"), expected_of_tables())


@kinds
def test_agreement_of_a_table_in_memory_is_that_of_the_file(kind: str, tmp_path: Path) -> None:
    long = long_labels()
    secondread.tables.write_table(long, tmp_path / "labels.csv")
    in_memory = secondread.measure_agreement(KINDS[kind]({name: long[name] for name in reversed(long)}))
    assert in_memory.to_dict() == secondread.measure_agreement(tmp_path / "labels.csv").to_dict()
    assert in_memory.krippendorff_alpha.value == pytest.approx(secondread.krippendorff_alpha(Y).value, abs=1e-12)


def test_typed_columns_of_data_frames_are_read() -> None:
    labels = pd.DataFrame(long_labels()).astype({"label": "category", "annotator": "category"})
    predictions = pd.DataFrame(columns(F, "prob:"), index=pd.Index([f"c{i}" for i in range(40)], name="case_id"))
    same(secondread.evaluate(labels, predictions.reset_index()), secondread.evaluate(Y, F, classes=CLASSES))
    nullable = pd.DataFrame(columns(Y)).astype("Int64")
    assert secondread.epistemic_loss(nullable, pd.DataFrame(columns(F))).value == secondread.epistemic_loss(Y, F).value


@kinds
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda y: {**y, "violet": Y[:, 0]}, "unknown violet"),
        (lambda y: {"red": y["red"], "green": y["green"]}, "missing blue"),
        (lambda y: {"rosso": y["red"], "green": y["green"], "blue": y["blue"]}, "unknown rosso, missing red"),
        (lambda y: {**y, "case_id": list("ab" * 20)}, "case_id"),
    ],
)
def test_names_that_do_not_match_are_an_error(kind: str, change: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        secondread.metrics.evaluate(KINDS[kind](change(columns(Y))), KINDS[kind](columns(F)))
    with pytest.raises(ValueError, match=words):
        secondread.epistemic_loss(KINDS[kind](change(columns(Y))), KINDS[kind](columns(F)))


@kinds
def test_names_on_one_side_only_are_an_error(kind: str) -> None:
    make = KINDS[kind]
    for counts, other in ((make(columns(Y)), F), (Y, make(columns(F, order=(1, 0, 2))))):
        with pytest.raises(ValueError, match=r"are named .*and those of .* are not"):
            secondread.epistemic_loss(counts, other)
    named = secondread.evaluate(make(columns(Y, order=(2, 1, 0))), F, classes=CLASSES)
    same(named, secondread.evaluate(Y, F, classes=CLASSES))


@kinds
def test_what_cannot_match_names_refuses_them(kind: str) -> None:
    y, f = KINDS[kind](columns(Y)), KINDS[kind](columns(F))
    point = secondread.PointCpe(F)
    for refused in (
        lambda: secondread.PointCpe(f),
        lambda: secondread.DirichletCpe(f, np.zeros(40)),
        lambda: point.posterior(y),
        lambda: point.log_likelihood(y),
        lambda: secondread.disagreement_loss(y, f),
        lambda: secondread.calibrate(f, F, Y, [str(i) for i in range(40)]),
        lambda: secondread.krippendorff_alpha(y, level="ordinal"),
    ):
        with pytest.raises(ValueError, match="name"):
            refused()


@kinds
def test_an_accumulator_keeps_classes_apart_over_batches(kind: str) -> None:
    make, whole, parts = KINDS[kind], secondread.Accumulator(3), secondread.Accumulator(3)
    whole.update(Y, F)
    parts.update(make(columns(Y[:15], order=(1, 0, 2))), make(columns(F[:15], order=(2, 1, 0))))
    read_back = secondread.Accumulator.from_dict(parts.to_dict())
    read_back.update(make(columns(Y[15:])), make(columns(F[15:], order=(1, 2, 0))))
    assert read_back.compute() == pytest.approx(whole.compute(), rel=1e-12)
    before = read_back.to_dict()
    for y, f in ((Y, F), (make(columns(Y)), F), (make({"x": Y[:, 0], "y": Y[:, 1]}), make({"x": [1.0], "y": [0.0]}))):
        with pytest.raises(ValueError, match=r"name|classes"):
            read_back.update(y, f)
    with pytest.raises(ValueError, match="cannot merge cases of classes"):
        read_back.merge(whole)
    assert read_back.to_dict() == before
    assert secondread.Accumulator(3).merge(read_back).classes == CLASSES


def test_a_frame_without_names_is_an_array() -> None:
    assert secondread.epistemic_loss(pd.DataFrame(Y), pd.DataFrame(F)).value == secondread.epistemic_loss(Y, F).value
    with pytest.raises(ValueError, match="are named"):
        secondread.epistemic_loss(pd.DataFrame(Y), pd.DataFrame(F)[[1, 0, 2]])


def test_rows_with_names_are_not_matched_by_position() -> None:
    index = [f"c{i}" for i in range(40)]
    y, f = pd.DataFrame(columns(Y), index=index), pd.DataFrame(columns(F), index=index)
    assert secondread.epistemic_loss(y, f).value == secondread.epistemic_loss(Y, F).value
    for other in (f.iloc[::-1], f.set_index(pd.Index([f"d{i}" for i in range(40)]))):
        with pytest.raises(ValueError, match="rows of label_counts and class_probs"):
            secondread.epistemic_loss(y, other)
    weights = pd.Series(np.ones(40), index=index[::-1])
    with pytest.raises(ValueError, match="rows of class_probs and sample_weight"):
        secondread.epistemic_loss(y, f, sample_weight=weights)


SHUFFLED = [1, 0, *range(2, 40)]


@pytest.mark.parametrize("name", LOSSES)
def test_a_shuffled_frame_next_to_one_in_the_usual_order_is_an_error(name: str) -> None:
    loss, y, f = getattr(secondread, name), pd.DataFrame(columns(Y)), pd.DataFrame(columns(F))
    for pair in ((y, f.iloc[SHUFFLED]), (y.iloc[SHUFFLED], f)):
        with pytest.raises(ValueError, match=r"rows of label_counts and class_probs .* row 0 \((0 and 1|1 and 0)\)"):
            loss(*pair)
    same_order = loss(y.iloc[SHUFFLED], f.iloc[SHUFFLED]).value
    assert same_order == pytest.approx(loss(Y, F).value, abs=1e-12)
    assert loss(y.iloc[SHUFFLED], f.iloc[SHUFFLED], sample_weight=np.ones(40)).value == pytest.approx(same_order)


def test_every_column_of_an_evaluation_has_the_rows_of_the_others() -> None:
    y, f, ones = pd.DataFrame(columns(Y)), pd.DataFrame(columns(F)), pd.Series(np.linspace(0.1, 0.9, 40))
    arguments: list[Callable[[Any], dict[str, Any]]] = [
        *(lambda column, name=name: {name: column} for name in ("disagreement_probs", "sample_weight", "cluster")),
        lambda column: {"sample_weight": (None, column)},
    ]
    for argument in arguments:
        with pytest.raises(ValueError, match=r"different names .* row 0 \(0 and 1\)"):
            secondread.metrics.evaluate(y, f, **argument(ones.iloc[SHUFFLED]))
        with pytest.raises(ValueError, match=r"different names .* row 0 \(1 and 0\)"):
            secondread.metrics.evaluate(Y, f.iloc[SHUFFLED], classes=CLASSES, **argument(ones))
    with pytest.raises(ValueError, match=r"label_counts and disagreement_probs .* row 0 \(0 and 1\)"):
        secondread.disagreement_loss(pd.DataFrame(Y), ones.iloc[SHUFFLED])
    accumulator = secondread.Accumulator(3)
    with pytest.raises(ValueError, match=r"row 0 \(0 and 1\)"):
        accumulator.update(y, f.iloc[SHUFFLED])


def test_a_frame_with_fewer_rows_names_the_first_that_is_missing() -> None:
    y, f = pd.DataFrame(columns(Y)), pd.DataFrame(columns(F))
    with pytest.raises(ValueError, match=r"row 3 \(3 and 4\)"):
        secondread.epistemic_loss(y, f.drop(index=3))
    index = pd.Index([f"c{i}" for i in range(40)])
    with pytest.raises(ValueError, match=r"row 39 \(c39 and nothing\)"):
        secondread.epistemic_loss(y.set_index(index), f.set_index(index).iloc[:39])


@pytest.mark.parametrize(
    ("labels", "predictions", "words"),
    [
        (Y, {"case_id": ["a"], "prob:x": [1.0], "prob:y": [0.0]}, "labels have no column 'case_id'"),
        ({"case_id": ["a"], "count:x": [1]}, F, "predictions have no column 'case_id'"),
        (
            {"case_id": ["a", "b"], "count:x": [1, 1]},
            {"case_id": ["a", "b"], "prob:x": [0.5, 0.5], "prob:y": [0.5, 0.4]},
            "PREDICTIONS: row 1, column prob:x … prob:y",
        ),
        ({"case_id": ["a"], "count:z": [1]}, {"case_id": ["a"], "prob:x": [1.0], "prob:y": [0.0]}, "unknown class"),
        ({"case_id": ["a", "b"], "count:x": [1]}, {"case_id": ["a"], "prob:x": [1], "prob:y": [0]}, "cannot be read"),
        (pl.LazyFrame({"case_id": ["a"]}), pl.LazyFrame({"case_id": ["a"]}), "collect"),
    ],
)
def test_tables_that_cannot_be_used_say_why(labels: Any, predictions: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        secondread.evaluate(labels, predictions)


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("case_id,prob:x,prob:x\na,0.5,0.5\n")
    with pytest.raises(secondread.TableError, match="several columns 'prob:x'"):
        secondread.tables.read_predictions(tmp_path / "p.csv")
    twice = pd.DataFrame(np.column_stack([Y, Y[:, 0]]), columns=[*CLASSES, "red"])
    with pytest.raises(ValueError, match="several columns 'red'"):
        secondread.epistemic_loss(twice, F)
