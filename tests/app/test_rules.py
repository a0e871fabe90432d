"""Rules: triage, the coin, capacity, the graded rule, adjudication, the change plan, designs, drift."""

import json
import math
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from sqlalchemy import delete, select, update

from app.audit.chain.keys import KeyRing, derive_keys
from app.audit.verify import verify_all
from app.database.migration import downgrade_schema, require_current_schema, upgrade_schema
from app.database.tables import Case, CasePrediction, DailyThreshold, ReadRequest, TriageDecision, utc_now
from app.job_table import run_maintenance
from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset, stable_name_hash
from app.metrics.drift import measure_drift
from app.metrics.secondary_statistics import simulate_designs
from app.recalibration.change_plan import ChangePlan
from app.triage.planning import uniform_draw
from app.triage.rules import (
    PredictionSummary,
    ReadPlan,
    TriageRule,
    capacity_at_threshold,
    capacity_scale,
    capacity_threshold,
    decide_triage,
    needs_adjudication,
    plan_reads,
    second_read_probabilities,
    summarise_posterior,
    summarise_prediction,
)
from experiments.worlds.laboratory import AUDIT_RATE, columns_of, open_laboratory, planned
from ml.distributions.decisions import (
    class_intervals,
    consensus_probs,
    expected_gain,
    further_labels_expected,
    majority_prob,
)
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
from ml.metrics.homogeneity_test import estimate_mix_change, mix_change_of_patients
from ml.metrics.selection import graded_probabilities, graded_scale
from ml.util.arrays import FloatArray, IntArray
from tests.support.service import Service, cell_png

RULE = TriageRule("disagreement", 0.2, 0.1, 0.02, 0.9, 5)
SURE = DirichletCpe(np.array([[0.98, 0.01, 0.01]]), np.array([2.0]))
UNSURE = DirichletCpe(np.array([[0.4, 0.35, 0.25]]), np.array([2.0]))


def test_a_case_is_selected_above_the_threshold_and_the_reason_says_so() -> None:
    assert decide_triage(SURE, RULE).decision == "single_read"
    found = decide_triage(UNSURE, RULE)
    assert (found.decision, found.reason) == ("second_read", "disagreement above 0.20")
    assert decide_triage(PointCpe(UNSURE.class_probs), RULE).reason.endswith("(not calibrated)")
    by_gain = replace(RULE, score="expected_gain", threshold=0.001)
    assert decide_triage(UNSURE, by_gain).reason == "expected gain above 0.0010"
    assert decide_triage(UNSURE, replace(RULE, threshold=math.inf)).decision == "single_read"


def test_unfamiliar_cells_are_always_read_and_near_duplicates_not_twice() -> None:
    for flag in (True, None):  # None: nothing checked
        assert decide_triage(SURE, RULE, out_of_distribution=flag).decision == "second_read"
    assert decide_triage(UNSURE, RULE, near_duplicate=True).decision == "single_read"
    assert decide_triage(UNSURE, RULE, near_duplicate=True, out_of_distribution=True).decision == "second_read"


@given(
    st.floats(0, 1, exclude_max=True), st.lists(st.tuples(st.booleans(), st.floats(0.01, 1)), min_size=1, max_size=6)
)
def test_a_case_is_read_twice_if_u_is_below_the_largest_pi(u: float, looks: list[tuple[bool, float]]) -> None:
    pi, arms = 0.0, []
    for selected, rate in looks:
        found = plan_reads(u, selected, rate, pi)
        assert found.pi >= pi
        pi = found.pi
        arms.append(found.arm)
    assert pi == max(1.0 if selected else rate for selected, rate in looks)
    assert (arms[-1] is not None) == (u < pi)
    asked = [arm is not None for arm in arms]
    assert asked == sorted(asked)  # never unplanned again


def test_the_coin_is_fair_keyed_and_repeatable() -> None:
    key, other = derive_keys(KeyRing.parse(b"k" * 32)).coin, derive_keys(KeyRing.parse(b"o" * 32)).coin
    coins = np.array([uniform_draw(key, str(i)) for i in range(4000)])
    assert abs(coins.mean() - 0.5) < 0.02
    assert ((coins >= 0) & (coins < 1)).all()
    assert uniform_draw(key, "a") == uniform_draw(key, "a") != uniform_draw(other, "a")


