"""Intervals from few cells: the Bayesian bootstrap, ranges, and warnings."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta

from ml.agreement.coefficients import cohen_kappa, fleiss_kappa, krippendorff_alpha
from ml.metrics import (
    calibration_loss,
    disagreement_calibration_loss,
    epistemic_loss,
    evaluate,
    paired_changes,
)
from ml.metrics.accumulator import GroupSums
from ml.metrics.bayesian_bootstrap import MANY, mean_interval
from ml.metrics.evaluation import evaluate_groups
from ml.metrics.jackknife import skewed_interval
from ml.metrics.ordinal import weighted_kappa
from ml.metrics.reader_variance import Readings
from ml.metrics.sums import Debias
from ml.reproduce import small_samples
from ml.reproduce.coverage import run_small_samples
from ml.util.arrays import FloatArray


def rare(seed: int, n: int, *, weighted: bool = False) -> tuple[FloatArray, FloatArray]:
    """Terms with a few gross errors, and weights."""
    rng = np.random.default_rng(seed)
    terms = np.where(rng.random(n) < 0.04, 1.8, rng.uniform(-0.2, 0.1, n))
    return terms, rng.choice([1.0, 10.0], n) if weighted else np.ones(n)


@pytest.mark.parametrize("n", [8, 50, 400])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_ends_are_quantiles_of_draws(n: int, weighted: bool) -> None:
    terms, weights = rare(n, n, weighted=weighted)
    rng, largest, runs = np.random.default_rng(0), weights.max(), 30
    draws = []
    for _ in range(runs):
        shares, edges = rng.exponential(size=(4_000, n)), largest * rng.gamma(0.5, size=(4_000, 2))
        draws.append((shares @ (weights * terms) + edges @ [-0.5, 2.0]) / (shares @ weights + edges.sum(axis=1)))
    expected = np.quantile(np.concatenate(draws), [0.025, 0.975])
    found = mean_interval(weights * terms, weights, largest, -0.5, 2.0)
    np.testing.assert_allclose(found, expected, atol=0.015 * np.ptp(expected))


def test_half_cases_may_be_given() -> None:
    terms, weights = rare(4, 60, weighted=True)
    rng, totals, of_halves = np.random.default_rng(0), np.array([-3.0, 1.5, 4.0]), np.array([0.0, 10.0, 2.5])
    shares, halves = rng.exponential(size=(100_000, 60)), rng.gamma(0.5, size=(100_000, 3))
    draws = (shares @ (weights * terms) + halves @ totals) / (shares @ weights + halves @ of_halves)
    found = mean_interval(weights * terms, weights, 10.0, -0.5, 2.0, (totals, of_halves))
    expected = np.quantile(draws, [0.025, 0.975])
    np.testing.assert_allclose(found, expected, atol=0.015 * np.ptp(expected))


@pytest.mark.parametrize("n", [10, 50, 1_000])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_terms_of_no_and_yes_give_jeffreys_interval(n: int, share: float) -> None:
    hits = round(share * n)
    expected = beta.ppf([0.025, 0.975], hits + 0.5, n - hits + 0.5)
    found = mean_interval(np.repeat([1.0, 0.0], [hits, n - hits]), np.ones(n), 1.0, 0.0, 1.0)
    np.testing.assert_allclose(found, expected, atol=0.02 * np.ptp(expected))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 80), unit=st.floats(0.01, 100), weighted=st.booleans())
def test_order_unit_and_direction_do_not_matter(seed: int, n: int, unit: float, weighted: bool) -> None:
    terms, weights = rare(seed, n, weighted=weighted)
    largest = weights.max()
    low, high = mean_interval(weights * terms, weights, largest, -0.5, 2.0)
    assert -0.5 < low < high < 2.0
    order = np.random.default_rng(seed).permutation(n)
    mirrored = mean_interval(-(weights * terms)[order], weights[order], largest, -2.0, 0.5)
    np.testing.assert_allclose(mirrored, (-high, -low), rtol=1e-6, atol=1e-8)
    scaled = mean_interval(unit**2 * weights * terms, unit * weights, unit * largest, -0.5 * unit, 2.0 * unit)
    np.testing.assert_allclose(scaled, (low * unit, high * unit), rtol=1e-6, atol=1e-8 * unit)


def test_with_many_cases_and_enough_large_terms_it_is_as_short_as_students_t() -> None:
    for seed in range(8):
        terms, ones = rare(seed, 1_000)
        assert (terms > 0.75).sum() >= 10
        low, high = mean_interval(terms, ones, 1.0, -0.5, 2.0)
        influence = (terms - terms.mean()) / len(terms)
        other_low, other_high = skewed_interval(terms.mean(), float(np.sqrt((influence**2).sum())), influence, 1_000)
        assert 0.95 < (high - low) / (other_high - other_low) < 1.03


def test_cells_on_which_annotators_agree_leave_room_for_disagreement() -> None:
    """Twenty pairs of equal labels are compatible with a rate of 14 %."""
    y, f, phi = np.tile([2, 0], (20, 1)), np.tile([0.9, 0.1], (20, 1)), np.full(20, 0.05)
    evaluation = evaluate(y, f, phi)
    for name, value, least in (("EL", 0.02, 0.2), ("L_D", 0.0025, 0.1), ("CE_D", 0.05, 0.0625)):
        found = evaluation.metrics[name]
        assert found.low is not None
        assert found.high is not None
        assert found.value == pytest.approx(value)
        assert found.low <= value < least < found.high, name
    assert evaluation.metrics["CE_D"].low == 0
    assert [text.split(" (")[0] for text in evaluation.warnings] == ["fewer than ten disagreements"]
    y[:10] = [1, 1]
    assert not any("fewer than ten" in text for text in evaluate(y, f, phi).warnings)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(3, 12), clustered=st.booleans())
def test_skill_and_coefficients_never_exceed_one(seed: int, n: int, clustered: bool) -> None:
    rng = np.random.default_rng(seed)
    f = rng.dirichlet([0.4] * 3, n)
    y = np.array([rng.multinomial(2, row) for row in f])
    patients = rng.integers(0, max(n // 2, 2), n) if clustered else None
    labels = np.array([np.repeat(range(3), row) for row in y])
    metrics = evaluate(y, f, cluster=patients).metrics
    found = {
        "skill": metrics["skill"],
        "skill_D": metrics["skill_D"],
        "alpha": krippendorff_alpha(y, cluster=patients),
        "ordinal alpha": krippendorff_alpha(y, level="ordinal", cluster=patients),
        "Fleiss": fleiss_kappa(y),
        "Cohen": cohen_kappa(*labels.T, 3, cluster=patients),
        "weighted": weighted_kappa(y, f, cluster=patients),
    }
    for name, estimate in found.items():
        if estimate.low is not None and estimate.high is not None:
            assert estimate.low <= estimate.value <= estimate.high <= 1, name


@pytest.mark.parametrize("debias", ["pair", "paper", "none"])
def test_ends_lie_within_the_range_of_the_quantity_and_of_its_debiased_estimate(debias: Debias) -> None:
    losses, squares = ("CL", "CL_paired", "DL"), ("CL_plugin", "DL_plugin", "EL_plugin")
    signed = -2.0 if debias != "none" else 0.0
    ranges = dict.fromkeys(losses, (signed, 2.0)) | dict.fromkeys(squares, (0.0, 2.0))
    ranges |= {"EL": (-0.5 if debias != "none" else 0.0, 2.0), "CE": (0.0, 2**0.5), "CE_D": (0.0, 1.0)}
    ranges |= {"CL_D": (signed / 2, 1.0), "CL_D_plugin": (0.0, 1.0)}
    ranges |= dict.fromkeys(("L_D_minus_max", "L_D_minus_gini"), (-1.0, 1.0))
    for seed in range(40):
        rng = np.random.default_rng(seed)
        n, m = rng.integers(2, 8), rng.integers(2, 5)
        labels = np.array([rng.choice(3, m, p=q) for q in rng.dirichlet([0.3] * 3, n)])
        y = (labels[..., None] == np.arange(3)).sum(axis=1)
        readings = Readings(np.repeat(np.arange(n), m), np.tile(np.arange(m), n), labels.ravel())
        f, phi, bins = rng.dirichlet([0.3] * 3, n), rng.random(n), int(rng.choice([1, 3, 15]))
        metrics = evaluate(y, f, phi, n_bins=bins, debias=debias, readings=readings).metrics
        for name, (least, most) in ranges.items():
            found = metrics[name]
            low, high = min(least, found.value) - 1e-12, max(most, found.value) + 1e-12
            ends = (found.low, found.high, found.low_new, found.high_new)
            assert all(low <= end <= high for end in ends if end is not None), (name, seed, found)


def test_without_debiasing_a_loss_is_its_plug_in() -> None:
    rng = np.random.default_rng(1)
    f = rng.dirichlet([1, 1, 1], 30)
    metrics = evaluate(np.array([rng.multinomial(3, row) for row in f]), f, debias="none").metrics
    for name in ("EL", "DL", "CL_D"):
        assert metrics[name] == metrics[f"{name}_plugin"], name


@pytest.mark.parametrize("seed", range(10))
def test_one_patient_has_values_without_an_error(seed: int) -> None:
    rng = np.random.default_rng(seed)
    f, g = rng.dirichlet([1, 1, 1], (2, 12))
    y = np.array([rng.multinomial(3, row) for row in f])
    pair = [(probs, 1 - (probs**2).sum(axis=1)) for probs in (f, g)]
    options: Any = {"sample_weight": rng.uniform(1, 3, 12), "cluster": ["p"] * 12}
    for found in (evaluate(y, *pair[0], **options).metrics, paired_changes(y, pair[0], pair[1], **options)):
        assert np.isfinite(found["L_D"].value)
        assert all(estimate.se is None and estimate.low is None for estimate in found.values())


def test_a_weighted_kappa_is_never_below_minus_one() -> None:
    y, f = np.eye(3, dtype=np.int64)[[0, 2, 1, 0, 2]], np.eye(3)[[2, 0, 1, 2, 1]]
    found = weighted_kappa(y, f)
    assert found.low == -1 < found.value


def test_no_disagreement_is_no_proof_of_agreement() -> None:
    found = krippendorff_alpha(np.repeat([[2, 0], [0, 2]], 10, axis=0))
    assert found.value == found.high == 1
    assert found.low == pytest.approx(1 - beta.ppf(0.975, 0.5, 20.5) / 0.5, abs=0.01)


@pytest.mark.parametrize("clustered", [False, True])
def test_full_agreement_on_grades_is_no_proof_of_agreement_either(clustered: bool) -> None:
    classes = np.array([0, 1] * 10)
    cluster = np.arange(20) // 2 if clustered else None
    y = np.eye(2, dtype=np.int64)[classes] * 2
    alphas = [krippendorff_alpha(y, level=level, cluster=cluster) for level in ("nominal", "ordinal")]
    kappas = [cohen_kappa(classes, classes, 2, level=level, cluster=cluster) for level in ("nominal", "ordinal")]
    for found in (alphas, [*kappas, fleiss_kappa(y, cluster=cluster)]):
        for estimate in found:  # two grades are two classes
            assert (estimate.value, estimate.high) == (1, 1)
            assert estimate.low == pytest.approx(found[0].low, rel=1e-9)
    # by chance, labels differ as if drawn without replacement
    assert alphas[0].low == pytest.approx(1 - (1 - kappas[0].low) * 39 / 40, rel=1e-3)
    for seed in range(20):
        grades = np.random.default_rng(seed).integers(0, 7, 60)
        y = np.eye(7, dtype=np.int64)[grades] * 3
        for estimate in (krippendorff_alpha(y, level="ordinal"), cohen_kappa(grades, grades, 7, level="ordinal")):
            assert (estimate.value, estimate.high) == (1, 1)
            assert 0.3 < estimate.low < 0.99


def test_a_skill_that_no_case_moves_has_the_interval_of_its_loss() -> None:
    y, f = np.repeat([[2, 0], [0, 2]], 25, axis=0), np.repeat([[0.9, 0.1], [0.1, 0.9]], 25, axis=0)
    metrics = evaluate(y, f).metrics
    loss, skill = metrics["L"], metrics["skill"]
    assert loss.low is not None
    assert loss.high is not None
    np.testing.assert_allclose([skill.low, skill.high], [1 - loss.high / 0.5, 1 - loss.low / 0.5], rtol=1e-9)


@pytest.mark.parametrize("disagreements", [1, 2, 3, 10])
def test_a_few_disagreements_say_more_of_agreement_than_none(disagreements: int) -> None:
    """Of two equally frequent classes it is 1 − 2 × the share that differs, whose interval is a binomial's."""
    first = np.array([0, 1] * 50)
    second = np.where(np.arange(100) < disagreements, 1 - first, first)
    counts = np.eye(2, dtype=np.int64)[first] + np.eye(2, dtype=np.int64)[second]
    low, high = 1 - 2 * beta.ppf([0.975, 0.025], disagreements + 0.5, 100.5 - disagreements)
    found = [fleiss_kappa(counts)]
    for level in ("nominal", "ordinal"):
        found += [cohen_kappa(first, second, 2, level=level), krippendorff_alpha(counts, level=level)]
    for estimate in found:
        assert estimate.value == pytest.approx(1 - 2 * disagreements / 100, abs=0.002)
        assert estimate.low == pytest.approx(low, abs=0.01)
        assert estimate.high == pytest.approx(high, abs=0.01)


