"""Laws of the label-histogram estimators, and the typed result of an evaluation."""

import dataclasses
import gc
import itertools
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.metrics import (
    Accumulator,
    calibration_loss,
    disagreement_calibration_loss,
    disagreement_loss,
    dispersion_loss,
    epistemic_loss,
    evaluate,
    expected_squared_loss,
)
from ml.metrics.binned import Binned
from ml.metrics.cases import epistemic_terms, observed_disagreement, select_sample, squared_terms
from ml.metrics.definitions import METRICS, SYMBOLS
from ml.metrics.jackknife import Estimate
from ml.metrics.sums import Debias, bin_edges, bin_index, uniform_bin_index

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def draw(seed: int, n: int = 120, k: int = 3, low: int = 0, high: int = 5) -> tuple[Counts, Floats]:
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.ones(k), n)
    y = np.array([rng.multinomial(m, p) for m, p in zip(rng.integers(low, high + 1, n), q, strict=True)])
    return y, rng.dirichlet(np.ones(k) + 1, n)


def enumerate_pairs(y: Counts, f: Floats, bins: Counts, w: Floats, g: Counts) -> float:
    """Pair-debiased CL by looking at every pair of cases of different clusters, in bins (N, K)."""
    rows = y.sum(1) >= 1
    y, f, bins, w, g = y[rows], f[rows], bins[rows], w[rows], g[rows]
    d = y / y.sum(1, keepdims=True) - f
    total = 0.0
    for k in range(y.shape[1]):
        for b in np.unique(bins):
            members = np.flatnonzero(bins[:, k] == b)
            pairs = [(i, j) for i, j in itertools.permutations(members, 2) if g[i] != g[j]]
            weight = sum(w[i] * w[j] for i, j in pairs)
            if weight > 0:
                total += w[members].sum() / w.sum() * sum(w[i] * w[j] * d[i, k] * d[j, k] for i, j in pairs) / weight
    return float(total)


def test_a_metric_is_found_by_its_symbol_and_by_its_long_name_and_listed_once() -> None:
    metrics = evaluate(*draw(1)).metrics
    names = [metric.name for metric in METRICS]
    assert (list(metrics), len({*names, *(metric.long_name for metric in METRICS)})) == (names, 2 * len(METRICS) - 2)
    for metric in METRICS:
        assert metrics[metric.long_name] is metrics[metric.name] is metrics.get(metric.long_name)
    assert "expected_loss" in metrics
    assert "expected" not in metrics
    assert metrics.get("expected") is None
    with pytest.raises(KeyError, match="expected"):
        metrics["expected"]
    assert type(metrics | {}) is type(metrics) is type(pickle.loads(pickle.dumps(metrics)))


def test_the_page_of_metrics_lists_every_long_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    assert dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|$", page, re.MULTILINE)) == {b: a for a, b in SYMBOLS.items()}


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), n_bins=st.integers(1, 6), clustered=st.booleans(), weighted=st.booleans())
def test_pair_form_equals_enumeration_of_pairs(seed: int, n_bins: int, clustered: bool, weighted: bool) -> None:
    y, f = draw(seed, n=25)
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.5, 3, 25) if weighted else np.ones(25)
    g = rng.integers(0, 6, 25) if clustered else np.arange(25)
    bins = np.minimum((f * n_bins).astype(int), n_bins - 1)
    given = {"sample_weight": w if weighted else None, "cluster": g if clustered else None}
    found = calibration_loss(y, f, n_bins=n_bins, **given)
    assert found.value == pytest.approx(enumerate_pairs(y, f, bins, w, g), abs=1e-12)


def test_paper_form_equals_its_formula_bin_by_bin() -> None:
    y, f = draw(1, low=1)
    mu = y / y.sum(1, keepdims=True)
    total = 0.0
    for k in range(3):
        bins = np.minimum((f[:, k] * 5).astype(int), 4)
        for b in range(5):
            m = (bins == b).sum()
            if m < 2:
                continue
            inside = bins == b
            gap = (mu[inside, k].mean() - f[inside, k].mean()) ** 2
            total += m / len(y) * (gap - mu[inside, k].var() / (m - 1))
    assert calibration_loss(y, f, n_bins=5, debias="paper").value == pytest.approx(total, abs=1e-14)


