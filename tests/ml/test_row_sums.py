"""The compiled pass over many cases says what the accumulator's passes with NumPy say."""

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from ml.metrics import accumulator
from ml.metrics.accumulator import TABLES, Accumulator
from ml.metrics.binning import BinSums

K = 4


def cases(n: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Cases without labels, with one, two and many; probabilities on edges of bins, equal ones, zeros and ones."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(K, 0.4), n)
    edgy = np.array([[0.2, 0.2, 0.2, 0.4], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25], [0.6, 0.4, 0.0, 0.0]])
    probs[::3] = edgy[rng.integers(0, len(edgy), len(probs[::3]))]
    counts = np.array([rng.multinomial(total, row) for total, row in zip(rng.integers(0, 7, n), probs, strict=True)])
    dpe = rng.uniform(0, 1, n)
    dpe[::5] = np.arange(len(dpe[::5])) % 16 / 15
    return counts.reshape(n, K), probs, dpe


def accumulated(compiled: bool, monkeypatch: pytest.MonkeyPatch, *parts: tuple[Any, ...]) -> Accumulator:
    monkeypatch.setattr(accumulator, "COMPILED", compiled)
    monkeypatch.setattr(accumulator, "WORTH_COMPILING", 0)
    acc = Accumulator(K)
    for part in parts:
        acc.update(*part)
    return acc


def assert_same(found: Accumulator, expected: Accumulator) -> None:
    assert (found.n_cases, found.n_labels, found.used) == (expected.n_cases, expected.n_labels, expected.used)
    for name in TABLES:
        for field in fields(BinSums):
            ours, theirs = (getattr(acc.tables[name], field.name) for acc in (found, expected))
            assert ours.dtype == theirs.dtype
            assert ours == pytest.approx(theirs, rel=1e-12, abs=1e-12), (name, field.name)
    assert found.weight == pytest.approx(expected.weight, rel=1e-12)
    for debias in ("pair", "paper", None):
        assert found.compute(debias) == pytest.approx(expected.compute(debias), rel=1e-12, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("n", [0, 1, 2, 600])
@pytest.mark.parametrize("with_dpe", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_one_pass_equals_the_passes_of_numpy(
    n: int, with_dpe: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, probs, dpe = cases(n)
    weight = np.random.default_rng(1).choice([0.0, 0.3, 2.0], n) if weighted else None
    part = (counts, probs, dpe if with_dpe else None, weight)
    found = accumulated(True, monkeypatch, part)
    assert_same(found, accumulated(False, monkeypatch, part))


def test_blocks_and_parts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from ml.metrics import row_sums

    monkeypatch.setattr(row_sums, "_BLOCK", 7)
    parts = [cases(50, seed) for seed in range(3)]
    assert_same(accumulated(True, monkeypatch, *parts), accumulated(False, monkeypatch, *parts))


def test_columns_in_another_order_of_memory_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, probs, dpe = cases(40)
    part = (np.asfortranarray(counts), np.asfortranarray(probs), np.repeat(dpe, 2)[::2])
    assert_same(accumulated(True, monkeypatch, part), accumulated(False, monkeypatch, (counts, probs, dpe)))


@pytest.mark.parametrize("row", [0, 30, 59])
@pytest.mark.parametrize(
    ("count", "probs", "said"),
    [
        (-1, [0.25, 0.25, 0.25, 0.25], "label_counts must not be negative"),
        (1, [np.nan, 0.5, 0.25, 0.25], "class_probs must lie in"),
        (1, [np.nan] * K, "class_probs must lie in"),
        (1, [np.inf, 0.0, 0.0, 0.0], "class_probs must lie in"),
        (1, [np.inf, -np.inf, 0.5, 0.5], "class_probs must lie in"),
        (1, [1e300, 0.0, 0.0, 0.0], "class_probs must lie in"),
        (1, [-0.25, 0.5, 0.5, 0.25], "class_probs must lie in"),
        (1, [1.5, -0.5, 0.0, 0.0], "class_probs must lie in"),
        (1, [0.25, 0.25, 0.25, 0.250002], "rows of class_probs must sum to 1"),
        (1, [0.0, 0.0, 0.0, 0.0], "rows of class_probs must sum to 1"),
    ],
)
def test_what_is_refused_is_named_as_ever_and_nothing_is_added(
    row: int, count: int, probs: list[float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ml.metrics import row_sums

    monkeypatch.setattr(row_sums, "_BLOCK", 7)
    counted, predicted, dpe = cases(60)
    counted[row, 1], predicted[row] = count, probs
    for compiled in (True, False):
        acc = accumulated(compiled, monkeypatch, cases(9))
        with pytest.raises(ValueError, match=f"{said}.*first at row {row}, 1 in all"):
            acc.update(counted, predicted, dpe)
        assert_same(acc, accumulated(compiled, monkeypatch, cases(9)))


def test_a_row_that_only_the_compiled_pass_doubts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sum may round to the other side of the tolerance."""
    monkeypatch.setattr("ml.metrics.row_sums.row_sums", lambda *_: None)
    found = accumulated(True, monkeypatch, cases(40))
    assert_same(found, accumulated(False, monkeypatch, cases(40)))


def test_minus_zero_is_a_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, probs, dpe = cases(8)
    probs[3] = [-0.0, 1.0, 0.0, -0.0]
    part = (counts, probs, dpe)
    assert_same(accumulated(True, monkeypatch, part), accumulated(False, monkeypatch, part))


def test_cases_with_patients_and_few_cases_load_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("the compiler was loaded")

    monkeypatch.setattr(Accumulator, "_add_compiled", never)
    monkeypatch.setattr(accumulator, "COMPILED", True)
    Accumulator(K).update(*cases(30))
    monkeypatch.setattr(accumulator, "WORTH_COMPILING", 0)
    Accumulator(K).update(*cases(30), cluster=np.arange(30) // 3)
    with pytest.raises(AssertionError, match="loaded"):
        Accumulator(K).update(*cases(30))