def test_a_network_with_few_errors_is_better_than_the_class_frequencies() -> None:
    """With two errors in 50 cells; each is half of the loss."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        classes = rng.choice(3, 50, p=[0.5, 0.3, 0.2])
        predicted = np.where(np.arange(50) < 2, (classes + 1) % 3, classes)
        f = np.eye(3)[predicted] * 0.97 + 0.01
        found = evaluate(np.eye(3, dtype=np.int64)[classes], f)
        skill = found.metrics["skill"]
        assert skill.low is not None
        assert 0.5 < skill.low < skill.value < 1
        assert not any("class frequencies" in text for text in found.warnings)


def test_one_more_cell_does_not_change_what_few_disagreements_show() -> None:
    """From 2,000 cells on like ones are pooled; nine rare disagreements, five of them foreseen, count as before."""
    ends = []
    for n in (1_999, 2_000, 2_001, 5_000):
        y, dpe = np.tile([2, 0], (n, 1)), np.full(n, 0.002)
        dpe[:20], y[:5], y[20:24] = 0.3, [1, 1], [1, 1]
        metrics = evaluate(y, np.tile([0.99, 0.01], (n, 1)), dpe).metrics
        alpha = krippendorff_alpha(np.concatenate([y, [[0, 2]] * 3]))
        ends.append([end for found in (metrics["skill"], metrics["skill_D"], alpha) for end in (found.low, found.high)])
    np.testing.assert_allclose(ends[1:3], [ends[0]] * 2, atol=0.002)
    np.testing.assert_allclose(ends[3][2:], ends[0][2:], atol=0.02)


def test_a_skill_far_below_zero_has_an_interval() -> None:
    y, f = np.tile([2, 0], (2_500, 1)), np.tile([0.25, 0.75], (2_500, 1))
    y[0], f[0] = [0, 2], [0.75, 0.25]
    skill = evaluate(y, f).metrics["skill"]
    assert skill.low is not None
    assert skill.high is not None
    assert -np.inf < skill.low < skill.value < skill.high < 0


def test_honest_predictions_are_not_called_impossible() -> None:
    """With 200 classes no two labels need agree by chance."""
    rng = np.random.default_rng(0)
    for _ in range(2):
        f = rng.dirichlet([1.0] * 200, 50)
        y = np.array([rng.multinomial(2, row) for row in f])
        assert not any("impossible" in text for text in evaluate(y, f).warnings)
    labels = np.repeat([[3, 0], [1, 2]], 40, axis=0)
    assert any("impossible" in text for text in evaluate(labels, labels / 3).warnings)


def test_worse_needs_a_difference_that_matters() -> None:
    y = np.repeat([[2, 0], [0, 2], [1, 1]], 400, axis=0)
    for move, word in ((0.01, "no better"), (0.15, "worse")):
        f = np.tile([0.5 + move, 0.5 - move], (len(y), 1))
        said = [text for text in evaluate(y, f, np.full(len(y), 1 / 3)).warnings if "class frequencies" in text]
        assert len(said) == 1
        assert word in said[0]


def test_calibration_without_a_pair_in_any_bin_is_undefined() -> None:
    y, f = np.array([[2, 0], [1, 1], [0, 2]]), np.array([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]])
    assert np.isnan(calibration_loss(y, f).value)
    assert np.isnan(disagreement_calibration_loss(y, [0.1, 0.5, 0.9]).value)
    metrics = evaluate(y, f, [0.1, 0.5, 0.9]).to_dict()["metrics"]
    assert {name: metrics[name]["value"] for name in ("CL", "CE", "CL_D", "CE_D")} == dict.fromkeys(
        ("CL", "CE", "CL_D", "CE_D")
    )


def test_a_stream_of_few_cells_has_the_intervals_of_its_cells() -> None:
    """Where no two cells share a group; fewer warnings cannot come of it either."""
    sample = small_samples.draw(50, 0.05, np.random.default_rng(1))
    sums = GroupSums(3, by_patient=False, n_groups=4_000)
    sums.add(sample.counts, sample.probs, sample.dpe, units=np.arange(50))
    assert (sums.used[1] <= 1).all()
    stream, whole = evaluate_groups(sums, sums), evaluate(sample.counts, sample.probs, sample.dpe)
    for name in ("EL", "L", "L_D", "agreement", "skill_D", "CL_D"):
        one, other = stream.metrics[name], whole.metrics[name]
        np.testing.assert_allclose(
            [one.low or np.nan, one.high or np.nan], [other.low or np.nan, other.high or np.nan], rtol=1e-6
        )
    assert any("fewer than ten" in text for text in stream.warnings)


def test_from_many_cells_on_it_is_students_t() -> None:
    y, f = np.tile([2, 0], (MANY, 1)), np.tile([0.9, 0.1], (MANY, 1))
    y[: MANY // 2] = [1, 1]
    found, terms = epistemic_loss(y, f), np.repeat([-0.18, 0.02], MANY // 2)
    influence = (terms - terms.mean()) / (MANY - 1)
    low, high = skewed_interval(found.value, found.se or 0, influence, MANY)
    np.testing.assert_allclose([found.low, found.high], [low, high], rtol=1e-9)


def test_with_few_pairs_el_is_the_loss_of_all_less_the_disagreement_of_pairs() -> None:
    """As in every case; a regression would follow a handful of labels."""
    for seed in range(5):
        sample = small_samples.draw(60, 0.05, np.random.default_rng(seed), triage=True)
        metrics = evaluate(sample.counts, sample.probs, sample.dpe, sample_weight=(None, sample.weights2)).metrics
        pairs, assisted = sample.counts.sum(axis=1) == 2, metrics["EL"].model_assisted
        differ = (sample.counts[pairs] == 1).any(axis=1)
        if differ.sum() <= 4:
            assert sample.weights2 is not None
            assert assisted is not None
            rate = np.average(differ, weights=sample.weights2[pairs])
            assert assisted.value == pytest.approx(metrics["L"].value - rate, abs=1e-12)


@pytest.mark.parametrize("clustered", [False, True])
def test_first_labels_bound_the_epistemic_loss(clustered: bool) -> None:
    """Second labels can lower it only: a hundred good first labels leave no room for gross errors."""
    y, weights = np.repeat([[2, 0], [1, 0]], [20, 80], axis=0), np.repeat([1.0, 9.0, 1.0], [10, 10, 80])
    f, patients = np.tile([0.9, 0.1], (100, 1)), np.arange(100) // 2 if clustered else None
    metrics = evaluate(y, f, np.full(100, 0.1), sample_weight=(None, weights), cluster=patients).metrics
    found, plugin = metrics["EL"], metrics["EL_plugin"].model_assisted
    assisted = found.model_assisted
    assert plugin is not None
    assert plugin.low is not None
    assert plugin.low >= 0  # a square
    assert assisted is not None
    assert found.high is not None
    assert assisted.low is not None
    assert assisted.high is not None
    assert assisted.value == pytest.approx(0.02)
    assert -0.25 < assisted.low < 0.02 < assisted.high < 0.12 < 0.3 < found.high


@pytest.mark.slow
@pytest.mark.ci
def test_assistance_neither_biases_nor_misses() -> None:
    """The spread is below the plain mean's; chances of a failure are below 1 in 1,000."""
    rng, plain, ends = np.random.default_rng(5), [], []
    truth = small_samples.truths(small_samples.draw(400_000, 0.01, rng))["EL"]
    for _ in range(120):
        found = small_samples.estimate(small_samples.draw(1_000, 0.01, rng, triage=True))
        assisted = found["EL" + small_samples.ASSISTED]
        plain.append(found["EL"].value)
        ends.append((assisted.value, assisted.low, assisted.high))
    values, low, high = np.array(ends).T
    assert abs(values.mean() - truth) < 3.5 * values.std() / np.sqrt(120)
    assert values.std() < 0.55 * np.std(plain)
    assert ((low <= truth) & (truth <= high)).mean() > 0.88