def test_observed_disagreement_equals_enumeration_of_label_pairs() -> None:
    y, _ = draw(2, low=2)
    for row in y:
        labels = np.repeat(np.arange(3), row)
        pairs = list(itertools.permutations(labels, 2))
        assert observed_disagreement(row[None])[0] == pytest.approx(np.mean([a != b for a, b in pairs]), abs=1e-15)


def test_loss_minus_epistemic_loss_is_the_observed_disagreement() -> None:
    y, f = draw(3, low=2)
    gap = squared_terms(y, f) - epistemic_terms(y, f)[:, 1]
    np.testing.assert_allclose(gap, observed_disagreement(y), atol=5e-16)


def test_loss_is_the_mean_squared_error_over_single_labels() -> None:
    y, f = draw(4, low=1)
    expected = [np.mean([((np.eye(3)[c] - f[i]) ** 2).sum() for c in np.repeat(range(3), y[i])]) for i in range(len(y))]
    assert expected_squared_loss(y, f).value == pytest.approx(np.mean(expected), abs=1e-14)


@pytest.mark.parametrize("debias", ["pair", "paper", "none"])
def test_epistemic_is_calibration_plus_dispersion_on_the_same_cases(debias: Debias) -> None:
    y, f = draw(5)
    two = y.sum(1) >= 2
    parts = calibration_loss(y[two], f[two], debias=debias).value + dispersion_loss(y, f, debias=debias).value
    assert parts == pytest.approx(epistemic_loss(y, f, debias=debias).value, abs=1e-14)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("debias", ["pair", "paper", "none"])
def test_standard_errors_are_the_delete_one_jackknife(debias: Debias, clustered: bool) -> None:
    y, f = draw(6, n=60, low=2)
    g = np.random.default_rng(6).integers(0, 12, 60) if clustered else np.arange(60)

    def jackknife(estimator: object) -> float:
        values = []
        for group in np.unique(g):
            kept = g != group
            values.append(estimator(y[kept], f[kept], g[kept] if clustered else None))  # type: ignore[operator]
        spread = ((np.array(values) - np.mean(values)) ** 2).sum()
        return float(np.sqrt((len(values) - 1) / len(values) * spread))

    cluster = g if clustered else None
    for estimator in (calibration_loss, dispersion_loss):
        expected = jackknife(lambda a, b, c, e=estimator: e(a, b, debias=debias, cluster=c, n_bins=6).value)
        assert estimator(y, f, debias=debias, cluster=cluster, n_bins=6).se == pytest.approx(expected, rel=1e-9)
    expected = jackknife(lambda a, b, c: epistemic_loss(a, b, cluster=c).value)
    assert epistemic_loss(y, f, cluster=cluster).se == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("seed", "clustered"), [(0, False), (1, True)])
def test_standard_errors_are_the_jackknife_also_where_weights_are_zero(seed: int, clustered: bool) -> None:
    """Where all but one of a bin's cells weigh nothing, no pair is left, whatever rounding says."""
    y, f = draw(seed + 60, n=60, low=2)
    rng = np.random.default_rng(seed)
    w = np.where(rng.random(60) < 0.4, 0.0, rng.uniform(0.3, 4, 60))
    g = rng.integers(0, 20, 60) if clustered else np.arange(60)
    values = []
    for group in np.unique(g):
        rows = g != group
        left = {"sample_weight": w[rows], "cluster": g[rows] if clustered else None}
        values.append(calibration_loss(y[rows], f[rows], n_bins=12, **left).value)
    expected = np.sqrt((len(values) - 1) / len(values) * ((values - np.mean(values)) ** 2).sum())
    estimate = calibration_loss(y, f, n_bins=12, sample_weight=w, cluster=g if clustered else None)
    assert estimate.se == pytest.approx(expected, rel=1e-9)


def test_a_weight_of_two_equals_the_case_twice_for_means() -> None:
    y, f = draw(8)
    w = np.where(np.arange(len(y)) % 3 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(len(y)), w.astype(int))
    for estimator in (expected_squared_loss, epistemic_loss):
        weighted, repeated = estimator(y, f, sample_weight=w), estimator(y[twice], f[twice])
        assert weighted.value == pytest.approx(repeated.value, abs=1e-14)
    assert epistemic_loss(y, f, sample_weight=w).ess < len(y)