@given(st.integers(0, 2**32 - 1), st.floats(0.12, 0.95))
def test_capacity_is_met_on_average(seed: int, share: float) -> None:
    scores = np.random.default_rng(seed).random(2000)
    selected = (scores > capacity_threshold(scores, share * 200, 10.0, 0.1)).mean()
    assert selected + 0.1 * (1 - selected) == pytest.approx(share, abs=0.01)


def test_capacity_without_earlier_cases_or_below_the_audit_selects_nobody() -> None:
    assert capacity_threshold(np.zeros(0), 10, 1, 0.1) == math.inf
    assert capacity_threshold(np.random.default_rng(0).random(100), 5, 1, 0.1) == 1.0
    assert capacity_threshold(np.full(100, 0.3), 200, 1, 0.1) == 0.0
    assert capacity_threshold(np.full(100, 0.3), 100, 1, 0.1) == 0.0  # a later case may lie below every earlier one
    assert capacity_threshold(np.full(100, 0.3), 10, 1, 0.1) == 1.0  # or above
    assert capacity_threshold(np.full(100, 0.3), 200, 1, 1.0) == 1.0  # every case is drawn already


@pytest.mark.parametrize("sizes", [(0, 200, 0), (50, 100, 50), (199, 0, 1)])
@pytest.mark.parametrize("share", [0.05, 0.15, 0.5, 0.9, 1.0])
def test_cases_with_one_score_share_the_reads_that_are_left_over(sizes: tuple[int, ...], share: float) -> None:
    scores, no = np.repeat([0.0, 0.3, 0.6], sizes), np.zeros(200, dtype=bool)
    threshold = capacity_threshold(scores, 20 * share, 10.0, 0.1)
    at = capacity_at_threshold(scores, threshold, 200 * share, 0.1)
    rule = replace(RULE, threshold=threshold, at_threshold=at)
    pi = second_read_probabilities(rule, scores, np.full(200, np.nan), no, no)
    assert pi.mean() == pytest.approx(max(share, 0.1))
    one = decide_triage(SURE, replace(rule, threshold=float(SURE.disagreement_probs[0])))
    assert (one.decision, one.pi) == ("second_read" if at == 1 else "single_read", max(at, 0.1))
    assert ("read twice with a probability" in one.reason) == (at > 0.1)


def test_reasons_and_figures_of_a_decision() -> None:
    judged = decide_triage(SURE, RULE)
    assert judged.expected_gain == expected_gain(SURE)[0]
    assert judged.priority == pytest.approx(SURE.disagreement_probs[0] / (2 / 3))
    assert decide_triage(PointCpe(np.full((1, 3), 1 / 3)), RULE).priority == pytest.approx(1.0)
    # members that each are sure of another class disagree more than any single distribution can
    members = EnsembleCpe(np.array([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]]))
    assert decide_triage(members, RULE).priority <= 1
    at = replace(RULE, threshold=float(SURE.disagreement_probs[0]))
    assert decide_triage(SURE, at).decision == "single_read"
    between = replace(RULE, score="expected_gain", threshold=0.3)  # the gain lies below it, the disagreement above
    assert decide_triage(UNSURE, between).decision == "single_read"
    plain = decide_triage(PointCpe(UNSURE.class_probs), replace(RULE, score="expected_gain"))
    assert (plain.reason, plain.expected_gain) == ("disagreement above 0.20 (not calibrated)", None)


def test_each_ground_of_a_decision_is_named() -> None:
    none, gain = replace(RULE, threshold=math.inf), replace(RULE, score="expected_gain", threshold=math.inf)
    plain = PointCpe(UNSURE.class_probs)
    assert decide_triage(UNSURE, none).reason == "no threshold for disagreement yet: too few earlier cells"
    assert decide_triage(UNSURE, gain).reason == "no threshold for expected gain yet: too few earlier cells"
    for rule in (none, gain):  # a gain needs a concentration
        reason = "no threshold for disagreement yet: too few earlier cells (not calibrated)"
        assert decide_triage(plain, rule).reason == reason
    unlike, unchecked = (decide_triage(SURE, RULE, out_of_distribution=flag) for flag in (True, None))
    assert unlike.reason == "out of distribution"
    assert unchecked.reason == "not checked for being out of distribution"
    for found in (unlike, unchecked):
        assert (found.pi, found.priority, found.expected_gain) == (1.0, 1.0, None)
    twin = decide_triage(UNSURE, RULE, near_duplicate=True)
    reason = "near-duplicate of a cell of this patient with a second read"
    assert (twin.pi, twin.reason) == (RULE.audit_rate, reason)
    assert decide_triage(SURE, RULE, near_duplicate=True).reason == "disagreement at most 0.20"  # not selected anyway


