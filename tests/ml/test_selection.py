"""Weights that undo selection and non-response, and designs of second reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.metrics import epistemic_loss
from ml.metrics.cases import epistemic_terms, observed_disagreement, select_sample
from ml.metrics.selection import (
    disagreements_caught,
    graded_probabilities,
    graded_scale,
    interval_length,
    quintiles,
    selection_weights,
    threshold_probabilities,
)


def test_by_hand() -> None:
    """Ten cases, two selected, of the eight others two planned twice at ε = 1/4, one of which did not answer."""
    n_planned = np.array([2, 2, 2, 2, 1, 1, 1, 1, 1, 1])
    n_labels = np.array([2, 2, 2, 1, 1, 1, 1, 1, 1, 0])
    pi = np.array([1.0, 1.0] + [0.25] * 8)
    quintile = np.ones(10, dtype=np.int64)
    first = selection_weights(1, n_planned, n_labels, pi, pi >= 1, quintile)
    second = selection_weights(2, n_planned, n_labels, pi, pi >= 1, quintile)
    np.testing.assert_allclose(first.weight, [1, 1] + [8 / 7] * 7 + [0])
    np.testing.assert_allclose(second.weight, [1, 1, 4 * 2, 0] + [0] * 6)
    assert first.non_response == pytest.approx(0.1)
    assert second.non_response == pytest.approx(0.25)
    assert "25.0%" in second.warnings()[0]
    assert [(c.selected, c.planned, c.answered) for c in second.cells] == [(True, 2, 2), (False, 2, 1)]


@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.9))
def test_weights_stand_for_all_planned_cases_of_a_cell(seed: int, epsilon: float) -> None:
    rng = np.random.default_rng(seed)
    n = 80
    selected = rng.random(n) < 0.3
    pi = np.where(selected, 1.0, epsilon)
    planned = 1 + (rng.random(n) < pi)
    labels = np.minimum(planned, rng.integers(0, 3, n))
    found = selection_weights(2, planned, labels, pi, selected, quintiles(rng.random(n)))
    assert ((found.weight > 0) <= ((planned >= 2) & (labels >= 2))).all()
    if all(cell.answered for cell in found.cells):
        assert (found.weight * pi).sum() == pytest.approx((planned >= 2).sum())


def test_the_weighted_total_is_unbiased_for_any_coin() -> None:
    """The mean over all coins of the weighted sum is the sum over all cases."""
    rng = np.random.default_rng(0)
    values, pi = rng.random(5), np.array([1.0, 0.5, 0.2, 0.1, 0.7])
    mean = 0.0
    for pattern in range(32):
        twice = np.array([pattern >> i & 1 for i in range(5)], dtype=bool)
        chance = float(np.prod(np.where(twice, pi, 1 - pi)))
        planned = 1 + twice
        weight = selection_weights(2, planned, planned, pi, pi >= 1, np.ones(5, dtype=np.int64)).weight
        mean += chance * float((weight * values).sum())
    assert mean == pytest.approx(values.sum())


def test_bad_input() -> None:
    ones = np.ones(2, dtype=np.int64)
    with pytest.raises(ValueError, match="order must be 1 or 2"):
        selection_weights(3, ones, ones, np.ones(2), ones > 0, ones)
    words = r"^a planned case has selection probability 0; its labels cannot stand for others$"
    with pytest.raises(ValueError, match=words):
        selection_weights(2, 2 * ones, 2 * ones, np.zeros(2), ones > 1, ones)
    lost = selection_weights(2, 2 * ones, ones, np.ones(2), ones > 0, ones)
    assert any("without any answer" in text for text in lost.warnings())


@given(st.lists(st.floats(0, 1), max_size=60))
def test_quintiles_follow_the_order_and_ties_fall_together(values: list[float]) -> None:
    array = np.array(values)
    found = quintiles(array)
    order = np.argsort(array, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
    for value in set(values):
        assert len(set(found[array == value].tolist())) == 1
    if len(values):
        assert 1 <= found.min() <= found.max() <= 5


def test_cells_are_of_one_arm_and_one_quintile() -> None:
    """Of each of the ten cells two cases are planned; in the cell of selected cases in quintile q, q of six answer."""
    selected = np.repeat([True, False], 30)
    quintile = np.tile(np.repeat(np.arange(1, 6), 6), 2)
    answers = np.tile(np.arange(6), 10) < np.where(selected, quintile, 6)
    pi = np.where(selected, 1.0, 0.5)
    planned = np.full(60, 2)
    weights = selection_weights(2, planned, 1 + answers, pi, selected, quintile)
    assert (weights.order, len(weights.cells)) == (2, 10)
    assert [cell.to_dict() for cell in weights.cells] == [
        {"arm": arm, "quintile": q, "planned": 6, "answered": q if arm == "triage" else 6, "waiting": 0}
        for arm in ("triage", "audit")
        for q in range(1, 6)
    ]
    expected = np.where(answers, np.where(selected, 6 / quintile, 1.0) / pi, 0.0)
    np.testing.assert_allclose(weights.weight, expected)


def test_warnings_say_how_many_labels_came_and_what_no_weight_replaces() -> None:
    ones = np.ones(20, dtype=np.int64)
    came = np.arange(20) > 0
    tail = "did not get them; adjusted by read reason and disagreement"
    first = selection_weights(1, ones, came.astype(np.int64), np.ones(20), ones > 0, ones)
    assert first.warnings() == [f"5.0% of the cells planned for 1 label {tail}"]
    second = selection_weights(2, 2 * ones, 1 + came, np.ones(20), ones > 0, ones)
    assert second.warnings() == [f"5.0% of the cells planned for 2 labels {tail}"]
    lost = selection_weights(2, 2 * ones, ones, np.ones(20), ones > 0, ones)
    nobody = "20 planned cells are in groups without any answer and cannot be represented by weights"
    assert lost.warnings()[1:] == [nobody]
    empty = selection_weights(2, ones, ones, np.ones(20), ones > 0, ones)
    assert (empty.non_response, empty.warnings(), empty.cells) == (0.0, [], [])


def test_quintiles_by_hand() -> None:
    """A quintile begins where the inverse of the empirical distribution function says."""
    assert quintiles(np.arange(10.0)).tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert quintiles(np.array([3.0, 1.0, 4.0, 2.0])).tolist() == [3, 1, 4, 2]
    none = quintiles(np.zeros(0))
    assert (none.shape, none.dtype) == ((0,), np.int64)


def test_those_that_wait_are_stood_in_for_and_are_no_non_response() -> None:
    """Of eight planned twice at π = 1/2 five have answered, two wait, one never answered."""
    ones, n_labels = np.ones(8, dtype=np.int64), np.array([2, 2, 2, 2, 2, 1, 1, 1])
    waiting = np.array([False] * 5 + [True, True, False])
    half = np.full(8, 0.5)
    weights = selection_weights(2, 2 * ones, n_labels, half, half >= 1, ones, waiting)
    np.testing.assert_allclose(weights.weight, [2 * 8 / 5] * 5 + [0] * 3)
    assert [(cell.planned, cell.answered, cell.waiting) for cell in weights.cells] == [(8, 5, 2)]
    assert weights.non_response == pytest.approx(1 / 6)
    none_yet = selection_weights(2, 2 * ones, ones, half, half >= 1, ones, ones > 0)
    assert (none_yet.non_response, none_yet.warnings()) == (0.0, [])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.floats(0.01, 1), st.floats(0.001, 1))
def test_both_designs_spend_the_budget(scores: list[float], share: float, floor: float) -> None:
    dpe = np.array(scores)
    scale = graded_scale(dpe, share, floor)
    pi = graded_probabilities(dpe, scale, floor)
    most = np.where(dpe > 1e-12, 1.0, floor).mean()
    assert pi.mean() == pytest.approx(np.clip(share, floor, max(most, floor)), abs=1e-6)
    assert ((pi >= floor) & (pi <= 1)).all()
    assert (np.diff(pi[np.argsort(dpe)]) >= -1e-12).all()
    certain = threshold_probabilities(dpe, share, floor)
    assert certain.mean() == pytest.approx(max(share, floor), abs=1e-9)
    assert (np.diff(certain[np.argsort(dpe)]) >= -1e-12).all()


def test_the_scale_grows_with_the_budget_and_ends_where_everything_is_certain() -> None:
    dpe = np.random.default_rng(0).random(500)
    scales = [graded_scale(dpe, share, 0.05) for share in (0.01, 0.1, 0.2, 0.5, 0.9, 1.0)]
    assert scales == sorted(scales)
    assert scales[0] == 0
    assert scales[-1] == pytest.approx(1 / np.sqrt(dpe.min()))  # no larger than that: a later case may lie below
    assert graded_scale(np.zeros(5), 0.5, 0.1) == 0
    assert graded_scale(np.zeros(0), 0.5, 0.1) == 0


def test_the_promised_length_is_a_sum_over_pairs_of_cells_of_one_patient() -> None:
    rng = np.random.default_rng(4)
    n, weight = 30, rng.uniform(1, 5, 30)
    pi, loss, patient = rng.uniform(0.1, 1, n), 2 + rng.normal(size=n), np.arange(n) // 3
    sample = select_sample(np.ones(n, bool), weight, patient)
    rest = weight * (loss - np.average(loss, weights=weight))
    pairs = sum(rest[i] * rest[j] for i in range(n) for j in range(n) if i != j and patient[i] == patient[j])
    variance = ((rest**2 / weight / pi).sum() + pairs) / weight.sum() / n
    assert interval_length(pi, loss, sample, n) == pytest.approx(2 * 1.96 * np.sqrt(variance), rel=1e-12)


@pytest.mark.slow
def test_the_promised_length_is_what_the_design_gives() -> None:
    """Cells read twice by one design foretell the spread of an estimate by another, with patients."""
    rng = np.random.default_rng(3)
    n, runs = 1_000, 400
    cluster = np.arange(n) // 5

    def draw() -> tuple[np.ndarray, np.ndarray]:
        shift = rng.normal(0, 0.5, (n // 5, 1))[cluster]
        p = 1 / (1 + np.exp(-(shift + rng.normal(0, 1.5, (n, 1)))))
        f = np.column_stack([p, 1 - p])
        bent = f**1.5 / (f**1.5).sum(1, keepdims=True)
        return rng.multinomial(2, f), bent

    lengths, values, caught = {"all": [], "graded": []}, {"all": [], "graded": []}, {"all": [], "graded": []}
    for _ in range(runs):
        y, f = draw()
        dpe = 1 - (f**2).sum(1)
        designs = {
            "all": threshold_probabilities(dpe, 0.2, 0.1),
            "graded": graded_probabilities(dpe, graded_scale(dpe, 0.2, 0.1), 0.1),
        }
        u = rng.random(n)
        for name, other in (("all", "graded"), ("graded", "all")):
            pi = designs[name]
            rows = np.flatnonzero(u < pi)
            values[name].append(epistemic_loss(y[rows], f[rows], sample_weight=1 / pi[rows]).value)
            sample = select_sample(u < pi, 1 / pi, cluster)
            terms, observed = epistemic_terms(y, f)[:, 1], observed_disagreement(y)
            kept = designs[other][sample.rows]
            lengths[other].append(interval_length(kept, terms[sample.rows], sample, n))
            caught[other].append(
                disagreements_caught(kept, observed[sample.rows], sample) - (designs[other] @ observed) / observed.sum()
            )
    for name in lengths:
        assert np.mean(lengths[name]) == pytest.approx(2 * 1.96 * np.std(values[name]), rel=0.1)
        assert abs(np.mean(caught[name])) < 0.01
    assert np.std(values["graded"]) < np.std(values["all"])
