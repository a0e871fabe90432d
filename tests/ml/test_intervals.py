"""Intervals: skewed, of paired changes, by groups of patients, and of metrics that use the first labels."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, t

from ml.calibration.calibrators import calibrate
from ml.distributions.families import softmax_probs
from ml.metrics import disagreement_loss, epistemic_loss, evaluate, expected_squared_loss, triage_recall
from ml.metrics.accumulator import GroupSums, group_numbers
from ml.metrics.bayesian_bootstrap import MANY
from ml.metrics.evaluation import GroupEvaluation, evaluate_groups
from ml.metrics.jackknife import SHARE, Bounds, Estimate, degrees_of_freedom, skewed_interval, skewness
from ml.metrics.paired_difference import paired_change, paired_changes
from ml.metrics.sums import Debias
from ml.util.arrays import FloatArray, IntArray


def spread(seed: int, count: int) -> tuple[np.ndarray, float]:
    """What clusters add to an error, skewed, and its standard error."""
    influence = np.random.default_rng(seed).standard_gamma(0.7, count)
    influence -= influence.mean()
    return influence, float(np.sqrt((influence**2).sum()))


@given(st.integers(0, 2**32 - 1), st.integers(5, 60), st.floats(0.05, 0.95), st.floats(0.01, 0.3))
def test_a_mirrored_quantity_has_the_mirrored_interval(seed: int, count: int, share: float, size: float) -> None:
    influence, se = spread(seed, count)
    influence, se = influence * size / se, size
    low, high = skewed_interval(share, se, influence, count)
    other_low, other_high = skewed_interval(-share, se, -influence, count)
    np.testing.assert_allclose([other_low, other_high], [-high, -low], atol=1e-9)
    low, high = skewed_interval(share, se, influence, count, SHARE)
    other_low, other_high = skewed_interval(1 - share, se, -influence, count, SHARE)
    np.testing.assert_allclose([other_low, other_high], [1 - high, 1 - low], atol=1e-9)
    assert 0 <= low <= share <= high <= 1 or abs(skewness(influence)) > 0.3


@given(st.integers(0, 2**32 - 1), st.floats(0.1, 50))
def test_the_unit_of_a_quantity_does_not_matter(seed: int, unit: float) -> None:
    influence, se = spread(seed, 30)
    for bounds, scaled in ((None, None), (Bounds(-9.0, 40.0), Bounds(-9.0 * unit, 40.0 * unit))):
        expected = np.array(skewed_interval(3.0, se, influence, 30, bounds)) * unit
        found = skewed_interval(3.0 * unit, se * unit, influence * unit, 30, scaled)
        np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("count", [2, 10, 400])
def test_clusters_that_are_alike_and_not_skewed_give_students_t(count: int) -> None:
    influence = np.resize([1.0, -1.0], count) / count
    se = float(np.sqrt((influence**2).sum()))
    half = t.ppf(0.975, count - 1) * se
    np.testing.assert_allclose(skewed_interval(0.3, se, influence, count), [0.3 - half, 0.3 + half], rtol=1e-12)


@pytest.mark.parametrize("skew", [0.0, 1e-12, 1e-8, 1e-4, 0.01, 0.3])
def test_the_ends_solve_halls_transformation_to_the_last_digits(skew: float) -> None:
    influence = np.resize([1.0, -1.0], 20) / 20
    influence[0] += skew / 20
    centred = influence - influence.mean()
    se = float(np.sqrt((centred**2).sum()))
    a, quantile = skewness(centred), t.ppf(0.975, degrees_of_freedom(centred))
    for end, expected in zip(skewed_interval(0.0, se, influence, 20), (quantile, -quantile), strict=True):
        x = -end / se
        assert x + a * x**2 / 3 + a**2 * x**3 / 27 + a / 6 == pytest.approx(expected, rel=4e-15, abs=0)


def test_degrees_of_freedom_are_those_of_the_variance() -> None:
    """2 V²/Var(V) of variances that were drawn again and again, where chance decides which clusters matter."""
    rng = np.random.default_rng(0)
    draws = rng.normal(0, 1, (2000, 1000)) * np.where(rng.random((2000, 1000)) < 0.05, 10, 0.3)
    variances = (draws**2).sum(axis=1)
    true = 2 * variances.mean() ** 2 / variances.var()
    assert np.median([degrees_of_freedom(row) for row in draws]) == pytest.approx(true, rel=0.1)
    assert true < 50
    alike = [degrees_of_freedom(rng.normal(0, 1, 400)) for _ in range(100)]
    assert np.median(alike) == pytest.approx(399, rel=0.05)
    assert degrees_of_freedom(np.array([1.0, *np.zeros(99)])) == pytest.approx(2, rel=0.03)


def test_the_transformed_ends_are_quantiles() -> None:
    """The cubic of Hall at both ends is what Student's t says."""
    influence, se = spread(3, 50)
    a, quantile = skewness(influence), t.ppf(0.975, degrees_of_freedom(influence))
    low, high = skewed_interval(2.0, se, influence, 50)
    for end, sign in ((low, 1), (high, -1)):
        studentised = (2.0 - end) / se
        cubic = studentised + a * studentised**2 / 3 + a**2 * studentised**3 / 27 + a / 6
        assert cubic == pytest.approx(sign * quantile, rel=1e-9)