def test_a_prediction_is_summarised_as_far_as_its_form_goes() -> None:
    found = summarise_prediction(UNSURE)
    assert (found.class_probs, found.log_concentration) == (UNSURE.class_probs[0].tolist(), 2.0)
    assert found.disagreement_prob == UNSURE.disagreement_probs[0]
    assert (found.disagreement_calibrated, found.disagreement_constant) == (True, False)
    assert found.class_intervals == [tuple(pair) for pair in class_intervals(UNSURE)[0].tolist()]
    assert found.consensus == tuple(consensus_probs(UNSURE, of)[0].tolist() for of in (5, 2))
    members = DirichletMixtureCpe(
        np.stack([UNSURE.class_probs, SURE.class_probs]), np.full((2, 1), 2.0), np.zeros((2, 1))
    )
    assert summarise_prediction(members).log_concentration is None
    for stated, constant in (([np.nan], False), ([0.3], True)):
        plain = summarise_prediction(PointCpe(UNSURE.class_probs, stated_disagreement=np.array(stated)))
        disagreement = 0.3 if constant else float(PointCpe(UNSURE.class_probs).disagreement_probs[0])
        expected = PredictionSummary(found.class_probs, None, disagreement, False, constant, None, None)
        assert plain == expected


def test_a_posterior_says_what_labels_are_still_to_bring_if_labels_move_it() -> None:
    found = summarise_posterior(UNSURE, 0.02)
    assert found.class_probs == UNSURE.class_probs[0].tolist()
    assert found.majority_prob == majority_prob(UNSURE)[0]
    assert found.further_labels_expected == further_labels_expected(UNSURE, 0.02)[0] > 0
    assert summarise_posterior(UNSURE, 1e-30).further_labels_expected == 2**31 - 1
    plain = summarise_posterior(PointCpe(UNSURE.class_probs), 0.02)
    assert (plain.class_probs, plain.majority_prob, plain.further_labels_expected) == (found.class_probs, None, None)


def test_the_coin_decides_below_pi_and_not_at_it() -> None:
    assert plan_reads(0.1, selected=False, audit_rate=0.1) == ReadPlan(0.1, None)
    assert plan_reads(0.09, selected=False, audit_rate=0.1) == ReadPlan(0.1, "audit")
    assert plan_reads(0.99, selected=True, audit_rate=0.1) == ReadPlan(1.0, "triage")
    assert plan_reads(0.3, selected=False, audit_rate=0.1, earlier_pi=0.5) == ReadPlan(0.5, "audit")
    assert plan_reads(0.3, selected=False, audit_rate=0.1, earlier_pi=1.0) == ReadPlan(1.0, "triage")


def test_the_bounds_of_an_adjudication() -> None:
    split = UNSURE.posterior(np.array([[1, 1, 0]]))
    asked = [needs_adjudication(split, n, replace(RULE, max_labels=4)) for n in range(6)]
    assert asked == [False, False, True, True, False, False]
    majority = float(majority_prob(split)[0])
    assert not needs_adjudication(split, 2, replace(RULE, adjudicate_below=majority))
    assert needs_adjudication(split, 2, replace(RULE, adjudicate_below=majority + 1e-9))
    one_more = next(t for t in np.linspace(0.5, 0.001, 500) if further_labels_expected(split, float(t))[0] == 1)
    assert needs_adjudication(split, 2, replace(RULE, target_error=float(one_more)))
    # labels that would change little are not asked for, however open the majority
    assert not needs_adjudication(split, 2, replace(RULE, target_error=1.0))


