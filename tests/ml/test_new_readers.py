"""Intervals for new readers, means with the help of a model, and metrics of ordered classes."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import multinomial
from statsmodels.stats import inter_rater

from experiments.worlds.reader_worlds import Study, crossed, service, worlds
from ml.metrics import evaluate, paired_changes
from ml.metrics.binned import Binned
from ml.metrics.cases import class_frequencies, epistemic_terms, select_sample
from ml.metrics.jackknife import NO_READERS, Estimate, mean_replicates
from ml.metrics.losses import calibration_loss
from ml.metrics.model_assisted import cross_fitted, model_assisted_means
from ml.metrics.ordinal import (
    epistemic_ranked_probability_score,
    ordinal_metrics,
    ranked_probability_change,
    ranked_probability_score,
    ranked_probability_skill,
    weighted_kappa,
)
from ml.metrics.reader_variance import GROUPS, CrossedEffects, LeftOut, Readings, calibration_of
from ml.metrics.sums import Debias
from ml.util.arrays import FloatArray, IntArray

LEANING = worlds()[0]


def readings_of(study: Study) -> Readings:
    return Readings(study.case, study.reader, study.label, None if study.weights2 is None else study.first)


def metrics_of(study: Study, readings: Readings | None) -> dict[str, Estimate]:
    weights = None if study.weights2 is None else np.ones(len(study.patient))
    options: dict[str, Any] = {"sample_weight": (weights, study.weights2), "cluster": study.patient}
    if study.weights2 is not None:
        options["first_label_counts"] = study.counts(first=True)
    options["readings"] = readings
    changes = paired_changes(study.counts(), study.before, study.after, **options)
    metrics = evaluate(study.counts(), *study.before, **options).metrics
    return metrics | {f"Δ{name}": estimate for name, estimate in changes.items()}


def small(seed: int = 0, n_readers: int = 5) -> Study:
    return crossed(LEANING, n_readers, np.random.default_rng(seed), 60, 3)


def grid(values: FloatArray) -> tuple[CrossedEffects, FloatArray]:
    """Everybody (R) has read every case (N)."""
    n = values.shape[1]
    reader, case = np.divmod(np.arange(values.size), n)
    sample = select_sample(np.ones(n, dtype=bool), None, None)
    found = CrossedEffects.of(Readings(case, reader, np.zeros_like(case)), sample, n)
    assert found is not None
    return found, values.ravel()


def test_where_everybody_read_everything_it_is_the_analysis_of_variance() -> None:
    values = np.random.default_rng(1).normal(0, 1, (6, 40)) + np.linspace(-2, 2, 6)[:, None]
    readers, cases = values.mean(axis=1), values.mean(axis=0)
    rest = values - readers[:, None] - cases + values.mean()
    component = readers.var(ddof=1) - (rest**2).sum() / (5 * 39) / 40
    found, terms = grid(values)
    part = found.part(terms)
    assert part is not None
    assert part.variance == pytest.approx(component / 6, rel=1e-9)
    assert part.df == pytest.approx(5)


def test_shares_have_the_variance_of_percent_correct() -> None:
    """That of Gallas, Pennello and Myers 2007: R readers' mean square and R mean covariances, by pairs of cases."""
    rng = np.random.default_rng(2)
    hard = rng.uniform(-0.4, 0.3, 80)
    correct = (rng.random((5, 80)) < np.linspace(0.5, 0.9, 5)[:, None] + hard).astype(np.float64)
    found, terms = grid(correct)
    part, of_cases = found.part(terms), correct.mean(axis=0).var(ddof=1) / 80
    assert part is not None
    scores, others = correct.mean(axis=1), ~np.eye(5, dtype=bool)
    apart = (np.outer(correct.sum(axis=1), correct.sum(axis=1)) - correct @ correct.T) / (80 * 79)
    covariance = (np.outer(scores, scores) - apart)[others].mean()
    assert part.variance + of_cases == pytest.approx((scores.var(ddof=1) + 5 * covariance) / 5, rel=1e-9)