@pytest.mark.slow
@pytest.mark.ci
def test_small_samples_cover() -> None:
    """In 150 runs of each world; the chance of a failure is below 1 in 1,000."""
    rng = np.random.default_rng(11)
    for rate in small_samples.RATES:
        large = small_samples.draw(400_000, rate, rng)
        aims, shares = small_samples.truths(large), large.true_probs.mean(axis=0)
        loss = 1 + (large.probs**2 - 2 * large.probs * large.true_probs).sum(axis=1).mean()
        skill, above, missed = 1 - loss / (1 - shares @ shares), 0, 0
        for _ in range(150):
            drawn = small_samples.draw(50, rate, rng)
            found = evaluate(drawn.counts, drawn.probs).metrics
            assert found["EL"].high is not None
            above += aims["EL"] > found["EL"].high
            assert found["skill"].low is not None
            assert found["skill"].high is not None
            missed += not found["skill"].low <= skill <= found["skill"].high
        assert above <= 14
        assert missed <= 18


@pytest.mark.heavy
def test_small_samples_reach_their_goals() -> None:
    rows = run_small_samples(1, runs=1_000)
    for row in rows:
        assert row.coverage > small_samples.GOAL[0] - 0.02, row
        assert row.above < small_samples.MOST_FLATTERING + 0.015, row