def test_the_change_plan_bounds_what_moves(tmp_path: Path) -> None:
    strict = ChangePlan(max_mean_probability_change=0.1, max_mean_log_concentration_change=0.5)
    moved, broken = strict.violations(SURE, DirichletCpe(np.array([[0.5, 0.25, 0.25]]), np.array([4.0])))
    assert moved == {"mean_probability_change": pytest.approx(0.48), "mean_log_concentration_change": 2.0}
    assert len(broken) == 2
    assert strict.violations(SURE, SURE)[1] == []
    assert strict.violations(PointCpe(SURE.class_probs), SURE)[0]["mean_log_concentration_change"] is None
    assert strict.sha256() != ChangePlan().sha256()
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(strict.to_dict()))
    assert ChangePlan.read(path) == strict
    for wrong in ("{", '{"surprise": 1}', '{"max_increase": -1}', '{"max_increase": "x"}'):
        path.write_text(wrong)
        with pytest.raises(ValueError, match=r"plan\.json"):
            ChangePlan.read(path)
    path.write_text('{"responsible": "lead", "min_patients": 10}')
    with pytest.raises(ValueError, match=r"plan\.json: unknown field responsible; the fields are methods, min_"):
        ChangePlan.read(path)
    with pytest.raises(ValueError, match="change plan"):
        ChangePlan.read(tmp_path / "missing.json")


REFERENCE: dict[str, Any] = {
    "stain_mean": [0.2, 0.3, 0.1],
    "stain_sd": [0.05, 0.05, 0.05],
    "label_share": [0.5, 0.5],
    "n_labels": 500,
    "distance_sq_mean": 1.0,
    "distance_sq_sd": 0.4,
    "n_distance": 200,
}


def cases(n: int, seed: int, **changed: Any) -> EvaluationDataset:
    rng, north = np.random.default_rng(seed), stable_name_hash("north")
    columns = replace(
        EvaluationDataset.empty(["a", "b"], n),
        label_counts=np.eye(2, dtype=np.int64)[rng.integers(0, 2, n)],
        class_probs=np.full((n, 2), 0.5),
        stain=rng.normal([0.2, 0.3, 0.1], 0.05, (n, 3)),
        feature_distance=np.sqrt(rng.chisquare(12, n) / 12),
        cluster=np.arange(n),
        site=np.full(n, north),
        sites={north: "north"},
    )
    return replace(columns, **changed)


def test_familiar_data_raise_no_alarm() -> None:
    assert [row.warnings for row in measure_drift(cases(200, 0), REFERENCE)] == [[], []]
    assert measure_drift(cases(5, 0), REFERENCE) == []
    assert measure_drift(cases(50, 0), None) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stain": np.full((100, 3), 0.5)}, "the stain"),
        ({"out_of_distribution": np.arange(100) < 10}, "out of distribution"),
        ({"feature_distance": np.full(100, 1.5)}, "features"),
        ({"label_counts": np.tile([[1, 0]], (100, 1))}, "mix of labels"),
    ],
)
def test_each_kind_of_drift_is_named_with_its_site(changed: dict[str, Any], words: str) -> None:
    everywhere, north = measure_drift(cases(100, 1, **changed), REFERENCE)
    assert (everywhere.site, north.site) == (None, "north")
    assert any(words in text for text in everywhere.warnings)
    assert any(words in text and "north" in text for text in north.warnings)


def predicted_cells(rng: np.random.Generator, mix: list[float], n_patients: int) -> tuple[FloatArray, IntArray]:
    """Predictions of five cells per patient that are calibrated where both classes are equally frequent."""
    of_patient = rng.beta(8 * mix[0], 8 * mix[1], n_patients)
    first = rng.random(5 * n_patients) < np.repeat(of_patient, 5)
    log_odds = rng.normal(np.where(first, 2.0, -2.0), 2.0)
    probs = np.stack([expit(log_odds), expit(-log_odds)], axis=1)
    return probs, np.repeat(np.arange(n_patients), 5)


@pytest.mark.parametrize("mix", [[0.5, 0.5], [0.8, 0.2], [0.95, 0.05]])
def test_the_interval_of_the_class_mix_covers_what_the_site_has(mix: list[float]) -> None:
    covered = errors = 0.0
    for seed in range(100):
        probs, patient = predicted_cells(np.random.default_rng(seed), mix, 60)
        found = estimate_mix_change(probs, patient, np.array([0.5, 0.5]), 2_000)
        assert found is not None
        assert found.change.sum() == pytest.approx(0, abs=1e-9)
        covered += (found.low[0] <= mix[0] - 0.5 <= found.high[0]) / 100
        errors += (found.change[0] - (mix[0] - 0.5)) / 100
    assert covered >= 0.9
    assert abs(errors) < 0.015
    assert estimate_mix_change(probs[:5], patient[:5], np.array([0.5, 0.5]), 2_000) is None


