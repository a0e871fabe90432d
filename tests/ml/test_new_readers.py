"""Intervals for new readers: what they must be, whoever read."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.worlds.reader_worlds import Study, crossed, service, worlds
from ml.metrics import evaluate, paired_changes
from ml.metrics.binned import Binned
from ml.metrics.cases import class_frequencies, epistemic_terms, select_sample
from ml.metrics.jackknife import NO_READERS, Estimate
from ml.metrics.losses import calibration_loss
from ml.metrics.ordinal import ordinal_metrics
from ml.metrics.reader_variance import GROUPS, CrossedEffects, LeftOut, Readings, calibration_of
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
        assert ranked[name].low_new == pytest.approx((squared[other].low_new or 0) / 2, rel=1e-9)
        assert ranked[name].high_new == pytest.approx((squared[other].high_new or 0) / 2, rel=1e-9)
    for name in ("skill_RPS", "weighted_kappa"):
        assert width(ranked[name]) > (ranked[name].high or 0) - (ranked[name].low or 0)