@pytest.mark.parametrize("design", [crossed, service])
def test_neither_names_nor_order_matter(design: Any) -> None:
    study = design(LEANING, 6, np.random.default_rng(3))
    rng = np.random.default_rng(4)
    order, names = rng.permutation(study.case.size), rng.permutation(6) * 7 + 3
    mixed = replace(
        study,
        case=study.case[order],
        reader=names[study.reader][order],
        label=study.label[order],
        first=study.first[order],
    )
    one, other = (metrics_of(each, readings_of(each)) for each in (study, mixed))
    for name, estimate in one.items():
        if estimate.low_new is not None:
            assert other[name].low_new == pytest.approx(estimate.low_new, rel=1e-7, abs=1e-9), name
            assert other[name].high_new == pytest.approx(estimate.high_new, rel=1e-7, abs=1e-9), name


def test_every_metric_has_both_intervals_and_the_one_for_new_readers_holds_the_other() -> None:
    for study in (small(), service(LEANING, 5, np.random.default_rng(5))):
        plain, found = metrics_of(study, None), metrics_of(study, readings_of(study))
        for name, estimate in found.items():
            if estimate.n == 0:  # nobody read three times
                continue
            assert replace(estimate, low_new=None, high_new=None) == plain[name]
            assert estimate.low is not None
            assert estimate.high is not None
            assert estimate.low_new is not None, name
            assert estimate.high_new is not None, name
            assert estimate.low_new <= estimate.low <= estimate.high <= estimate.high_new, name
        for name, top in (("L", 2), ("agreement", 1), ("L_D", 1)):
            assert 0 <= (found[name].low_new or 0) <= (found[name].high_new or 0) <= top


def test_with_two_readers_nothing_is_said_of_others_but_that() -> None:
    study = small(n_readers=2)
    evaluation = evaluate(study.counts(), *study.before, cluster=study.patient, readings=readings_of(study))
    assert {estimate.high_new for estimate in evaluation.metrics.values()} == {None}
    assert [text for text in evaluation.warnings if "fewer than three annotators" in text]
    three = small(n_readers=3)
    metrics = metrics_of(three, readings_of(three))
    assert metrics["L"].high_new is not None
    assert metrics["EL"].high_new is not None


def test_two_readers_and_helpers_of_one_case_are_two_readers() -> None:
    study = small(n_readers=2)
    helpers = np.arange(10)
    readings = readings_of(study)
    more = Readings(
        np.concatenate([readings.case, helpers * 3]),
        np.concatenate([readings.annotator, 10 + helpers]),
        np.concatenate([readings.label, helpers * 0]),
    )
    counts = study.counts()
    np.add.at(counts, (helpers * 3, 0), 1)
    evaluation = evaluate(counts, *study.before, cluster=study.patient, readings=more)
    assert evaluation.metrics["L"].high_new is None


@pytest.mark.parametrize("design", [crossed, service])
def test_where_every_label_has_a_name_of_its_own_cases_tell_all(design: Any) -> None:
    study = design(LEANING, 5, np.random.default_rng(6))
    nameless = replace(readings_of(study), annotator=np.arange(study.case.size))
    for name, estimate in metrics_of(study, nameless).items():
        if name.removeprefix("Δ") in {"L", "agreement", "EL", "L_D", "skill"}:
            assert (estimate.low_new, estimate.high_new) == (estimate.low, estimate.high), name


def test_many_names_take_no_table_of_all_by_all() -> None:
    n = 100_000
    rng = np.random.default_rng(7)
    probs = rng.dirichlet(np.ones(3), n)
    label = rng.integers(0, 3, (n, 2))
    counts = (label[:, :, None] == np.arange(3)).sum(axis=1)
    readings = Readings(np.repeat(np.arange(n), 2), rng.integers(0, 50_000, 2 * n), label.ravel())
    estimate = evaluate(counts, probs, readings=readings).metrics["EL"]
    assert estimate.high is not None
    assert estimate.high_new == pytest.approx(estimate.high, abs=0.2 * (estimate.se or 0))