def test_the_class_whose_share_has_changed_most_is_named_with_its_site() -> None:
    probs, patient = predicted_cells(np.random.default_rng(0), [0.2, 0.8], 60)
    everywhere, north = measure_drift(cases(300, 0, class_probs=probs, cluster=patient), REFERENCE)
    assert north.mix_change == everywhere.mix_change
    assert north.mix_change is not None
    assert (north.mix_change.class_code == "b") == (north.mix_change.change > 0)
    assert north.mix_change.low <= north.mix_change.change <= north.mix_change.high
    assert abs(north.mix_change.change) == pytest.approx(0.3, abs=0.1)


def test_the_feature_shift_is_the_root_of_what_a_moved_mean_adds() -> None:
    """Whitened features of D = 12 whose mean has moved by 0.8 in each: E d²/D = 1 + 0.64."""
    distance = np.sqrt(np.square(np.random.default_rng(0).normal(0.8, 1, (20_000, 12))).mean(axis=1))
    row = measure_drift(cases(20_000, 2, feature_distance=distance), REFERENCE)[0]
    assert row.feature_shift == pytest.approx(0.8, abs=0.01)
    unknown = measure_drift(cases(100, 2, feature_distance=np.full(100, np.nan)), REFERENCE)[0]
    assert unknown.feature_shift is None
    older = {name: value for name, value in REFERENCE.items() if "distance" not in name}
    assert measure_drift(cases(100, 2), older)[0].feature_shift is None


def test_a_lighter_stain_is_told_with_the_minus_sign_of_the_pages() -> None:
    stain = np.array([REFERENCE["stain_mean"]]) - 2 * np.array([REFERENCE["stain_sd"]])
    (told,) = measure_drift(cases(50, 2, stain=np.repeat(stain, 50, axis=0)), REFERENCE)[0].warnings
    assert told == "the stain has moved by \N{MINUS SIGN}2.0 standard deviations of the reference"


@pytest.mark.parametrize("unlabelled", [False, True])
def test_the_mix_is_that_of_every_case_once_by_its_first_read_or_by_all_its_labels(unlabelled: bool) -> None:
    n, rng = 300, np.random.default_rng(8)
    counts = rng.integers(0, 3, (n, 2)) + (0 if unlabelled else [1, 0])
    first = np.where((rng.random(n) < 0.6) & (counts.sum(axis=1) > 0), counts.argmax(axis=1), -1)
    data = cases(n, 9, label_counts=counts, first_class=first, cluster=rng.integers(0, 60, n))
    labelled = np.flatnonzero(counts.sum(axis=1) > 0)
    frequencies = counts[labelled] / counts[labelled].sum(axis=1, keepdims=True)
    read = first[labelled] >= 0
    frequencies[read] = np.eye(2)[first[labelled][read]]
    patient = np.unique(data.cluster[labelled], return_inverse=True)[1]
    sums = np.stack([np.bincount(patient, column) for column in frequencies.T], axis=1)
    expected = mix_change_of_patients(sums, np.array([0.5, 0.5]), 500)
    row = measure_drift(data, REFERENCE)[0]
    assert (row.label_shift, row.label_p_value) == pytest.approx((expected.distance, expected.p_value), rel=1e-12)


def test_second_labels_of_the_cases_that_triage_selected_are_no_drift_of_the_mix() -> None:
    """Class b is rare and hard: triage has all its cells read twice. The first reads have the reference's mix."""
    n = 2000
    first = (np.random.default_rng(6).random(n) < 0.2).astype(np.int64)
    counts = np.eye(2, dtype=np.int64)[first] * np.where(first == 1, 2, 1)[:, None]
    reference: Any = REFERENCE | {"label_share": [0.8, 0.2], "n_labels": 4000}
    row = measure_drift(cases(n, 7, label_counts=counts, first_class=first), reference)[0]
    assert row.label_shift is not None
    assert row.label_shift < 0.03
    assert row.warnings == []


@given(st.floats(0.01, 3), st.floats(0.01, 1))
def test_the_graded_rule_gives_probabilities_that_grow_with_disagreement(scale: float, floor: float) -> None:
    rule = replace(RULE, score="graded", threshold=scale, audit_rate=floor)
    sure, unsure = decide_triage(SURE, rule), decide_triage(UNSURE, rule)
    for found, prediction in ((sure, SURE), (unsure, UNSURE)):
        phi = float(prediction.disagreement_probs[0])
        assert found.pi == pytest.approx(min(1.0, max(floor, scale * math.sqrt(phi))))
        assert found.decision == ("second_read" if found.pi >= 1 else "single_read")
        assert found.reason == f"disagreement {phi:.2f}: read twice with a probability of {found.pi:.2f}"
    assert sure.pi <= unsure.pi
    assert decide_triage(SURE, rule, out_of_distribution=True).pi == 1
    assert decide_triage(UNSURE, rule, near_duplicate=True).pi == floor
    unknown = decide_triage(UNSURE, replace(rule, threshold=math.inf))
    assert (unknown.pi, unknown.reason) == (floor, "no scale for disagreement yet: too few earlier cells")


