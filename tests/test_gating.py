"""The gate's decision by itself: levels, improvement, harm, margin, who carries it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from app.recalibration import gate_decision
from app.recalibration.gate_decision import (
    ERROR_RATE,
    GateEvidence,
    attempt_level,
    decide_gate,
    judge_annotator_dependence,
    judge_overall,
)
from ml.metrics.jackknife import Estimate, p_value_decrease, skewed_interval
from ml.metrics.paired_difference import Change, paired_change, shifts_of
from ml.util.arrays import FloatArray
from tests.support.sabotage import undone

N, K, PATIENTS = 240, 3, 60
CLUSTER = np.repeat(np.arange(PATIENTS), N // PATIENTS)


def change(loss: float, disagreement: float, seed: int = 0) -> Change:
    """From one prediction to another, of cases whose two labels make it about so much worse."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(K, size=(N, 2))
    counts = np.eye(K, dtype=np.int64)[labels].sum(axis=1)
    towards = counts / 2 - 1 / K
    differ = (labels[:, 0] != labels[:, 1]).astype(float)
    before = np.full((N, K), 1 / K), np.full(N, 0.5)
    wobble = 0.1 * (rng.dirichlet(np.ones(K), size=N) - 1 / K)
    after = before[0] - loss * towards + wobble, 0.5 - disagreement * (differ - 0.5) + rng.normal(0, 0.05, N)
    return paired_change(counts, before, after, sample_weight=(np.ones(N), rng.uniform(1, 3, N)), cluster=CLUSTER)