def test_one_reader_with_most_of_the_labels_is_one_reader() -> None:
    """What one reader says most of the time, with a few labels of four others, tells little of a sixth."""
    rng = np.random.default_rng(8)
    study = service(LEANING, 5, rng)
    heavy = np.where(rng.random(study.case.size) < 0.9, 0, study.reader)
    even, uneven = (
        metrics_of(study, replace(readings_of(study), annotator=names))["L"] for names in (study.reader, heavy)
    )
    shifted = study.label.copy()
    for reader in range(5):
        mine = np.flatnonzero(heavy == reader)
        shifted[mine[: mine.size * reader // 8]] = 0
    moved = replace(study, reader=heavy, label=shifted)
    different = metrics_of(moved, readings_of(moved))["L"]
    assert even.high_new is not None
    assert uneven.high_new is not None
    assert width(different) > 3 * ((different.high or 0) - (different.low or 0))


def width(estimate: Estimate) -> float:
    assert estimate.low_new is not None
    assert estimate.high_new is not None
    return estimate.high_new - estimate.low_new


def _without(study: Study, reader: int) -> IntArray:
    counts = study.counts()
    mine = study.reader == reader
    np.subtract.at(counts, (study.case[mine], study.label[mine]), 1)
    return counts


@pytest.mark.parametrize("design", [crossed, service])
def test_leaving_a_reader_out_is_what_it_says(design: Any) -> None:
    study = design(LEANING, 4, np.random.default_rng(9))
    counts, probs = study.counts(), study.before[0]
    sample = select_sample(counts.sum(axis=1) >= 2, study.weights2, study.patient)
    found = CrossedEffects.of(readings_of(study), sample, len(counts))
    assert found is not None
    left = LeftOut.of(found, counts[sample.rows], probs[sample.rows])
    freqs = class_frequencies(counts[sample.rows])
    binned = Binned.of(freqs, probs[sample.rows], sample, 5, "uniform", "none")
    means = left.means(lambda rest, case: epistemic_terms(rest, left.probs[case])[:, 1], 2)
    bins = left.bins(lambda rest, case: class_frequencies(rest), left.probs, 2, binned.slots, binned.bins)
    plugin = calibration_of(bins, probs.shape[1], "none")
    groups = np.argsort(-found.cells.of_reader, kind="stable")
    for group, reader in enumerate(groups.tolist()):
        rest = _without(study, reader)
        usable = (rest.sum(axis=1) >= 2) & (counts.sum(axis=1) >= 2)
        weight = (np.ones(len(rest)) if study.weights2 is None else study.weights2)[usable]
        terms = epistemic_terms(rest[usable], probs[usable])[:, 1]
        if usable.any():
            assert means[group] == pytest.approx(weight @ terms / weight.sum(), rel=1e-9)
            value = calibration_loss(rest[usable], probs[usable], n_bins=5, debias="none", sample_weight=weight).value
            assert plugin[group] == pytest.approx(value, rel=1e-9)


def test_many_readers_are_left_out_in_groups() -> None:
    study = crossed(LEANING, GROUPS + 20, np.random.default_rng(10), 40, 2)
    metrics = metrics_of(study, readings_of(study))
    assert metrics["CL"].high_new is not None
    assert metrics["CL"].high is not None
    assert metrics["CL"].high_new > metrics["CL"].high


def test_readers_who_read_one_site_only_count_the_site_as_theirs() -> None:
    """Sites that differ cannot be told from readers who do, and the interval is the longer."""
    rng = np.random.default_rng(11)
    site = np.repeat(np.arange(6), 50)
    values = rng.normal(0, 1, 300) + 2.0 * rng.normal(0, 1, 6)[site]
    sample = select_sample(np.ones(300, dtype=bool), None, None)
    found = CrossedEffects.of(Readings(np.arange(300), site, site * 0), sample, 300)
    assert found is not None
    part = found.part(values)
    assert part is not None
    means = values.reshape(6, 50).mean(axis=1)
    assert part.variance == pytest.approx(means.var(ddof=1) / 6, rel=0.05)


def test_readings_that_do_not_fit_are_refused() -> None:
    study = small()
    for bad in (replace(readings_of(study), case=study.case + 1), replace(readings_of(study), label=study.label[1:])):
        with pytest.raises(ValueError, match=r"readings\."):
            evaluate(study.counts(), *study.before, readings=bad)


def test_without_patients_in_common_nothing_is_added() -> None:
    sample = select_sample(np.ones(4, dtype=bool), None, None)
    found = CrossedEffects.of(Readings(np.arange(4), np.arange(4), np.zeros(4, dtype=np.int64)), sample, 4)
    assert found is not None
    assert found.part(np.arange(4.0)) == NO_READERS


def test_ranks_of_two_classes_are_half_of_the_squared_loss() -> None:
    study = small()
    two = replace(study, label=np.minimum(study.label, 1))
    counts, probs = two.counts()[:, :2], np.stack([study.before[0][:, 0], 1 - study.before[0][:, 0]], axis=1)
    options: dict[str, Any] = {"cluster": study.patient, "readings": readings_of(two)}
    squared, ranked = evaluate(counts, probs, **options).metrics, ordinal_metrics(counts, probs, **options)
    for name, other in (("RPS", "L"), ("RPS_epistemic", "EL")):
        for part in ("value", "low_new", "high_new"):
            assert getattr(ranked[name], part) == pytest.approx(getattr(squared[other], part) / 2, rel=1e-9)
    for name in ("skill_RPS", "weighted_kappa"):
        assert width(ranked[name]) > (ranked[name].high or 0) - (ranked[name].low or 0)


def world(seed: int, n: int = 120, patients: int = 30) -> dict[str, Any]:
    """Losses that features tell something about, known where a coin of known probability fell."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)) + 2
    loss = features @ [0.5, -0.2, 0.1] + rng.normal(0, 1, n)
    pi = np.where(features[:, 0] > 3, 1.0, 0.25)
    weight = np.where(rng.random(n) < pi, 1 / pi, 0.0)
    return {"loss": loss, "weight": weight, "features": features, "cluster": rng.integers(0, patients, n), "pi": pi}


def population(w: dict[str, Any], *, clustered: bool = True) -> Any:
    return select_sample(np.ones(len(w["loss"]), dtype=bool), None, w["cluster"] if clustered else None)


def found(w: dict[str, Any], *, clustered: bool = True) -> Any:
    people = population(w, clustered=clustered)
    losses = [(w["loss"][people.rows], None, False)]
    return model_assisted_means(losses, w["weight"][people.rows], w["features"][people.rows], people)[0]


@pytest.mark.parametrize("clustered", [False, True])
def test_predictions_come_from_fits_without_the_patient(clustered: bool) -> None:
    w = world(0)
    people = population(w, clustered=clustered)
    loss, weight, features = (w[name][people.rows] for name in ("loss", "weight", "features"))
    group = np.arange(len(loss)) if people.cluster is None else people.cluster
    precision = np.maximum(weight * (weight - 1), 0)
    scaled = (features - features.mean(0)) / features.std(0)
    design = np.column_stack([np.ones(len(loss)), scaled])
    mean = precision[precision > 0].mean()
    expected = np.empty(len(loss))
    for own in np.unique(group):
        others = group != own
        # least squares with one more row a slope, of one case's weight, that pulls it to zero
        root = np.sqrt(precision[others])
        pull = np.sqrt(mean) * np.eye(4)[1:]
        fit = np.linalg.lstsq(
            np.vstack([root[:, None] * design[others], pull]), np.append(root * loss[others], [0] * 3), rcond=None
        )[0]
        expected[group == own] = design[group == own] @ fit
    np.testing.assert_allclose(cross_fitted(loss, precision, features, people), expected, rtol=1e-4)


@pytest.mark.parametrize("clustered", [False, True])
def test_names_and_order_of_patients_and_units_of_features_change_nothing(clustered: bool) -> None:
    w = world(1)
    expected = found(w, clustered=clustered)
    order = np.random.default_rng(2).permutation(len(w["loss"]))
    other = {name: values[order] for name, values in w.items()}
    other["cluster"] = np.array([f"patient {(7 * name) % 30}" for name in other["cluster"]])
    other["features"] = other["features"] * [1000, 0.01, -1] + [5, 0, 3]
    again = found(other, clustered=clustered)
    for name in ("value", "se", "low", "high"):
        assert getattr(again, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_of_nobody_nothing_is_known() -> None:
    nobody = world(0, n=0)
    assert np.isnan(found(nobody).value)
    empty = np.zeros(0)
    assert cross_fitted(empty, empty, np.zeros((0, 3)), population(nobody)).shape == (0,)


def test_where_everybody_is_known_it_is_the_mean() -> None:
    w = world(3)
    w["weight"] = np.ones(len(w["loss"]))
    estimate, plain = found(w), mean_replicates(w["loss"][population(w).rows], population(w))
    assert estimate.value == pytest.approx(w["loss"].mean(), abs=1e-14)
    assert estimate.se == pytest.approx(plain.standard_error(), rel=1e-12)


def test_useless_features_cost_nothing_and_good_ones_help() -> None:
    """Spread of the estimates over coins and noise, and the error that they claim: 300 draws of one population."""
    gains = []
    for useful in (False, True):
        plain, assisted, claimed = [], [], []
        for seed in range(300):
            w = world(seed, n=400, patients=100)
            if not useful:
                w["features"] = np.random.default_rng(seed + 10_000).normal(size=(400, 3))
            known = replace(population(w), weight=w["weight"][population(w).rows])
            plain.append(mean_replicates(w["loss"][known.rows], known).value)
            estimate = found(w)
            assisted.append(estimate.value)
            claimed.append(estimate.se)
        truth = np.mean([world(seed, n=400, patients=100)["loss"].mean() for seed in range(300)])
        assert abs(np.mean(assisted) - truth) < 3 * np.std(assisted) / np.sqrt(300)
        gains.append(np.var(assisted) / np.var(plain))
    assert gains[0] < 1.1
    assert gains[1] < 0.95


def test_the_change_of_el_is_what_first_labels_say_of_l() -> None:
    """L and EL change by the same, and L is known of everybody: nothing is left for second labels to estimate."""
    rng = np.random.default_rng(6)
    n = 600
    q = rng.dirichlet(np.ones(3), n)
    twice = rng.random(n) < 0.2
    y = np.array([rng.multinomial(1 + both, row) for both, row in zip(twice, q, strict=True)])
    sides = [(f, 1 - (f**2).sum(1)) for f in (rng.dirichlet(np.ones(3), n), 0.5 * q + 1 / 6)]
    changes = paired_changes(y, sides[0], sides[1], sample_weight=(None, np.where(twice, 5.0, 1.0)))
    for name in ("value", "se", "low", "high", "p_of_fall"):
        assert getattr(changes["EL"].model_assisted, name) == pytest.approx(getattr(changes["L"], name), rel=1e-9)
    assert changes["EL"].se > 1.5 * changes["L"].se


@pytest.mark.parametrize("clustered", [False, True])
def test_cases_without_any_label_are_evaluated_as_that(clustered: bool) -> None:
    """A service that predicts before anybody reads has weights, and nothing to weigh."""
    n = 4
    cluster = np.arange(n) // 2 if clustered else None
    found = evaluate(np.zeros((n, 3), dtype=int), np.full((n, 3), 1 / 3), sample_weight=np.ones(n), cluster=cluster)
    assert found.n_labels == 0
    assert np.isnan(found.metrics["L"].value)


RNG = np.random.default_rng(3)
N, K = 40, 4
F = RNG.dirichlet(np.ones(K), N)
Y = np.stack([RNG.multinomial(row % 4, q) for row, q in enumerate(RNG.dirichlet(np.ones(K), N))])
W = RNG.uniform(1, 3, N)
PATIENTS = RNG.integers(0, 12, N)
ALL = [ranked_probability_score, epistemic_ranked_probability_score, ranked_probability_skill, weighted_kappa]


def _label_score(f: Any, label: int) -> float:
    """The definition: the squared differences of two staircases, for one label."""
    return sum((sum(f[: cut + 1]) - (label <= cut)) ** 2 for cut in range(K - 1))


def test_the_score_is_the_mean_over_the_labels_of_each_case() -> None:
    values, weights = [], []
    for f, y, weight in zip(F, Y, W, strict=True):
        labels = [k for k in range(K) for _ in range(y[k])]
        if labels:
            values.append(np.mean([_label_score(f, label) for label in labels]))
            weights.append(weight)
    found = ranked_probability_score(Y, F, sample_weight=W)
    assert found.value == pytest.approx(np.average(values, weights=weights), abs=1e-12)
    assert (found.n, found.dropped) == (len(values), N - len(values))


@pytest.mark.parametrize("n_labels", [2, 3, 5])
def test_the_score_against_the_histogram_is_unbiased_for_any_number_of_labels(n_labels: int) -> None:
    """Over every outcome of n labels the mean is the squared distance to the true shares, and the plug-in's is not."""
    q, f = np.array([0.5, 0.2, 0.2, 0.1]), np.array([0.3, 0.4, 0.2, 0.1])
    truth = ((f.cumsum() - q.cumsum())[:-1] ** 2).sum()
    means: dict[Debias, float] = {"pair": 0.0, "none": 0.0}
    for counts in product(range(n_labels + 1), repeat=K):
        if sum(counts) == n_labels:
            chance = float(multinomial.pmf(counts, n_labels, q))
            for debias in means:
                found = epistemic_ranked_probability_score([counts], [f], debias=debias)
                means[debias] += chance * found.value
    assert means["pair"] == pytest.approx(truth, abs=1e-12)
    assert means["none"] > truth + 0.01


@pytest.mark.parametrize("metric", ALL)
def test_reversing_the_scale_changes_nothing_and_another_order_does(metric: Any) -> None:
    assert metric(Y[:, ::-1], F[:, ::-1]).value == pytest.approx(metric(Y, F).value, abs=1e-12)
    assert abs(metric(Y[:, [1, 0, 3, 2]], F[:, [1, 0, 3, 2]]).value - metric(Y, F).value) > 1e-3


@pytest.mark.parametrize("metric", ALL)
@pytest.mark.parametrize("groups", [np.arange(N), PATIENTS])
def test_errors_are_those_of_leaving_out_a_patient(metric: Any, groups: Any) -> None:
    usable = Y.sum(axis=1) >= (2 if metric is epistemic_ranked_probability_score else 1)
    kept = []
    for group in np.unique(groups[usable]):
        left = usable & (groups != group)
        kept.append(metric(Y[left], F[left], sample_weight=W[left]).value)
    expected = np.sqrt((len(kept) - 1) / len(kept) * ((np.array(kept) - np.mean(kept)) ** 2).sum())
    assert metric(Y, F, sample_weight=W, cluster=groups).se == pytest.approx(expected, rel=1e-9)


def test_skill_is_zero_for_the_frequencies_and_one_for_certainty() -> None:
    counts = np.eye(K, dtype=int)[RNG.integers(0, K, 50)]
    constant = np.tile(counts.mean(axis=0), (50, 1))
    assert ranked_probability_skill(counts, constant).value == pytest.approx(0, abs=1e-12)
    assert ranked_probability_skill(counts, counts.astype(float)).value == 1
    assert np.isnan(ranked_probability_skill([[1, 0], [2, 0]], [[0.9, 0.1]] * 2).value)


def test_weighted_kappa_equals_statsmodels_with_one_label_per_case() -> None:
    said, seen = F.argmax(axis=1), RNG.integers(0, K, N)
    table = np.zeros((K, K))
    np.add.at(table, (said, seen), 1)
    expected = inter_rater.cohens_kappa(table, wt="quadratic", return_results=False)
    assert weighted_kappa(np.eye(K, dtype=int)[seen], F).value == pytest.approx(expected, abs=1e-12)


def test_weighted_kappa_shares_each_case_among_its_labels_and_equal_leaders() -> None:
    """Two labels of a case are as two cases of half the weight; two leaders are as two predictions of half."""
    counts, probs = np.array([[2, 0, 1], [0, 1, 0], [0, 0, 3]]), np.array([[0.5, 0.5, 0], [0, 1, 0], [0.2, 0.2, 0.6]])
    rows = [(x, y, share) for x, y, share in [(0, 0, 1 / 3), (0, 2, 1 / 6), (1, 0, 1 / 3), (1, 2, 1 / 6)]]
    rows += [(1, 1, 1.0), (2, 2, 1.0)]
    one_hot = np.eye(3)
    spread = weighted_kappa(
        [one_hot[y] for _, y, _ in rows], [one_hot[x] for x, _, _ in rows], sample_weight=[w for _, _, w in rows]
    )
    assert weighted_kappa(counts, probs).value == pytest.approx(spread.value, abs=1e-12)


def test_the_change_is_the_difference_and_its_error_is_paired() -> None:
    other = RNG.dirichlet(np.ones(K), N)
    found = ranked_probability_change(Y, F, other, sample_weight=W)
    first, second = (ranked_probability_score(Y, probs, sample_weight=W) for probs in (F, other))
    assert found.value == pytest.approx(second.value - first.value, abs=1e-12)
    assert ranked_probability_change(Y, F, F).se == 0
