"""The typed result of an evaluation."""

import dataclasses
import gc
import json
import pickle

import numpy as np
import pytest

from ml.metrics import epistemic_loss, evaluate
from tests.ml.test_metrics import draw


def test_an_evaluation_is_typed_and_reads_like_its_document() -> None:
    y, f = draw(11)
    evaluation = evaluate(y, f, classes=["a", "b", "c"])
    document = evaluation.to_dict()
    assert list(document) == [field.name for field in dataclasses.fields(evaluation)]
    assert json.loads(json.dumps(document)) == document
    assert list(document["classes"][0]) == ["class", "CL", "EL", "bins"]
    assert list(document["class_bins"][0]) == ["low", "high", "n", "mean_prob", "mean_freq", "freq_low", "freq_high"]
    assert evaluation.metrics["EL"] == epistemic_loss(y, f)
    assert sum(row.calibration_loss or 0 for row in evaluation.classes) == pytest.approx(
        evaluation.metrics["CL"].value, abs=1e-14
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluation.n_bins = 3  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(evaluation)).to_dict() == document


def test_an_evaluation_leaves_nothing_for_the_garbage_collector() -> None:
    """The cells of many cases are hundreds of megabytes, and the collector counts objects, not bytes."""
    y, f = draw(11)
    gc.collect()
    gc.disable()
    try:
        evaluate(y, f, cluster=[number // 2 for number in range(len(y))])
        evaluate(y, f, sample_weight=[1 + number % 3 for number in range(len(y))])
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_what_patients_are_called_changes_no_error_where_some_weigh_less() -> None:
    """Patients run through in the order of their names: a chunk of ones was taken to say that all cases weigh one."""
    rng = np.random.default_rng(1)
    n, heavy = 60_000, 30_000
    probs = 0.1 + rng.uniform(0, 0.02, n)
    label = (rng.random(n) >= probs).astype(np.int64)
    rare = [5, *range(40_000, 40_012)]  # a bin of which one case weighs nearly everything
    probs[rare], label[rare] = 0.55, [0, *[0, 1] * 6]
    counts, weights = np.eye(2, dtype=np.int64)[label], np.where(np.arange(n) < heavy, 1.0, 0.02)
    patient = np.arange(n) // 2
    as_named, renamed = (
        evaluate(counts, np.stack([probs, 1 - probs], axis=1), sample_weight=weights, cluster=names, debias="paper")
        for names in (patient, rng.permutation(n // 2)[patient])
    )
    for name, metric in as_named.metrics.items():
        other = renamed.metrics[name].se
        assert (metric.se is None) == (other is None), name
        assert metric.se is None or metric.se == pytest.approx(other, rel=1e-9, nan_ok=True), name