@given(st.integers(0, 2**32 - 1), st.floats(0.12, 0.95))
def test_the_graded_rule_spends_its_reads(seed: int, share: float) -> None:
    scores = np.random.default_rng(seed).random(500)
    scale = capacity_scale(scores, share * 50, 10.0, 0.1)
    pi = [min(1.0, max(0.1, scale * math.sqrt(phi))) for phi in scores]
    assert np.mean(pi) == pytest.approx(share, abs=1e-6)
    assert capacity_scale(np.zeros(0), 10, 1, 0.1) == math.inf


def test_designs_are_compared_at_one_budget() -> None:
    lab = open_laboratory(3, 4_000)
    pi, reads = planned(lab)
    columns = columns_of(lab, pi, reads)
    now, highest, graded, random = simulate_designs(build_cohort(columns, CohortQuery(), 0.0), AUDIT_RATE)
    for row in (now, highest, graded, random):
        assert row.share == pytest.approx(pi.mean(), abs=1e-9)
    # the design in force is the all-or-audit rule, with thresholds of earlier days
    assert highest.catch == pytest.approx(now.catch, abs=0.03)
    assert random.catch == pytest.approx(random.share, abs=1e-9)
    assert random.catch < graded.catch <= highest.catch + 0.03
    assert highest.width["EL"] == pytest.approx(now.width["EL"], rel=0.1)
    assert graded.width["EL"] < 0.95 * highest.width["EL"]
    assert np.isfinite([width for row in (now, highest, graded, random) for width in row.width.values()]).all()


def test_before_two_annotators_differ_there_is_nothing_to_compare() -> None:
    nobody = columns_of(open_laboratory(4, 200), np.full(200, 0.1), np.ones(200, dtype=np.int64))
    assert simulate_designs(build_cohort(nobody, CohortQuery(), 0.0), AUDIT_RATE) == []
    assert simulate_designs(build_cohort(nobody, CohortQuery(weighting="none"), 0.0), AUDIT_RATE) == []


def stored(service: Service) -> list[tuple[int, float | None]]:
    return [(row.policy_version, row.threshold) for row in service.scalars(select(DailyThreshold))]


def by_capacity(service: Service, second_reads: int) -> None:
    body: dict[str, Any] = {"rule": "capacity", "capacity_per_day": second_reads, "reason": "so many a day"}
    assert service.post("admin", "/v1/policies", json=body).status_code == 201


def test_the_first_case_of_a_day_sets_its_threshold_once_and_no_reader_does(service: Service) -> None:
    case = service.add_case("case", cell_png(1))
    by_capacity(service, 5)
    for path in ("/v1/cases", "/v1/worklist", f"/v1/cases/{case['id']}", f"/v1/cases/{case['id']}/posterior"):
        assert service.get("viewer", path).status_code == 200
    assert service.post("viewer", "/v1/predictions", files={"image": ("x.png", cell_png())}).status_code == 200
    service.outside_label(case["id"], "reader", case["prediction"]["classes"][0])
    assert stored(service) == []
    for number in (2, 3):
        service.add_case(f"case {number}", cell_png(number))
        assert stored(service) == [(2, None)]  # there are no earlier days


def test_the_worker_sets_it_before_any_case_comes(service: Service) -> None:
    run_maintenance(service.context)
    assert stored(service) == []  # the first policy is not by capacity
    by_capacity(service, 5)
    run_maintenance(service.context)
    run_maintenance(service.context)
    assert stored(service) == [(2, None)]


PER_DAY, FLOOR = 4, 0.1


def graded(service: Service, **changed: object) -> int:
    body = {"rule": "graded", "capacity_per_day": PER_DAY, "audit_rate": FLOOR, "reason": "graded"} | changed
    return service.post("admin", "/v1/policies", json=body).status_code


