"""Laws of skill, of the gain by labels, of triage curves, and of pairs of labels."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binomtest

from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, PointCpe
from ml.metrics import (
    Accumulator,
    class_skill,
    disagreement_loss,
    disagreement_skill,
    epistemic_loss,
    evaluate,
    exact_metrics,
    expected_squared_loss,
    paired_changes,
    second_order,
)
from ml.metrics.losses import judge_disagreement
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss, posterior_gain
from ml.metrics.second_order import second_order_error
from ml.metrics.triage_curves import net_benefit, net_benefit_difference, triage_recall, uncertainty_scores
from tests.ml.test_metrics import draw

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def tied(seed: int, n: int = 60, k: int = 4) -> tuple[Counts, Floats, Floats]:
    """Label counts, class probabilities and DPEs of few distinct values, so that leaders are often equal."""
    rng = np.random.default_rng(seed)
    f = rng.integers(1, 4, (n, k)).astype(np.float64)
    y = np.array([rng.multinomial(m, np.full(k, 1 / k)) for m in rng.integers(0, 6, n)])
    return y, f / f.sum(axis=1, keepdims=True), rng.choice([0.1, 0.3, 0.6], n)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(4)))
def test_no_metric_depends_on_the_order_of_the_classes(seed: int, order: list[int]) -> None:
    y, f, phi = tied(seed)
    w = np.random.default_rng(seed).uniform(0.5, 2, len(y))
    here, there = (
        evaluate(y[:, columns], f[:, columns], phi, sample_weight=(w, w)).metrics for columns in (list(range(4)), order)
    )
    for name, estimate in here.items():
        assert there[name].value == pytest.approx(estimate.value, abs=1e-12, nan_ok=True), name
    g = np.roll(f, 1, axis=0)
    before, after = (
        paired_changes(y[:, columns], (f[:, columns], phi), (g[:, columns], phi))["agreement"].value
        for columns in (list(range(4)), order)
    )
    assert before == pytest.approx(after, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_agreement_and_accuracy_equal_enumeration(seed: int) -> None:
    y, f, phi = tied(seed)
    agreement, accuracy = [], []
    for counts, probs in zip(y, f, strict=True):
        leaders = np.flatnonzero(probs == probs.max())
        labels = np.repeat(np.arange(4), counts)
        if labels.size:
            agreement.append(np.mean([label == leader for label in labels for leader in leaders]))
        if labels.size >= 3:
            most = np.flatnonzero(counts == counts.max())
            accuracy.append(np.mean([a == b for a, b in itertools.product(most, leaders)]))
    metrics = evaluate(y, f, phi).metrics
    assert metrics["agreement"].value == pytest.approx(np.mean(agreement), abs=1e-14)
    assert metrics["accuracy"].value == pytest.approx(np.mean(accuracy), abs=1e-14)
    assert (metrics["agreement"].n, metrics["accuracy"].n) == (len(agreement), len(accuracy))


def test_agreement_from_one_label_is_on_average_that_of_all() -> None:
    """Unbiased for any number of labels: over every way to keep one label of each case, the mean is the whole."""
    y, f, phi = tied(1, n=4, k=3)
    y[y.sum(axis=1) == 0, 0] = 1
    kept = [[np.eye(3, dtype=int)[label] for label in np.repeat(np.arange(3), counts)] for counts in y]
    values = [evaluate(np.array(case), f, phi).metrics["agreement"].value for case in itertools.product(*kept)]
    assert np.mean(values) == pytest.approx(evaluate(y, f, phi).metrics["agreement"].value, abs=1e-12)


@pytest.mark.parametrize("clustered", [False, True])
def test_the_error_of_skill_is_the_jackknife_with_the_constant_fitted_anew(clustered: bool) -> None:
    y, f, phi = tied(5, n=40)
    rng = np.random.default_rng(5)
    w, w2, g = rng.uniform(0.5, 3, 40), rng.uniform(0.5, 3, 40), rng.integers(0, 9, 40) if clustered else np.arange(40)

    def by_hand(rows: npt.NDArray[np.intp]) -> tuple[float, float]:
        ones, twos = (rows[y[rows].sum(axis=1) >= n] for n in (1, 2))
        shares = np.average(y[ones] / y[ones].sum(axis=1, keepdims=True), axis=0, weights=w[ones])
        constant = expected_squared_loss(y[ones], np.tile(shares, (len(ones), 1)), sample_weight=w[ones]).value
        loss = expected_squared_loss(y[ones], f[ones], sample_weight=w[ones]).value
        totals = y[twos].sum(axis=1)
        differ = 1 - (y[twos] * (y[twos] - 1)).sum(axis=1) / (totals * (totals - 1))
        rate = np.full(len(twos), np.average(differ, weights=w2[twos]))
        own, best = (disagreement_loss(y[twos], p, sample_weight=w2[twos]).value for p in (phi[twos], rate))
        return 1 - loss / constant, 1 - own / best

    groups = np.unique(g)
    without = np.array([by_hand(np.flatnonzero(g != group)) for group in groups])
    metrics = evaluate(y, f, phi, sample_weight=(w, w2), cluster=g if clustered else None).metrics
    for column, name in enumerate(("skill", "skill_D")):
        used = without[[bool((y[g == group].sum(axis=1) >= column + 1).any()) for group in groups], column]
        error = np.sqrt((len(used) - 1) / len(used) * ((used - used.mean()) ** 2).sum())
        assert metrics[name].value == pytest.approx(by_hand(np.arange(40))[column], abs=1e-12)
        assert metrics[name].se == pytest.approx(error, rel=1e-9)
    alone = class_skill(y, f, sample_weight=w, cluster=g), disagreement_skill(y, phi, sample_weight=w2, cluster=g)
    for found, name in zip(alone, ("skill", "skill_D"), strict=True):
        assert found.value == pytest.approx(metrics[name].value, abs=1e-12)
        assert found.se == pytest.approx(metrics[name].se, rel=1e-9)


def test_a_constant_has_no_skill_and_the_truth_has_as_much_as_there_is() -> None:
    y, _f, _phi = tied(6, n=200)
    y = y[y.sum(axis=1) >= 2]
    shares = (y / y.sum(axis=1, keepdims=True)).mean(axis=0)
    totals = y.sum(axis=1)
    rate = (1 - (y * (y - 1)).sum(axis=1) / (totals * (totals - 1))).mean()
    constant = evaluate(y, np.tile(shares, (len(y), 1)), np.full(len(y), rate)).metrics
    assert constant["skill"].value == pytest.approx(0, abs=1e-12)
    assert constant["skill_D"].value == pytest.approx(0, abs=1e-12)
    q = np.random.default_rng(0).dirichlet(np.full(3, 0.5), 500)
    exact = exact_metrics(q, q, 1 - (q**2).sum(axis=1))
    spread = (1 - (q**2).sum(axis=1)).var() / (lambda p: p * (1 - p))((1 - (q**2).sum(axis=1)).mean())
    assert exact["skill_D"].value == pytest.approx(spread, abs=1e-12)


@pytest.mark.parametrize("y", [[[2, 0], [2, 0], [3, 0]], [[1, 1], [1, 1], [1, 1]]])
def test_where_nothing_is_left_to_predict_there_is_no_skill(y: Any) -> None:
    found = disagreement_skill(y, [0.2, 0.3, 0.4])
    assert np.isnan(found.value)
    assert found.se is None
    assert judge_disagreement(y, [0.2, 0.3, 0.4]) == "no better so far"


def test_simple_rules_are_compared_on_the_same_cases() -> None:
    y, f, phi = tied(7)
    metrics = evaluate(y, f, phi).metrics
    for name, rule in (("max", 1 - f.max(axis=1)), ("gini", 1 - (f**2).sum(axis=1))):
        expected = disagreement_loss(y, phi).value - disagreement_loss(y, rule).value
        assert metrics[f"L_D_minus_{name}"].value == pytest.approx(expected, abs=1e-12)
    own = evaluate(y, f).metrics["L_D_minus_gini"]
    assert (own.value, own.se) == (pytest.approx(0, abs=1e-15), pytest.approx(0, abs=1e-15))


def readings(phi_of: Any, n: int = 400, seed: int = 0) -> tuple[Counts, Floats, Floats]:
    """Two labels of cases whose true disagreement varies, and DPEs made from the truth."""
    rng = np.random.default_rng(seed)
    q = rng.dirichlet(np.full(3, 0.5), n)
    return rng.multinomial(2, q), q, phi_of(1 - (q**2).sum(axis=1), rng)


def test_verdicts_and_words_follow_the_interval_of_the_skill() -> None:
    """Better where the truth is known; worse where it is turned round; open where φ is noise about the mean."""
    for phi_of, verdict, word in (
        (lambda truth, rng: truth, "better", None),
        (lambda truth, rng: truth.max() - truth, "worse", "worse than a constant ("),
        (lambda truth, rng: truth.mean() + rng.normal(0, 0.01, truth.size), "no better so far", "no better than"),
    ):
        y, q, phi = readings(phi_of)
        assert judge_disagreement(y, phi) == verdict
        said = [text for text in evaluate(y, q, phi).warnings if text.startswith("the disagreement probability is")]
        assert [word in text for text in said if word] == ([True] if word else [])


def test_predictions_made_from_the_labels_are_called_impossible_and_honest_ones_are_not() -> None:
    rng = np.random.default_rng(1)
    accused = 0
    for _ in range(60):
        q = rng.dirichlet(np.ones(3), 150)
        y = rng.multinomial(2, q)
        accused += any("impossible" in text for text in evaluate(y, q).warnings)
    leaked = evaluate(y, 0.5 * q + 0.5 * y / 2)
    assert any("were they fitted on these labels" in text for text in leaked.warnings)
    assert accused <= 1, "at one in a thousand, two of 60 happen once in 600"


def test_the_weight_of_unusable_bins_is_named() -> None:
    y, f = np.array([[1, 1], [2, 0], [0, 2], [1, 1]]), np.array([[0.1, 0.9], [0.5, 0.5], [0.9, 0.1], [0.5, 0.5]])
    assert any(text.startswith("50% of the weight of CL is in bins") for text in evaluate(y, f).warnings)
    assert any(text.startswith("CL is undefined") for text in evaluate(y[:3], f[:3]).warnings)
    weights = np.array([1.0, 2.0, 1.0, 1.0])  # a bin with one case then joins the next
    assert not any("count as 0" in text for text in evaluate(y, f, sample_weight=weights).warnings)
    many = np.repeat(y, 40, axis=0), np.repeat(f, 40, axis=0)
    assert not any("in bins" in text for text in evaluate(*many).warnings)


def test_an_accumulator_document_of_another_version_is_refused() -> None:
    document = Accumulator(2).to_dict()
    with pytest.raises(ValueError, match="version 9"):
        Accumulator.from_dict(document | {"version": 9})


@pytest.mark.parametrize("patients", [False, True])
def test_intervals_of_the_skill_cover_with_patients_and_without(patients: bool) -> None:
    """Cases of a patient share their difficulty; the skill aimed at is that of many cases with known truth."""
    rng = np.random.default_rng(4)

    def draw(n: int) -> tuple[Floats, Floats, Counts]:
        shared = rng.normal(0, 0.8, n // 5).repeat(5) if patients else rng.normal(0, 0.8, n)
        truth = 1 / (1 + np.exp(1.2 - shared - rng.normal(0, 0.6, n)))
        return truth, np.clip(truth**0.8 + 0.05, 0, 1), np.arange(n) // 5

    truth, phi, _ = draw(400_000)
    rate = truth.mean()
    aim = 1 - ((truth - phi) ** 2 + truth * (1 - truth)).mean() / (rate * (1 - rate))
    covered, runs = 0, 500
    for _ in range(runs):
        truth, phi, group = draw(300)
        y = np.where((rng.random(300) < truth)[:, None], [1, 1], [2, 0])
        found = disagreement_skill(y, phi, cluster=group if patients else None)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= aim <= found.high
    assert 0.925 <= covered / runs <= 0.98, "the Monte-Carlo error is 1 %"


def test_horvitz_thompson_equals_hajek_where_everybody_is_labelled_alike() -> None:
    y, f = draw(3, low=2)
    ones = np.ones(len(y))
    for row in evaluate(y, f, sample_weight=ones).to_dict()["metrics"].values():
        if row["horvitz_thompson"] is not None:
            assert row["horvitz_thompson"] == pytest.approx(row["value"], abs=1e-13)
    assert evaluate(y, f).to_dict()["metrics"]["L"]["horvitz_thompson"] is None


def test_weights_of_order_2_alone_leave_the_metrics_of_order_1_as_they_are() -> None:
    y, f = draw(3)
    plain, found = evaluate(y, f).metrics, evaluate(y, f, sample_weight=(None, np.full(len(y), 2.0))).metrics
    for name in ("agreement", "L", "skill", "CL", "CL_plugin", "CE"):
        assert found[name] == plain[name], name
    assert found["EL"].horvitz_thompson is not None


@pytest.mark.parametrize("clustered", [False, True])
def test_horvitz_thompson_is_unbiased_under_triage(clustered: bool) -> None:
    """Mean over every possible selection of six cases, weighted by its probability, is the full answer."""
    rng = np.random.default_rng(4)
    y = rng.multinomial(3, [0.5, 0.3, 0.2], 6)
    f = rng.dirichlet(np.ones(3), 6)
    pi = np.array([1.0, 0.9, 0.3, 0.5, 0.4, 0.8])
    patient = np.array([0, 0, 1, 1, 2, 2]) if clustered else None
    expected = {name: 0.0 for name in ("L", "EL", "CL", "CL_paired", "CL_D", "DL", "L_D")}
    for chosen in itertools.product([False, True], repeat=6):
        take = np.array(chosen)
        chance = np.where(take, pi, 1 - pi).prod()
        if chance == 0:
            continue
        seen = np.where(take[:, None], y, 0)
        metrics = evaluate(seen, f, sample_weight=1 / pi, cluster=patient, n_bins=3).to_dict()["metrics"]
        for name in expected:
            value = metrics[name]["horvitz_thompson"]
            expected[name] += chance * (0.0 if value is None else value)
    full = evaluate(y, f, cluster=patient, n_bins=3).to_dict()["metrics"]
    for name, value in expected.items():
        assert value == pytest.approx(full[name]["value"], abs=1e-12), name


def enumerate_splits(y: Counts, f: Floats, a: Floats) -> tuple[list[float], list[float]]:
    """Gain and EL′ of each case by taking each single label out in turn."""
    gains, losses = [], []
    for counts, prior, log_a in zip(y, f, a, strict=True):
        labels = np.repeat(np.arange(len(counts)), counts)
        gain, loss = [], []
        for taken in range(len(labels)):
            alpha = np.exp(log_a)
            posterior = (alpha * prior + np.eye(len(counts))[labels[taken]]) / (alpha + 1)
            rest = np.delete(labels, taken)
            squares = [((np.eye(len(counts))[c] - z) ** 2).sum() for c in rest for z in (prior, posterior)]
            gain.append(np.mean(squares[::2]) - np.mean(squares[1::2]))
            if len(rest) >= 2:
                # unbiased for Σ(q − z)²: products of two different labels' errors
                pairs = [
                    (np.eye(len(counts))[b] - posterior) @ (np.eye(len(counts))[c] - posterior)
                    for b, c in itertools.permutations(rest, 2)
                ]
                loss.append(np.mean(pairs))
        gains.append(float(np.mean(gain)))
        if loss:
            losses.append(float(np.mean(loss)))
    return gains, losses


def test_all_splits_equal_enumeration_of_labels() -> None:
    y, f = draw(0, n=30, low=2)
    a = np.random.default_rng(0).normal(0, 1, 30)
    prior = DirichletCpe(f, a)
    gains, losses = enumerate_splits(y, f, a)
    assert posterior_gain(y, prior).value == pytest.approx(np.mean(gains), abs=1e-13)
    found = posterior_epistemic_loss(y, prior)
    assert found.value == pytest.approx(np.mean(losses), abs=1e-13)
    assert found.dropped == (y.sum(1) < 3).sum()


def test_a_point_gains_nothing_and_keeps_its_epistemic_loss() -> None:
    y, f = draw(1, low=3)
    assert posterior_gain(y, PointCpe(f)).value == pytest.approx(0, abs=1e-14)
    assert posterior_epistemic_loss(y, PointCpe(f)).value == pytest.approx(epistemic_loss(y, f).value, abs=1e-13)


def test_shapes_that_do_not_fit_are_refused() -> None:
    y, f = draw(4)
    with pytest.raises(ValueError, match="do not fit"):
        posterior_gain(y[:5], PointCpe(f))
    with pytest.raises(ValueError, match="one shape"):
        exact_posterior_epistemic_loss(y, f[:, :2] / f[:, :2].sum(1, keepdims=True), PointCpe(f))


def cases(n: int, seed: int) -> tuple[Counts, Floats]:
    """Two labels each; the score is the true disagreement probability, noisily seen."""
    rng = np.random.default_rng(seed)
    q = rng.beta(0.5, 0.5, n)
    positive = rng.binomial(2, q)
    return np.stack([positive, 2 - positive], axis=1), 2 * q * (1 - q) + rng.normal(0, 0.1, n)


def test_everything_sent_catches_everything_and_nothing_nothing() -> None:
    y, f = draw(0)
    none, half, everything = triage_recall(y, f[:, 0], [0, 0.5, 1])
    assert none.value == 0
    assert everything.value == pytest.approx(1)
    assert everything.se == pytest.approx(0, abs=1e-12)
    assert none.value < half.value < everything.value


def test_recall_is_what_counting_gives() -> None:
    y, score = cases(200, 0)
    order = np.argsort(-score)
    differ = (y == 1).all(axis=1)
    for k in (10, 50, 120):
        (found,) = triage_recall(y, score, [k / 200])
        assert found.value == pytest.approx(differ[order[:k]].sum() / differ.sum(), abs=1e-12)


def test_the_curve_has_the_exact_interval_of_the_disagreements_caught_among_those_seen() -> None:
    y, score = cases(200, 0)
    differ, order = (y == 1).all(axis=1), np.argsort(-score)
    caught, n = int(differ[order[:20]].sum()), int(differ.sum())
    (found,) = triage_recall(y, score, [0.1], cluster=np.arange(200))
    exact = binomtest(caught, n).proportion_ci(0.95, "exact")
    np.testing.assert_allclose([found.low, found.high], [exact.low, exact.high], rtol=1e-9)
    (none,) = triage_recall(np.array([[2, 0]] * 9 + [[1, 1]]), np.arange(10)[::-1], [0.2])
    assert (none.value, none.low, none.high) == (0, 0, pytest.approx(0.975))  # one disagreement, not caught
    (together,) = triage_recall(y, score, [0.1], cluster=np.arange(200) // 20)
    assert together.high - together.low > found.high - found.low


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("audited", [1.0, 0.25])
def test_the_intervals_of_the_curve_cover_at_small_sizes_and_capacities(audited: float) -> None:
    """A score without skill catches its capacity; cases above its fifth are read twice, of the others a share."""
    capacities, covered, runs = [0.05, 0.1, 0.2], np.zeros((3, 3)), 200
    rng = np.random.default_rng(2)
    for place, n in enumerate((50, 100, 300)):
        for _ in range(runs):
            score = rng.random(round(n / (0.2 + 0.8 * audited)))
            pi = np.where(score > 0.8, 1.0, audited)
            read = rng.random(score.size) < pi
            differ = rng.random(score.size) < 0.15
            counts = np.where(differ[:, None], [1, 1], [2, 0])[read]
            rows = triage_recall(counts, score[read], capacities, sample_weight=1 / pi[read])
            covered[place] += [row.low <= c <= row.high for row, c in zip(rows, capacities, strict=True)]
    assert (covered >= 0.95 * runs).all(), covered / runs


def test_ties_are_sent_in_equal_shares() -> None:
    y, _ = cases(400, 1)
    for capacity, found in zip([0.1, 0.37], triage_recall(y, np.zeros(400), [0.1, 0.37]), strict=True):
        assert found.value == pytest.approx(capacity, abs=1e-12)


def test_a_weight_of_two_equals_the_case_twice() -> None:
    y, score = cases(60, 2)
    w = np.where(np.arange(60) % 2 == 0, 2.0, 1.0)
    twice = np.repeat(np.arange(60), w.astype(int))
    weighted = triage_recall(y, score, [0.2, 0.6], sample_weight=w)
    repeated = triage_recall(y[twice], score[twice], [0.2, 0.6])
    for a, b in zip(weighted, repeated, strict=True):
        assert a.value == pytest.approx(b.value, abs=1e-12)


def test_net_benefit_of_everybody_is_the_mean_disagreement_less_its_cost() -> None:
    y, score = cases(500, 3)
    differ = (y == 1).all(axis=1).mean()
    assert net_benefit(y, score, 1.0, 0.25).value == pytest.approx(differ - (1 - differ) / 3, abs=1e-12)
    assert net_benefit(y, score, 0.0, 0.25).value == 0


def test_the_difference_of_two_rules_is_the_difference_of_their_benefits() -> None:
    y, score = cases(800, 4)
    other = np.random.default_rng(0).random(800)
    gap = net_benefit_difference(y, score, other, 0.3, 0.2)
    a, b = net_benefit(y, score, 0.3, 0.2), net_benefit(y, other, 0.3, 0.2)
    assert gap.value == pytest.approx(a.value - b.value, abs=1e-12)
    assert gap.low is not None
    assert gap.low > 0  # a score that sees disagreement beats chance
    assert net_benefit_difference(y, score, score, 0.3, 0.2).se == pytest.approx(0, abs=1e-12)


def test_both_simple_rules_rank_two_classes_alike() -> None:
    _, f = draw(5, k=2)
    scores = uncertainty_scores(f)
    np.testing.assert_array_equal(np.argsort(scores["entropy"]), np.argsort(scores["max probability"]))


def test_bad_input_is_refused() -> None:
    y, score = cases(10, 0)
    with pytest.raises(ValueError, match="capacities"):
        triage_recall(y, score, [1.2])
    with pytest.raises(ValueError, match="scores"):
        triage_recall(y, score[:5], [0.5])
    with pytest.raises(ValueError, match="two labels"):
        triage_recall([[1, 0]], [0.5], [0.5])
    with pytest.raises(ValueError, match="no disagreement"):
        triage_recall([[2, 0], [0, 2]], [0.5, 0.1], [0.5])
    with pytest.raises(ValueError, match="threshold"):
        net_benefit(y, score, 0.5, 1.0)


def read_twice(seed: int, tilt: float = 0.0) -> tuple[Floats, Floats, Counts, Counts]:
    """Class probabilities, log concentrations, label pairs and patients of 400 cells of 40 patients."""
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(40), 10)
    logit, log_alpha = rng.normal(size=400), rng.normal(0.0, 0.5, 400)
    probs = expit(np.stack([logit, -logit], axis=1))
    moved = expit(logit + tilt * rng.normal(size=40)[patient])
    q = rng.beta(np.exp(log_alpha) * moved, np.exp(log_alpha) * (1 - moved))
    return probs, log_alpha, rng.multinomial(2, np.stack([q, 1 - q], axis=1)), patient


@pytest.mark.parametrize("a", [-np.inf, -40.0, -1.0, 0.5, np.inf])
def test_expected_pairs_differ_as_often_as_the_distribution_does(a: float) -> None:
    probs = np.random.default_rng(1).dirichlet([1, 1, 1], (2, 9))
    mixture = DirichletMixtureCpe(probs, np.array([np.full(9, a), np.zeros(9)]), np.zeros((2, 9)))
    pairs = second_order.expected_pairs(mixture, np.arange(9))
    np.testing.assert_allclose(pairs, pairs.T)
    np.testing.assert_allclose(pairs.sum(axis=1), mixture.class_probs.mean(axis=0))
    assert 1 - np.trace(pairs) == pytest.approx(mixture.own_disagreement_probs.mean())
    # and simulated labels have the same pairs
    rng, rounds = np.random.default_rng(2), 2_000
    twice = np.full(9, 2)
    counts = np.concatenate([second_order.simulated_counts(rng, mixture, twice) for _ in range(rounds)])
    np.testing.assert_allclose(second_order.mean_pairs(counts), pairs, atol=5 / np.sqrt(9 * rounds) / 2)


def test_pairs_that_follow_the_predictions_are_not_told_apart_and_others_are() -> None:
    p_values, too_sure = list[float](), list[float]()
    for seed in range(12):
        probs, log_alpha, counts, _ = read_twice(seed)
        for values, a in ((p_values, log_alpha), (too_sure, log_alpha + 1.5)):
            error = second_order_error(counts, DirichletCpe(probs, a))
            assert error is not None
            assert error["n_cells"] == 400
            assert 0 <= error["excess"] <= error["largest"]
            values.append(error["p_value"])
    assert 0.3 < np.mean(p_values) < 0.7
    assert np.mean(np.array(p_values) <= 0.05) <= 0.2
    assert np.mean(np.array(too_sure) <= 0.05) >= 0.5


def test_cells_that_deviate_with_their_patient_are_not_taken_for_wrong_predictions() -> None:
    alone, by_patient = list[float](), list[float]()
    for seed in range(12):
        probs, log_alpha, counts, patient = read_twice(seed, tilt=1.0)
        for values, cluster in ((alone, None), (by_patient, patient)):
            error = second_order_error(counts, DirichletCpe(probs, log_alpha), cluster=cluster)
            assert error is not None
            values.append(error["p_value"])
    assert np.mean(by_patient) > np.mean(alone) + 0.1
    far = DirichletCpe(probs[:, ::-1], log_alpha)
    p_values = [second_order_error(counts, far, cluster=each) for each in (None, np.zeros(400))]
    assert [error is not None and error["p_value"] < 0.05 for error in p_values] == [True, False]  # one patient


def test_a_bias_of_all_patients_alike_is_seen_with_few_patients_too() -> None:
    p_values = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        first = rng.uniform(0.55, 0.85, 400)
        count = rng.binomial(2, rng.beta(3 * (first - 0.12), 3 * (1.12 - first)))
        predicted = DirichletCpe(np.stack([first, 1 - first], axis=1), np.full(400, np.log(3.0)))
        error = second_order_error(np.stack([count, 2 - count], axis=1), predicted, cluster=np.arange(400) // 80)
        assert error is not None
        p_values.append(error["p_value"])
    assert np.mean(np.array(p_values) < 0.05) > 0.75


def test_rare_classes_share_a_level_set_and_few_cells_have_none() -> None:
    probs = np.eye(4)[np.repeat([0, 1, 2, 3], [120, 60, 50, 30])] * 0.9 + 0.025
    counts = np.tile([1, 1, 0, 0], (260, 1))
    error = second_order_error(counts, PointCpe(probs))
    assert error is not None
    assert (error["n_sets"], error["n_cells"], error["p_value"] < 0.01) == (2, 260, True)
    assert second_order_error(counts[:99], PointCpe(probs[:99])) is None
    assert second_order_error(counts // 2, PointCpe(probs)) is None
