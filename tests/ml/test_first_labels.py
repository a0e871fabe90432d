"""Metrics that need one label may use some of the labels: those of each case's first planned read."""

from pathlib import Path

import numpy as np
import pytest

from ml.calibration.calibrators import calibrate
from ml.distributions.families import softmax_probs
from ml.metrics import evaluate
from ml.metrics.paired_difference import paired_change, paired_changes
from ml.tables import evaluate as evaluate_tables
from ml.tables.reading import TableError
from ml.tables.streaming import evaluate_stream
from ml.util.arrays import FloatArray, IntArray

ORDER_1 = ("agreement", "L", "skill", "CL", "CL_plugin", "CE")
ORDER_2 = ("EL", "EL_plugin", "CL_paired", "DL", "DL_plugin", "L_D", "CL_D", "CE_D", "skill_D", "accuracy")


def labelled(seed: int = 0, n: int = 60, k: int = 3) -> tuple[IntArray, FloatArray, FloatArray]:
    """Two labels per case (N, 2), probabilities (N, K) and weights (N,)."""
    rng = np.random.default_rng(seed)
    return rng.integers(k, size=(n, 2)), rng.dirichlet(np.ones(k), n), rng.uniform(1, 5, n)


def counts_of(labels: IntArray, k: int = 3) -> IntArray:
    return np.eye(k, dtype=np.int64)[labels].sum(axis=1)


def test_order_1_uses_the_first_labels_and_order_2_all() -> None:
    labels, probs, weight = labelled()
    both, first = counts_of(labels), counts_of(labels[:, :1])
    cluster = np.arange(60) // 3
    document = evaluate(both, probs, first_label_counts=first, sample_weight=(weight, 2 * weight), cluster=cluster)
    one = evaluate(first, probs, sample_weight=weight, cluster=cluster)
    two = evaluate(both, probs, sample_weight=2 * weight, cluster=cluster)
    documents = [found.to_dict()["metrics"] for found in (document, one, two)]  # with None for NaN, which equals itself
    assert [documents[0][name] for name in ORDER_1] == [documents[1][name] for name in ORDER_1]
    assert [documents[0][name] for name in ORDER_2] == [documents[2][name] for name in ORDER_2]
    assert document.n_labels == 120
    assert evaluate(both, probs, first_label_counts=both).to_dict() == evaluate(both, probs).to_dict()


def test_changes_use_them_in_the_same_way() -> None:
    labels, probs, _ = labelled()
    both, first = counts_of(labels), counts_of(labels[:, :1])
    dpe = 1 - (probs**2).sum(axis=1)
    flat = np.full_like(probs, 1 / 3)
    pair = ((probs, dpe), (flat, 1 - (flat**2).sum(axis=1)))
    found, one, two = (
        paired_changes(c, *pair, first_label_counts=f) for c, f in ((both, first), (first, first), (both, both))
    )
    assert (found["L"], found["CL"]) == (one["L"], one["CL"])
    assert (found["EL"], found["L_D"]) == (two["EL"], two["L_D"])
    assert paired_change(both, *pair, first_label_counts=first).loss == one["L"]


def test_a_label_that_is_not_among_all_is_refused() -> None:
    with pytest.raises(ValueError, match="row 1 has more labels of a class, 1 in all"):
        evaluate([[1, 1], [2, 0]], [[0.5, 0.5]] * 2, first_label_counts=[[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="must have one shape"):
        evaluate([[1, 1], [2, 0]], [[0.5, 0.5]] * 2, first_label_counts=[[1, 0, 0], [1, 0, 0]])


def table_of(labels: IntArray, probs: FloatArray) -> tuple[dict[str, list[object]], dict[str, list[object]]]:
    cases = [f"c{i:03d}" for i in range(len(labels))]
    rows = [(case, f"r{j}", "abc"[labels[i, j]], j + 1) for i, case in enumerate(cases) for j in (1, 0)]
    columns = dict(
        zip(("case_id", "annotator", "label", "planned_read"), map(list, zip(*rows, strict=True)), strict=True)
    )
    predictions: dict[str, list[object]] = {"case_id": list(cases)}
    return columns, predictions | {f"prob:{name}": probs[:, k].tolist() for k, name in enumerate("abc")}


def test_a_table_says_which_labels_they_are(tmp_path: Path) -> None:
    from ml.tables.reading import write_table

    labels, probs, _ = labelled()
    tables = table_of(labels, probs)
    expected = evaluate(counts_of(labels), probs, first_label_counts=counts_of(labels[:, :1]), classes=["a", "b", "c"])
    found, without_names = evaluate_tables(*tables).to_dict(), expected.to_dict()
    # a table names annotators, who are too few here for intervals for new ones
    assert "fewer than three annotators" in found["warnings"].pop(0)
    assert found == without_names
    paths = tmp_path / "labels.csv", tmp_path / "predictions.csv"
    for table, path in zip(tables, paths, strict=True):
        write_table(table, path)  # type: ignore[arg-type]
    streamed = evaluate_stream(*paths, batch_rows=7)["metrics"]
    for name in (*ORDER_1, *ORDER_2):
        assert streamed[name]["value"] == pytest.approx(expected.to_dict()["metrics"][name]["value"], abs=1e-12), name
    tables[0]["planned_read"][3] = -1
    with pytest.raises(
        TableError, match=r"row 3, column planned_read: not the number of a planned read .* -1, 1 in all"
    ):
        evaluate_tables(*tables)


def test_scaling_is_fitted_without_the_labels_that_were_asked_for_because_others_differ() -> None:
    """The probabilities are right; further labels where two differ make them look overconfident, if they count."""
    rng = np.random.default_rng(5)
    n, k = 6000, 4
    logits = 2 * rng.normal(size=(n, k))
    true = rng.standard_gamma(softmax_probs(logits)) + 1e-12  # Dir(α0 f), α0 = 1
    true /= true.sum(axis=1, keepdims=True)
    labels = (rng.random((n, 6, 1)) > true.cumsum(axis=1)[:, None, :-1]).sum(axis=2)
    planned = np.eye(k, dtype=np.int64)[labels[:, :2]].sum(axis=1)
    asked = labels[:, 0] != labels[:, 1]
    everything = planned + np.where(asked[:, None], np.eye(k, dtype=np.int64)[labels[:, 2:]].sum(axis=1), 0)
    groups = [str(i) for i in range(n)]

    def temperature(**options: IntArray) -> float:
        fitted = calibrate(logits, np.ones((n, 1)), everything, groups, alpha=False, **options)
        return float(np.exp(fitted.calibration.scaling.log_temperature))

    assert temperature() > 1.1
    assert temperature(scaling_label_counts=planned) == pytest.approx(1.0, abs=0.05)


def test_changes_of_no_case_are_unknown_with_weights_too() -> None:
    none, vector = np.zeros((0, 3)), np.zeros(0)
    for weights in ({}, {"sample_weight": (vector, vector)}):
        pair = ((none, vector), (none, vector))
        found = paired_changes(none.astype(np.int64), *pair, cluster=vector, **weights)
        assert all(np.isnan(change.value) for change in found.values())
