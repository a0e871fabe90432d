"""Intervals from sums over groups of patients: those of the evaluation in memory, and of cases left out one group."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.metrics import evaluate
from ml.metrics.accumulator import GroupSums, group_numbers
from ml.metrics.evaluation import GroupEvaluation, evaluate_groups
from ml.metrics.jackknife import Estimate
from ml.metrics.sums import Debias
from ml.util.arrays import FloatArray, IntArray

FORMS: list[Debias] = ["pair", "paper", "none"]
PARTS = ("value", "se", "low", "high", "n", "dropped", "ess")


def laboratory(seed: int, n: int = 300, n_patients: int = 60) -> tuple[IntArray, FloatArray, FloatArray, Any]:
    """Label counts of none to four labels, probabilities, DPEs and patients, whose cells are alike."""
    rng = np.random.default_rng(seed)
    patient = rng.integers(n_patients, size=n)
    own = rng.dirichlet(np.ones(3), n_patients)[patient]
    probs = 0.5 * own + 0.5 * rng.dirichlet(np.ones(3), n)
    counts = np.array([rng.multinomial(m, p) for m, p in zip(rng.integers(0, 5, n), own, strict=True)])
    return counts, probs, rng.uniform(0, 1, n), np.array([f"p{number}" for number in patient])


def of_groups(
    columns: tuple[Any, ...], debias: Debias, *, weight: FloatArray | None, by_patient: bool, n_groups: int = 12
) -> GroupEvaluation:
    counts, probs, dpe, units = columns
    sums = GroupSums(3, by_patient=by_patient, n_groups=n_groups)
    sums.add(counts, probs, dpe, weight, units=units)
    return evaluate_groups(sums, sums, debias)


def alike(found: Estimate, expected: Estimate, part: str) -> bool:
    one, other = getattr(found, part), getattr(expected, part)
    if one is None or other is None:
        return one is other
    return bool(np.isclose(one, other, rtol=1e-8, atol=1e-11, equal_nan=True))


@pytest.mark.parametrize("debias", FORMS)
def test_the_error_is_that_of_leaving_each_group_out(debias: Debias) -> None:
    counts, probs, dpe, units = laboratory(3)
    groups = group_numbers(units.tolist(), 12)
    found = of_groups((counts, probs, dpe, units), debias, weight=None, by_patient=False).metrics
    left = [
        evaluate(counts[rows], probs[rows], disagreement_probs=dpe[rows], debias=debias).metrics
        for rows in (groups != group for group in np.unique(groups))
    ]
    for name, estimate in found.items():
        if name in {"CE", "CE_D"}:
            continue  # their errors are by the delta method
        without = np.array([metrics[name].value for metrics in left])
        error = math.sqrt((len(left) - 1) / len(left) * ((without - without.mean()) ** 2).sum())
        assert estimate.se == pytest.approx(error, rel=1e-8), name


@given(st.integers(0, 10**6), st.integers(2, 5))
@settings(max_examples=10, deadline=None)
def test_parts_in_any_order_are_the_whole(seed: int, n_parts: int) -> None:
    counts, probs, dpe, units = laboratory(seed)
    whole = GroupSums(3, by_patient=True)
    whole.add(counts, probs, dpe, units=units)
    rng = np.random.default_rng(seed)
    parts = []
    for rows in np.array_split(rng.permutation(len(counts)), n_parts):
        part = GroupSums(3, by_patient=True)
        part.add(counts[rows], probs[rows], dpe[rows], units=units[rows])
        parts.append(part)
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert (merged.n_cases, merged.n_labels) == (whole.n_cases, whole.n_labels)
    one, other = evaluate_groups(merged, merged).metrics, evaluate_groups(whole, whole).metrics
    for name, estimate in one.items():
        for part_name in PARTS:
            assert alike(estimate, other[name], part_name), (name, part_name)


def test_errors_by_groups_are_those_by_patients() -> None:
    """The mean ratio over laboratories, whose spread is that of 400 groups: 3.5 % each."""
    ratios: dict[str, list[float]] = {}
    for seed in range(12):
        counts, probs, dpe, units = laboratory(seed, n=6_000, n_patients=3_000)
        found = of_groups((counts, probs, dpe, units), "pair", weight=None, by_patient=True, n_groups=400).metrics
        exact = evaluate(counts, probs, disagreement_probs=dpe, cluster=units).metrics
        for name in ("L", "EL", "CL", "DL", "L_D", "CL_D", "skill"):
            assert 0.8 < (found[name].se or 0) / (exact[name].se or 1) < 1.2, name
            ratios.setdefault(name, []).append((found[name].se or 0) / (exact[name].se or 1))
    for name, values in ratios.items():
        assert np.mean(values) == pytest.approx(1, abs=0.05), name


def test_what_is_missing_is_said() -> None:
    sums = GroupSums(2, by_patient=True)
    sums.add([[0, 0], [1, 0]], [[0.5, 0.5], [0.4, 0.6]], units=["p1", "p2"])
    found = evaluate_groups(sums, sums)
    assert found.metrics["L"].se is None
    assert math.isnan(found.metrics["EL"].value)
    assert any("no case has two labels" in text for text in found.warnings)
    assert any("fall into 1 of 400 groups" in text for text in found.warnings)


def test_sums_that_do_not_fit_are_refused_and_change_nothing() -> None:
    sums = GroupSums(2, by_patient=True)
    with pytest.raises(ValueError, match="must both be"):
        sums.add([[1, 0, 0]], [[0.5, 0.5, 0.0]], units=["a"])
    with pytest.raises(ValueError, match="disagreement_probs"):
        sums.add([[1, 0]], [[0.5, 0.5]], [1.5], units=["a"])
    with pytest.raises(ValueError, match="cluster must have shape"):
        sums.add([[1, 0]], [[0.5, 0.5]], units=["a", "b"])
    with pytest.raises(ValueError, match="cannot merge"):
        sums.merge(GroupSums(2, by_patient=False))
    assert (sums.n_cases, float(sums.sums["L"].sum())) == (0, 0.0)