def test_unusable_cases_are_dropped_and_counted() -> None:
    y = np.array([[0, 0], [1, 0], [1, 1], [3, 0]])
    f = np.full((4, 2), 0.5)
    assert (expected_squared_loss(y, f).n, expected_squared_loss(y, f).dropped) == (3, 1)
    assert (epistemic_loss(y, f).n, epistemic_loss(y, f).dropped) == (2, 2)
    nothing = epistemic_loss(y[:2], f[:2])
    assert np.isnan(nothing.value)
    assert nothing.se is None
    assert nothing.to_dict()["value"] is None


def test_bins_open_at_their_edge_and_the_last_is_closed() -> None:
    f = np.array([[0.2, 0.8], [0.6, 0.4], [1.0, 0.0]])
    bins = evaluate(np.array([[1, 0], [1, 0], [1, 0]]), f, n_bins=5).to_dict()["classes"][0]["bins"]
    assert [row["n"] for row in bins] == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("debias", "n_bins", "one_patient"), [("pair", 15, False), ("paper", 15, False), ("pair", 1, True)]
)
def test_calibration_without_a_pair_in_any_bin_is_undefined(debias: Debias, n_bins: int, one_patient: bool) -> None:
    p = (np.arange(15) + 0.5) / 15  # the worst prediction, and no two of its cases, or of its patients, in a bin
    y, f = np.stack([3 * (p < 0.5), 3 * (p >= 0.5)], axis=1).astype(np.int64), np.stack([p, 1 - p], axis=1)
    cluster = np.zeros(15, dtype=np.int64) if one_patient else None
    found = evaluate(y, f, n_bins=n_bins, debias=debias, cluster=cluster)
    for name in ("CL", "CE", "CL_paired", "DL"):
        document = found.metrics[name].to_dict()
        assert [document[key] for key in ("value", "se", "low", "high")] == [None] * 4
    assert found.classes[0].calibration_loss is None
    assert np.isfinite(found.metrics["CL_plugin"].value)
    assert any(text.startswith("CL is undefined: no bin contains two cells") for text in found.warnings)
    assert np.isnan(calibration_loss(y, f, n_bins=n_bins, debias=debias, cluster=cluster).value)
    sums = Accumulator(2, n_bins)
    sums.update(y, f, cluster=cluster)
    assert np.isnan(sums.compute(debias)["CL"])


@pytest.mark.parametrize("debias", ["pair", "paper"])
def test_calibration_has_no_interval_if_it_stands_on_one_pair(debias: Debias) -> None:
    """Without either of the two nothing is left to compare: their spread is unknown, not 0."""
    rng = np.random.default_rng(5)
    y, f = draw(5, n=200, low=2)
    two_patients = calibration_loss(y, f, debias="pair", cluster=rng.integers(0, 2, 200))
    two_cases = calibration_loss(y[:2], f[:2], debias=debias, n_bins=1)
    p = np.append((np.arange(15) + 0.5) / 15, 0.51)
    one_pair = calibration_loss(
        np.stack([3 * (p < 0.5), 3 * (p >= 0.5)], axis=1).astype(np.int64), np.stack([p, 1 - p], axis=1), debias=debias
    )
    for found in (two_patients, two_cases, one_pair):
        assert (np.isfinite(found.value), found.se, found.low, found.high) == (True, None, None, None)
    three = calibration_loss(y[:3], f[:3], debias=debias, n_bins=1)
    assert three.se is not None
    assert three.se > 0


@pytest.mark.parametrize("debias", ["pair", "paper"])
def test_a_case_without_weight_makes_no_pair(debias: Debias) -> None:
    p = np.repeat((np.arange(15) + 0.5) / 15, 2)
    y, f = np.stack([3 * (p < 0.5), 3 * (p >= 0.5)], axis=1).astype(np.int64), np.stack([p, 1 - p], axis=1)
    found = calibration_loss(y, f, debias=debias, sample_weight=np.tile([1.0, 0.0], 15))
    assert (np.isnan(found.value), found.singleton_mass) == (True, 1.0)


def test_singleton_bins_are_no_part_of_the_others_and_their_mass_is_given() -> None:
    y, f = np.array([[1, 1], [2, 0], [0, 2]]), np.array([[0.1, 0.9], [0.9, 0.1], [0.92, 0.08]])
    found = calibration_loss(y, f)
    assert (np.isfinite(found.value), found.singleton_mass) == (True, pytest.approx(1 / 3))
    assert calibration_loss(y, f, debias="none").value > 0