def disagreement(service: Service) -> dict[uuid.UUID, float]:
    return dict(service.rows(select(CasePrediction.case_id, CasePrediction.disagreement_prob)))


def looks(service: Service) -> dict[uuid.UUID, TriageDecision]:
    return {look.case_id: look for look in service.scalars(select(TriageDecision))}


def end_day(service: Service) -> None:
    service.written_past = True  # yesterday is made by moving what was stored
    service.change(delete(DailyThreshold))  # the day is over
    for row in service.scalars(select(Case)):
        service.change(update(Case).where(Case.id == row.id).values(created_at=row.created_at - timedelta(days=1)))


def test_probabilities_follow_from_earlier_days(service: Service) -> None:
    assert graded(service, capacity_per_day=None) == graded(service, threshold=0.3) == 422
    assert graded(service) == 201
    first = [uuid.UUID(service.add_case(f"first-{n}", cell_png(n))["id"]) for n in range(8)]
    before = looks(service)
    assert {before[case].pi for case in first if not before[case].selected} == {FLOOR}  # there is no scale yet
    end_day(service)
    second = [uuid.UUID(service.add_case(f"second-{n}", cell_png(100 + n))["id"]) for n in range(8)]
    phi, found = disagreement(service), looks(service)
    scale = graded_scale(np.array([phi[case] for case in first]), PER_DAY / len(first), FLOOR)
    for case in second:
        expected = 1.0 if found[case].selected else float(graded_probabilities(np.array([phi[case]]), scale, FLOOR)[0])
        assert found[case].pi == pytest.approx(expected, rel=1e-9)


def test_cases_that_are_alike_get_the_capacity_by_lot(service: Service) -> None:
    by_capacity(service, 4)
    for n in range(8):
        service.add_case(f"first-{n}", cell_png(1))
    before = looks(service)
    end_day(service)
    for n in range(8):
        service.add_case(f"second-{n}", cell_png(1))
    after = looks(service)
    today = [look for case_id, look in after.items() if case_id not in before]
    assert [(look.selected, look.pi) for look in today] == [(False, 0.5)] * 8
    asked = select(ReadRequest.case_id, ReadRequest.u, ReadRequest.pi).where(ReadRequest.ordinal == 2)
    lots = [(case.id, case.u, after[case.id].pi) for case in service.scalars(select(Case))]
    assert set(service.rows(asked)) == {lot for lot in lots if lot[1] < lot[2]}
    assert {str(look.reason).rpartition(": ")[2] for look in today} == {"read twice with a probability of 0.50"}
    share = service.document("/v1/report", partition="all", weighting="none")["second_reads"]["share"]
    assert share + 0.1 * (1 - share) == pytest.approx(0.5)  # random-sample reads are extra
    with pytest.raises(ValueError, match=r"1 day\(s\) in daily_thresholds"):
        downgrade_schema(service.context.database.engine, "20261203")  # it would forget what the day's row has
    require_current_schema(service.context.database.engine)
    assert service.faults() == []


def test_a_day_without_ties_outlives_a_downgrade(service: Service) -> None:
    by_capacity(service, 4)
    service.add_cases(8)
    end_day(service)
    service.add_case("today", cell_png(9))
    day = service.one(select(DailyThreshold))
    assert (day.threshold is None, day.at_threshold) == (False, None)
    downgrade_schema(service.context.database.engine, "20261203")
    upgrade_schema(service.context.database.engine)
    assert service.faults() == []


def test_probabilities_are_stored_verified_and_another_one_is_named(service: Service) -> None:
    assert graded(service) == 201
    with service.context.database.write() as session:
        day = utc_now().date().isoformat()
        session.add(DailyThreshold(policy_version=2, day=day, threshold=0.9, n_cases=100))
    service.add_cases(8)
    phi, found = disagreement(service), looks(service)
    between = [case for case, look in found.items() if FLOOR < look.pi < 1]
    assert between
    for case in between:
        assert found[case].pi == pytest.approx(0.9 * phi[case] ** 0.5, rel=1e-9)
    for request in service.scalars(select(ReadRequest).where(ReadRequest.arm.in_(("triage", "audit")))):
        assert request.u < request.pi == found[request.case_id].pi
    assert service.faults() == []
    with service.context.database.read() as session:  # which keeps nothing
        session.execute(update(DailyThreshold).values(threshold=0.8))
        assert any("daily_thresholds" in fault for fault in verify_all(session, service.context).faults)