@pytest.mark.parametrize("yes", [0, 1])
def test_where_all_terms_of_many_cases_are_equal_the_interval_is_clopper_and_pearsons(yes: int) -> None:
    n = MANY
    y = np.tile([[1, 1]] if yes else [[2, 0]], (n, 1))
    found = disagreement_loss(y, np.zeros(n))
    ends = [0.025 ** (1 / n), 1.0] if yes else [0.0, 1 - 0.025 ** (1 / n)]
    np.testing.assert_allclose(np.array([found.low, found.high], float), ends, rtol=1e-9)
    halves = expected_squared_loss(np.tile([1, 0], (n, 1)), np.full((n, 2), 0.5))
    exact = [beta.ppf(0.025, n / 4, 3 * n / 4 + 1), beta.ppf(0.975, n / 4 + 1, 3 * n / 4)]
    np.testing.assert_allclose(np.array([halves.low, halves.high], float), 2 * np.array(exact), rtol=1e-9)


@given(st.integers(0, 2**32 - 1), st.integers(3, 40))
def test_intervals_keep_the_range(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    y = rng.multinomial(2, [0.9, 0.1], n)
    f = rng.dirichlet([5, 1], n)
    weight = rng.choice([1.0, 10.0], n)
    bounded = [
        (disagreement_loss(y, 1 - (f**2).sum(1), sample_weight=weight), 1),
        (expected_squared_loss(y, f, sample_weight=weight), 2),
    ]
    if (y == 1).any():
        bounded += [(row, 1) for row in triage_recall(y, f[:, 1], [0.1, 0.5, 1.0], sample_weight=weight)]
    for estimate, top in bounded:
        assert 0 <= estimate.low <= estimate.high <= top, estimate


def test_signed_estimates_may_leave_the_range() -> None:
    y, f = np.tile([[2, 0], [1, 1]], (20, 1)), np.tile([[0.75, 0.25]], (40, 1))
    assert epistemic_loss(y, f).low < 0


def problem(n: int = 300) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3), n)
    counts = np.array([rng.multinomial(k, p) for k, p in zip(rng.integers(0, 4, n), truth, strict=True)])
    worse = 0.5 * truth + 0.5 * rng.dirichlet(np.ones(3), n)
    return counts, truth, worse, rng.uniform(0.5, 2, n), np.repeat(np.arange(n // 3), 3)


def gini(probs: np.ndarray) -> np.ndarray:
    return np.asarray(1 - np.square(probs).sum(axis=1))


def test_it_is_the_difference_of_the_metrics() -> None:
    counts, truth, worse, weight, cluster = problem()
    change = paired_change(counts, (worse, gini(worse)), (truth, gini(truth)), sample_weight=weight, cluster=cluster)
    documents = [
        evaluate(counts, probs, gini(probs), sample_weight=weight, cluster=cluster).metrics for probs in (worse, truth)
    ]
    for name, estimate in (("L", change.loss), ("L_D", change.disagreement_loss)):
        assert estimate.value == pytest.approx(documents[1][name].value - documents[0][name].value, abs=1e-12)
    assert change.loss.se is not None
    assert change.loss.se < documents[0]["L"].se
    assert change.loss.high is not None
    assert change.loss.high < 0


@pytest.mark.parametrize("by_patient", [False, True])
def test_each_change_is_the_difference_of_two_evaluations_and_of_their_replicates(by_patient: bool) -> None:
    counts, truth, worse, weight, patient = problem(90)
    cluster = patient if by_patient else None
    both = (worse, gini(worse)), (truth, gini(truth))

    def values(rows: np.ndarray) -> dict[str, float]:
        documents = [
            evaluate(
                counts[rows],
                probs[rows],
                dpe[rows],
                n_bins=2,  # which all have pairs, whoever is left out
                sample_weight=weight[rows],
                cluster=None if cluster is None else cluster[rows],
            ).metrics
            for probs, dpe in both
        ]
        return {name: documents[1][name].value - documents[0][name].value for name in changes}

    changes = paired_changes(counts, *both, n_bins=2, sample_weight=weight, cluster=cluster)
    whole = values(np.arange(90))
    units = patient if by_patient else np.arange(90)
    for name, estimate in changes.items():
        assert estimate.value == pytest.approx(whole[name], abs=1e-12), name
    needed = {name: 2 if name in {"EL", "L_D", "CL_D"} else 1 for name in changes}
    without = [values(np.flatnonzero(units != unit)) for unit in np.unique(units)]
    for name, estimate in changes.items():
        used = [bool((counts[units == unit].sum(axis=1) >= needed[name]).any()) for unit in np.unique(units)]
        left = np.array([row[name] for row, kept in zip(without, used, strict=True) if kept])
        jackknife = np.sqrt((left.size - 1) / left.size * ((left - left.mean()) ** 2).sum())
        assert estimate.se == pytest.approx(jackknife, rel=1e-9), name


def test_no_change_is_exactly_nothing() -> None:
    counts, truth, _, _, cluster = problem()
    change = paired_change(counts, (truth, gini(truth)), (truth, gini(truth)), cluster=cluster)
    for estimate in (change.loss, change.disagreement_loss):
        assert (estimate.value, estimate.high) == (0.0, 0.0)


def test_without_two_labels_of_a_case_the_change_of_disagreement_cannot_be_told() -> None:
    counts, probs = np.array([[1, 0], [0, 1]]), np.full((2, 2), 0.5)
    change = paired_change(counts, (probs, gini(probs)), (probs, gini(probs)))
    assert change.disagreement_loss.to_dict()["value"] is None
    assert change.disagreement_loss.to_dict()["high"] is None


def test_the_chance_of_labels_is_how_much_changes_vary_when_the_first_prediction_is_right() -> None:
    rng = np.random.default_rng(5)
    f = rng.dirichlet(np.ones(3), 150)
    g, weight = 0.7 * f + 0.3 * rng.dirichlet(np.ones(3), 150), rng.uniform(0.5, 4, 150)
    before, after = (f, gini(f)), (g, gini(g))
    draws = [paired_change(rng.multinomial(2, f), before, after, sample_weight=weight) for _ in range(600)]
    values = np.array([[change.loss.value, change.disagreement_loss.value] for change in draws])
    np.testing.assert_allclose(draws[0].chance, values.std(axis=0, ddof=1), rtol=0.1)
    once = paired_change(np.eye(3, dtype=int)[rng.integers(0, 3, 150)], before, after, sample_weight=weight)
    assert once.chance[1] == 0  # nobody could disagree
    assert once.chance[0] == pytest.approx(draws[0].chance[0] * np.sqrt(2), rel=1e-12)


FORMS: list[Debias] = ["pair", "paper", "none"]


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


def test_what_is_missing_is_said() -> None:
    sums = GroupSums(2, by_patient=True)
    sums.add([[0, 0], [1, 0]], [[0.5, 0.5], [0.4, 0.6]], units=["p1", "p2"])
    found = evaluate_groups(sums, sums)
    assert found.metrics["L"].se is None
    assert math.isnan(found.metrics["EL"].value)
    assert any("no cell has two labels" in text for text in found.warnings)
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