def test_disagreement_metrics_by_hand() -> None:
    y, phi = np.array([[2, 0], [1, 1], [2, 1]]), np.array([0.25, 0.75, 0.5])
    observed = np.array([0, 1, 2 / 3])
    expected = ((observed - phi) ** 2 + observed * (1 - observed)).mean()
    assert disagreement_loss(y, phi).value == pytest.approx(expected, abs=1e-15)
    d = observed - phi
    pairs = 2 * (d[0] * d[1] + d[0] * d[2] + d[1] * d[2])
    assert disagreement_calibration_loss(y, phi, n_bins=1).value == pytest.approx(pairs / 6, abs=1e-15)


def test_accumulator_refuses_other_shapes_and_stays_as_it_was() -> None:
    acc = Accumulator(3)
    before = acc.to_dict()
    with pytest.raises(ValueError, match="3"):
        acc.update([[1, 0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="sum to 1"):
        acc.update([[1, 0, 0]], [[0.5, 0.2, 0.2]])
    with pytest.raises(ValueError, match="merge"):
        acc.merge(Accumulator(4))
    assert acc.to_dict() == before


def test_order_two_weights_apply_to_order_two_metrics_only() -> None:
    y, f = draw(10)
    w2 = np.random.default_rng(10).uniform(1, 4, len(y))
    both = evaluate(y, f, sample_weight=(np.ones(len(y)), w2)).to_dict()["metrics"]
    assert both["L"]["value"] == pytest.approx(expected_squared_loss(y, f).value, abs=1e-14)
    assert both["EL"]["value"] == pytest.approx(epistemic_loss(y, f, sample_weight=w2).value, abs=1e-14)
    assert any("order-1" in text for text in evaluate(y, f, sample_weight=w2).to_dict()["warnings"])


def test_an_accumulator_with_clusters_equals_the_clustered_estimators_and_merges(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ml.metrics.accumulator.SUMMED", 500)  # (case, slot) pairs, so that clusters are parted
    y, f = draw(20, n=300)
    rng = np.random.default_rng(20)
    patient = np.array([f"patient {p}" for p in rng.integers(0, 25, 300)])
    w = rng.uniform(0.5, 3, 300)
    whole, left, right = Accumulator(3), Accumulator(3), Accumulator(3)
    whole.update(y, f, sample_weight=w, cluster=patient)
    for part, rows in ((left, slice(0, 90)), (left, slice(90, 130)), (right, slice(130, 300))):
        part.update(y[rows], f[rows], sample_weight=w[rows], cluster=patient[rows])
    merged = Accumulator.from_dict(json.loads(json.dumps(left.to_dict()))).merge(right)
    document = evaluate(y, f, sample_weight=(w, w), cluster=patient).to_dict()["metrics"]
    for acc in (whole, merged):
        computed = acc.compute()
        for name in ("L", "EL", "CL", "CL_paired", "DL", "CL_D", "L_D", "agreement", "accuracy", "skill_D"):
            assert computed[name] == pytest.approx(document[name]["value"], abs=1e-13), name


def test_an_accumulator_takes_clusters_always_or_never() -> None:
    y, f = draw(21, n=10)
    acc = Accumulator(3)
    acc.update(y, f)
    with pytest.raises(ValueError, match="cluster"):
        acc.update(y, f, cluster=np.arange(10))
    other = Accumulator(3)
    other.update(y, f, cluster=np.arange(10))
    with pytest.raises(ValueError, match="cluster"):
        acc.merge(other)


@settings(max_examples=60, deadline=None)
@given(n_bins=st.integers(1, 64), steps=st.integers(-3, 3))
def test_bins_without_a_search_are_the_bins_with_one(n_bins: int, steps: int) -> None:
    edges = np.arange(n_bins + 1) / n_bins
    probs = edges.copy()
    for _ in range(abs(steps)):
        probs = np.nextafter(probs, np.sign(steps) * np.inf)
    probs = np.clip(np.concatenate([probs, np.random.default_rng(n_bins).random(200)]), 0, 1)
    np.testing.assert_array_equal(uniform_bin_index(probs, n_bins), bin_index(probs, edges))


def test_frozen_edges_are_used_as_they_are() -> None:
    y, f = draw(22)
    even = np.arange(11) / 10
    assert calibration_loss(y, f, strategy=even).value == calibration_loss(y, f, n_bins=10).value
    reference = draw(23)[1][:, 0]
    edges = bin_edges(reference, 8, "quantile")
    frozen = calibration_loss(y, f, strategy=edges)
    moving = calibration_loss(y, f, n_bins=8, strategy="quantile")
    assert np.isfinite(frozen.value)
    assert frozen.value != moving.value
    for broken in ([0.0, 0.5, 0.4, 1.0], [0.1, 1.0], [0.0]):
        with pytest.raises(ValueError, match="edges"):
            calibration_loss(y, f, strategy=np.array(broken))


@pytest.mark.parametrize("patients", [0, 30])
def test_a_reliability_diagram_is_what_its_cases_say(patients: int) -> None:
    y, f = draw(24, n=400)
    rng = np.random.default_rng(24)
    w = rng.uniform(0.5, 3, 400)
    patient = rng.integers(0, patients, 400) if patients else np.arange(400)
    document = evaluate(y, f, sample_weight=(w, w), cluster=patient if patients else None).to_dict()
    labelled = y.sum(1) > 0
    n_intervals = 0
    for k, row in enumerate(document["classes"]):
        for b, cell in enumerate(row["bins"]):
            rows = np.flatnonzero(labelled & (bin_index(f[:, k], np.arange(16) / 15) == b))
            assert cell["n"] == rows.size
            if rows.size == 0:
                assert cell["mean_freq"] is cell["mean_prob"] is cell["freq_low"] is None
                continue
            freq = y[rows, k] / y[rows].sum(1)
            mean = np.average(freq, weights=w[rows])
            assert cell["mean_freq"] == pytest.approx(mean, abs=1e-12)
            assert cell["mean_prob"] == pytest.approx(np.average(f[rows, k], weights=w[rows]), abs=1e-12)
            members = np.unique(patient[rows])
            residual = [(w[rows] * (freq - mean))[patient[rows] == p].sum() for p in members]
            if members.size < 2:
                assert cell["freq_low"] is None
            elif np.max(np.abs(residual)) > 1e-9:
                half = 1.96 * np.sqrt(np.var(residual, ddof=1) * members.size) / w[rows].sum()
                assert cell["freq_low"] == pytest.approx(max(0, mean - half), abs=1e-12)
                assert cell["freq_high"] == pytest.approx(min(1, mean + half), abs=1e-12)
                n_intervals += 1
    assert n_intervals > 10


@pytest.mark.slow
def test_an_interval_of_members_that_are_alike_covers_the_truth() -> None:
    """Six cases without a single label of a class do not show that its frequency is nought."""
    truth, n_cases, runs, covered = 0.05, 6, 400, 0
    rng = np.random.default_rng(25)
    f = np.full((n_cases, 2), [0.03, 0.97])
    for _ in range(runs):
        hits = rng.binomial(2, truth, n_cases)
        cell = evaluate(np.stack([hits, 2 - hits], axis=1), f).to_dict()["classes"][0]["bins"][0]
        covered += cell["freq_low"] <= truth <= cell["freq_high"]
        if not hits.any():
            assert (cell["freq_low"], cell["freq_high"]) == (0, pytest.approx(1 - 0.025 ** (1 / n_cases)))
    assert covered / runs > 0.93


@pytest.mark.parametrize("loss", [epistemic_loss, calibration_loss, dispersion_loss])
@pytest.mark.parametrize("debias", [None, True, False, "pairs"])
def test_an_unknown_form_is_refused(loss: Callable[..., Estimate], debias: object) -> None:
    with pytest.raises(ValueError, match="debias must be 'pair', 'paper' or 'none'"):
        loss(np.array([[2, 1], [0, 3]]), np.array([[0.7, 0.3], [0.2, 0.8]]), debias=debias)


def joined_bins(f: Floats, n_bins: int, w: Floats, g: Counts) -> Counts:
    """Bin (n, K) of each case, where bins without a pair of two clusters join the next ones below, from the top."""
    bins = np.minimum((f * n_bins).astype(int), n_bins - 1)
    for k in range(f.shape[1]):
        groups: list[list[int]] = [[]]
        for b in range(n_bins - 1, -1, -1):
            groups[-1].append(b)
            groups += [[]] if len(set(g[np.isin(bins[:, k], groups[-1]) & (w > 0)])) >= 2 else []
        left = groups.pop()
        groups = [*groups[:-1], groups[-1] + left] if groups else [left]
        for group in groups:
            bins[np.isin(bins[:, k], group), k] = group[0]
    return bins


@pytest.mark.parametrize("clustered", [False, True])
def test_evaluations_with_uneven_weights_join_bins_without_a_pair(clustered: bool) -> None:
    """CL of an evaluation is the enumeration of pairs in joined bins; with even weights, the formula bin by bin."""
    y, f = draw(8, n=40, low=1)
    rng = np.random.default_rng(8)
    w = rng.uniform(0.3, 8, 40)
    g = rng.integers(0, 12, 40) if clustered else np.arange(40)
    cluster = g if clustered else None
    total = enumerate_pairs(y, f, joined_bins(f, 15, w, g), w, g)
    found = evaluate(y, f, sample_weight=w, cluster=cluster).metrics["CL"]
    assert found.value == pytest.approx(total, abs=1e-12)
    assert found.singleton_mass > 0
    assert found.value != pytest.approx(calibration_loss(y, f, sample_weight=w, cluster=cluster).value, abs=1e-6)
    even = evaluate(y, f, sample_weight=np.full(40, 2.0), cluster=cluster).metrics["CL"].value
    assert even == pytest.approx(calibration_loss(y, f, cluster=cluster).value, abs=1e-12)


@pytest.mark.parametrize("clustered", [False, True])
def test_what_pairs_add_to_the_error_is_their_enumeration_and_counts_once(clustered: bool) -> None:
    """Of an estimate Σu_g + Σψ_gh the jackknife's variance has that of ψ twice, and CL_φ's error has it once."""
    rng = np.random.default_rng(4)
    dpe, differ, w = rng.uniform(0, 1, 60), rng.integers(0, 2, 60).astype(float), rng.uniform(0.3, 8, 60)
    # patients of neighbours, whose cells are in one bin
    dpe.sort()
    g = np.arange(60) // 3 if clustered else np.arange(60)
    dpe = np.repeat(dpe[::3], 3) if clustered else dpe
    sample = select_sample(np.ones(60, dtype=bool), w, g if clustered else None)
    binned = Binned.of(differ[:, None], dpe[:, None], sample, 4, "uniform", "pair", joining=True)
    replicates = binned.replicates("pair")
    moved = replicates.value - replicates.without
    curvature, variance = 0.0, 0.0
    for b in range(4):
        rows = np.flatnonzero(np.minimum((dpe * 4).astype(int), 3) == b)
        mean = np.average(differ[rows] - dpe[rows], weights=w[rows])
        above = {h: (w * (differ - dpe - mean))[rows[g[rows] == h]].sum() for h in set(g[rows])}
        pairs = sum(w[i] * w[j] for i, j in itertools.permutations(rows, 2) if g[i] != g[j])
        for h, k in itertools.permutations(above, 2):
            psi = 2 * w[rows].sum() / (w.sum() * pairs) * above[h] * above[k]
            curvature += moved[h] * moved[k] * psi
            variance += psi**2 / 2
    found = binned.quadratic_part("pair", replicates)
    assert found.curvature == pytest.approx(curvature, rel=1e-9)
    assert found.variance == pytest.approx(variance, rel=1e-9)
    jackknife = replicates.standard_error()
    assert jackknife is not None
    assert binned.estimate("pair").se == pytest.approx(max(jackknife**2 - variance, variance) ** 0.5, rel=1e-9)
    assert variance > 0.05 * jackknife**2


def test_an_evaluation_is_typed_and_reads_like_its_document() -> None:
    y, f = draw(11)
    evaluation = evaluate(y, f, classes=["a", "b", "c"])
    document = evaluation.to_dict()
    assert list(document) == [field.name for field in dataclasses.fields(evaluation)]
    assert json.loads(json.dumps(document)) == document
    assert list(document["classes"][0]) == ["class", "CL", "calibration_loss", "EL", "epistemic_loss", "bins"]
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