def evidence(loss: float, disagreement: float, **more: object) -> GateEvidence:
    return replace(GateEvidence(change(loss, disagreement), CLUSTER, 3), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_is_sure_at_one_in_forty_just_where_the_interval_lies_below_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        influence = rng.gamma(0.3, size=30) * rng.choice([-1, 1, 1], size=30)
        influence -= influence.mean()
        se = float(np.sqrt(30 / 29 * (influence**2).sum()))
        value = float(rng.normal(-2, 1)) * se
        high = skewed_interval(value, se, influence, 30.0)[1]
        assert (p_value_decrease(value, se, influence) < 0.025) == (high < 0)
    assert p_value_decrease(0.0, 0.0, np.zeros(3)) == 1
    tiny = 1e-127 * np.array([2.0, -1.0, -1.0])  # of two calibrations that are both almost certain
    assert p_value_decrease(-3e-127, 3e-127, tiny) == pytest.approx(p_value_decrease(-3.0, 3.0, 1e127 * tiny))
    assert p_value_decrease(-1.0, 0.0, np.zeros(3)) == 0


def test_the_levels_of_all_attempts_together_are_the_error_rate() -> None:
    levels = [attempt_level(attempt) for attempt in range(1, 60)]
    assert sum(levels) == pytest.approx(ERROR_RATE)
    assert all(later == earlier / 2 for earlier, later in pairwise(levels))
    assert (
        0 <= attempt_level(2000) <= attempt_level(1030) < attempt_level(1000)
    )  # nobody tries so often; the job must not fail then


def test_who_passes_a_later_attempt_passes_an_earlier_one_and_who_is_refused_stays_refused() -> None:
    for loss in np.linspace(-0.4, 0.1, 11):
        verdicts = [not judge_overall(evidence(float(loss), -0.01), attempt).reasons for attempt in (1, 2, 5, 10, 20)]
        assert verdicts == sorted(verdicts, reverse=True)
    assert not judge_overall(evidence(-0.4, -0.01), 1).reasons
    assert judge_overall(evidence(-0.05, -0.01), 200).reasons  # no candidate of so few cases is that sure


def test_one_loss_must_fall_and_the_other_must_not_rise_by_more_than_its_error() -> None:
    assert not judge_overall(evidence(-0.3, 0.0), 1).reasons
    assert not judge_overall(evidence(-0.01, -0.3), 1).reasons
    refused = judge_overall(evidence(-0.3, 0.3), 1).reasons
    assert len(refused) == 1
    assert "L_φ is worse" in refused[0]
    assert "one standard error" in refused[0]
    same = judge_overall(evidence(-0.001, 0.0), 1).reasons
    assert len(same) == 1
    assert "no significant improvement" in same[0]
    assert "attempt 1" in same[0]


def test_the_gate_takes_the_smaller_error_of_two_estimates() -> None:
    found = change(0.0, -0.1)
    assisted = found.disagreement_loss.model_assisted
    assert assisted is not None
    assert found.disagreement_loss.efficient is assisted
    worse = replace(found.disagreement_loss, value=9.0, p_of_fall=1.0)
    one = GateEvidence(found, CLUSTER, 3)
    other = GateEvidence(replace(found, disagreement_loss=worse), CLUSTER, 3)
    assert judge_overall(one, 1) == judge_overall(other, 1)


def test_small_losses_do_not_add_up_over_promotions() -> None:
    better = change(-0.3, 0.0)
    assert not judge_overall(evidence(-0.3, 0.0, since_first=better), 1).reasons
    crept = judge_overall(evidence(-0.3, 0.0, since_first=change(0.3, 0.0)), 1).reasons
    assert len(crept) == 1
    assert "since the first champion" in crept[0]
    unknown = judge_overall(evidence(-0.3, 0.0, since_first="its network was not trained on any of these cells"), 1)
    assert not unknown.reasons
    assert any("cannot be checked" in finding for finding in unknown.findings)


def test_each_loss_since_the_first_champion_is_checked_by_itself() -> None:
    nothing = Estimate(float("nan"), None, None, None, 0, N, 0.0)
    unread = replace(change(0.3, 0.0), disagreement_loss=nothing)  # nobody read two of these cases
    found = judge_overall(evidence(-0.3, 0.0, since_first=unread), 1)
    assert ["L is worse since the first champion" in reason for reason in found.reasons] == [True]
    unchecked = [finding for finding in found.findings if "to check whether L_φ worsens" in finding]
    assert unchecked == ["Too few labelled patients to check whether L_φ worsens since the first champion."]
    both = judge_overall(evidence(-0.3, 0.0, since_first=replace(unread, loss=nothing)), 1)
    assert not both.reasons
    assert sum("to check whether" in finding for finding in both.findings) == 2
    harmless = judge_overall(evidence(-0.3, 0.0, since_first=replace(unread, loss=change(-0.3, 0.0).loss)), 1)
    assert not harmless.reasons


def test_a_margin_holds_where_the_plan_has_one() -> None:
    end = change(-0.3, 0.0).disagreement_loss.efficient.high
    assert end is not None
    assert end > 0
    assert not judge_overall(evidence(-0.3, 0.0), 1, end * 1.01).reasons
    refused = judge_overall(evidence(-0.3, 0.0), 1, end * 0.99).reasons
    assert len(refused) == 1
    assert "change plan" in refused[0]


def test_what_cannot_be_estimated_is_refused_for_the_whole_and_said_of_annotators() -> None:
    nothing = Estimate(float("nan"), None, None, None, 0, N, 0.0)
    whole = replace(change(-0.3, 0.0), disagreement_loss=nothing)
    assert any("cannot be estimated" in text for text in judge_overall(GateEvidence(whole, CLUSTER, 3), 1).reasons)
    good = change(-0.3, 0.0)
    without: dict[str, Change | str] = {"anna": good, "ben": whole, "cleo": "the fit without their labels fails"}
    found = judge_annotator_dependence(GateEvidence(good, CLUSTER, 3, without=without))
    assert found.reasons == []
    assert [name for name in without if any(f" on {name} cannot" in text for text in found.findings)] == [
        "ben",
        "cleo",
    ]


@pytest.mark.parametrize("n", [0, 1, 2])
def test_with_fewer_than_three_annotators_it_works_and_says_what_it_could_not_check(n: int) -> None:
    found = decide_gate(GateEvidence(change(-0.3, 0.0), CLUSTER, n), 1)
    assert found.reasons == []
    assert any("Dependence on a single annotator cannot be checked" in text for text in found.findings)


def test_a_fall_is_told_with_the_minus_sign_of_the_pages_and_a_rise_with_a_plus() -> None:
    (told, *_) = decide_gate(evidence(-0.3, 0.0), 1).findings
    assert "L changes by \N{MINUS SIGN}0." in told
    (told, *_) = decide_gate(evidence(0.3, 0.0), 1).reasons
    assert "L changes by +0." in told


@undone(
    "T18",
    "a candidate that one annotator carries alone is refused",
    gate_decision.AnnotatorStability,
    "reasons",
    lambda *_: [],
)
def test_who_carries_a_change_alone_is_named() -> None:
    good, nothing = change(-0.3, 0.0), change(0.0, 0.0)
    found = judge_annotator_dependence(
        GateEvidence(good, CLUSTER, 3, without={"anna": nothing, "ben": good, "cleo": good})
    )
    assert len(found.reasons) == 1
    assert "depends on anna" in found.reasons[0]


@pytest.mark.parametrize(("n", "rate", "share", "says"), [(200, 0.05, 0.1, 0.3), (1_000, 0.02, 0.1, 0.5)])
def test_where_hardly_anybody_disagreed_saying_less_does_not_pass(
    n: int, rate: float, share: float, says: float
) -> None:
    """A champion that is right, and a candidate that says a third or half of its φ, read twice too rarely to tell."""
    passed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        phi = np.clip(rate * np.exp(rng.normal(0, 0.5, n)), 1e-4, 0.9)
        first, differs, twice = np.zeros(n, dtype=int), rng.random(n) < phi, rng.random(n) < share
        counts = np.column_stack([1 + (twice & ~differs), twice & differs]).astype(np.int64)
        probs = np.column_stack([1 - phi / 2, phi / 2])
        weights2 = np.where(twice, 1 / share, 0.0)
        found = paired_change(counts, (probs, phi), (probs, says * phi), first_label_counts=np.eye(2, dtype=int)[first],
                              sample_weight=(np.ones(n), weights2), cluster=np.arange(n))  # fmt: skip
        passed += not judge_overall(GateEvidence(found, np.arange(n), 3), 1).reasons
    assert passed <= 3


def test_patients_without_an_error_are_no_reason_for_probabilities_of_zero() -> None:
    """Twenty patients of a champion that is right about its errors, and a candidate that says an eighth of them."""
    passed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        q = np.clip(0.04 * np.exp(rng.normal(0, 0.3, 20)), 0.001, 0.4)
        counts = rng.multinomial(2, np.column_stack([1 - q, q]))
        sides = [(f := np.column_stack([1 - p, p]), 1 - np.square(f).sum(axis=1)) for p in (q, q / 8)]
        found = paired_change(counts, *sides, sample_weight=np.ones(20))
        passed += not judge_overall(GateEvidence(found, np.arange(20), 3), 1).reasons
    assert passed <= 3


def test_the_error_of_a_shift_is_that_of_the_difference_of_two_means() -> None:
    """By hand: cluster totals of what each case adds to one weighted mean less what it adds to the other."""
    rng = np.random.default_rng(0)
    n, cluster = 60, np.repeat(np.arange(20), 3)
    before, after = (rng.dirichlet(np.ones(3), n) for _ in range(2))
    labels = rng.integers(3, size=(n, 2))
    all_counts = np.eye(3, dtype=np.int64)[labels].sum(axis=1)
    some_counts = np.where((np.arange(n) % 4 == 0)[:, None], 0, all_counts)
    weight = rng.uniform(1, 4, n)

    def change(counts: FloatArray) -> Change:
        phi = [1 - (probs**2).sum(axis=1) for probs in (before, after)]
        return paired_change(counts, (before, phi[0]), (after, phi[1]), sample_weight=weight, cluster=cluster)

    some, everything = change(some_counts), change(all_counts)
    terms = (
        ((np.eye(3)[labels] - after[:, None]) ** 2 - (np.eye(3)[labels] - before[:, None]) ** 2)
        .sum(axis=2)
        .mean(axis=1)
    )
    parts = np.zeros(n)
    for counts, sign in ((some_counts, 1), (all_counts, -1)):
        used = np.where(counts.sum(axis=1) > 0, weight, 0.0)
        parts += sign * used * (terms - used @ terms / used.sum()) / used.sum()
    totals = np.bincount(cluster, parts)
    shift = shifts_of(some, everything, cluster)["L"]
    assert shift.value == pytest.approx(some.loss.value - everything.loss.value)
    assert shift.se == pytest.approx(np.sqrt(20 / 19 * (totals**2).sum()))
    assert shifts_of(everything, everything, cluster)["L"].se == 0
    with pytest.raises(ValueError, match="same cases"):
        shifts_of(some, everything, cluster[:10])
