"""Laws of refinements, of an adaptation to other annotators, and of a constant disagreement probability."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from ml.calibration import domain_adaptation
from ml.calibration.calibration import Refinement, Summaries, logit_summaries
from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.concentration import ConcentrationHead, HeadKind
from ml.calibration.disagreement_map import IDENTITY, DisagreementMap, PiecewiseMap, fit_map
from ml.calibration.domain_adaptation import Adaptation, fit_adaptation, recalibrate_for_annotators
from ml.calibration.joint_fit import VARIANTS, LabelledOutputs, _Problem, fit_variant, start_without_summaries
from ml.calibration.optimise import FitError
from ml.calibration.scaling import Scaling
from ml.distributions.decisions import further_labels_expected
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.documents import from_document, to_document
from ml.metrics import disagreement_loss
from ml.metrics.cases import observed_disagreement
from ml.metrics.losses import exact_metrics, judge_disagreement
from ml.training.calibrate import held_out_metrics, with_judged_disagreement
from ml.training.run_folder import CachedOutputs
from tests.ml.test_distributions import all_distributions


def world(n: int, seed: int, members: int = 0) -> tuple[Any, Any, Any, Any]:
    """Blends of two classes, seen as overconfident logits: no Dirichlet describes them. Truth is known."""
    rng = np.random.default_rng(seed)
    share = np.where(rng.random(n) < 0.5, rng.uniform(0.5, 1, n), 1 - 1e-3)
    first, second = np.array([rng.permutation(4)[:2] for _ in range(n)]).T
    q = np.zeros((n, 4))
    q[np.arange(n), first], q[np.arange(n), second] = share, 1 - share
    shape = (members, n, 4) if members else (n, 4)
    logits = (2 * np.log(q + 0.01) + rng.normal(0, 1, (n, 4)))[None] + 0.3 * rng.normal(size=(max(members, 1), n, 4))
    features = np.stack([np.full(n, 1.0), rng.normal(size=n)], axis=1)
    features = np.broadcast_to(features, (members, n, 2)) if members else features
    return logits.reshape(shape), features, np.array([rng.multinomial(2, p) for p in q]), q


def names(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def test_summaries_are_what_they_are_called_and_blind_to_order_and_to_a_constant() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (50, 5))
    p = np.sort(softmax_probs(logits), axis=1)
    largest = np.log(p[:, -1] / (1 - p[:, -1]))
    expected = [largest, largest**2, -(p * np.log(p)).sum(axis=1), np.log(p[:, -1] / p[:, -2])]
    np.testing.assert_allclose(logit_summaries(logits), np.stack(expected, axis=1), atol=1e-9)
    np.testing.assert_allclose(
        logit_summaries(logits[:, [3, 1, 0, 4, 2]] + 7), logit_summaries(logits), rtol=1e-9, atol=1e-12
    )
    assert np.isfinite(logit_summaries([[1e4, 0.0, -1e4]])).all()


def test_summaries_stop_at_the_range_they_were_standardised_by() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1, (100, 3))
    seen = Summaries.of(logits)
    np.testing.assert_allclose(seen(logits).mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(seen(logits).std(axis=0), 1, atol=1e-12)
    extreme = seen(100 * logits)
    assert (extreme <= seen(logits).max(axis=0) + 1e-12).all()
    assert (extreme >= seen(logits).min(axis=0) - 1e-12).all()


@pytest.mark.parametrize("members", [0, 3])
def test_gradients_by_every_parameter(members: int) -> None:
    logits, features, y, _ = world(15, 2, members)
    y[0], y[1] = 0, [3, 1, 0, 0]
    rng = np.random.default_rng(0)
    seen = Summaries.of(logits)
    outputs = replace(LabelledOutputs.of(logits, features, y), summaries=seen(logits))
    head: Any = calibrate(*world(60, 3)[:3], names(60), refined=False).calibration.concentration
    begun = start_without_summaries(0.1, head)
    for variant in VARIANTS:
        problem = _Problem(outputs, HeadKind(0.01, 0.005), variant, begun, False)
        x = problem.start(begun) + rng.normal(0, 0.1, len(problem.start(begun)))
        value_slopes = problem(x)[1]
        numeric = [(problem(x + e)[0] - problem(x - e)[0]) / 2e-6 for e in 1e-6 * np.eye(len(x))]
        free = np.arange(len(x)) < len(x) - (0 if variant.temperature else 4)
        np.testing.assert_allclose(value_slopes[free], np.array(numeric)[free], rtol=1e-4, atol=1e-7)


def test_a_variant_explains_its_cases_better_than_one_that_reads_less() -> None:
    logits, features, y, _ = world(800, 4)
    outputs = replace(LabelledOutputs.of(logits, features, y), summaries=Summaries.of(logits)(logits))
    head = calibrate(logits, features, y, names(800), refined=False).calibration.concentration
    assert head is not None
    start = start_without_summaries(0.0, head)
    fits = [fit_variant(outputs, start, HeadKind(0.0, 0.0), variant).predicted(outputs) for variant in VARIANTS]
    neither, by_head, by_temperature, both = (
        -DirichletCpe(softmax_probs(scaled), a).log_likelihood(y).sum() for scaled, a in fits
    )
    assert both < min(by_head, by_temperature)
    assert max(by_head, by_temperature) < neither


@cache
def fitted(members: int) -> tuple[Calibration, Any, Any]:
    """A calibration without a refinement, and the outputs that it was fitted to."""
    logits, features, y, _ = world(300, 5, members)
    return calibrate(logits, features, y, names(300), refined=False).calibration, logits, features


def calibration(members: int, mapped: Any) -> tuple[Calibration, Any, Any]:
    """A calibration with everything that a refinement can have, and outputs to apply it to."""
    plain, logits, features = fitted(members)
    assert plain.concentration is not None
    weight = np.append(plain.concentration.weight, [0.3, -0.1, 0.2, 0.1])
    head = replace(plain.concentration, weight=weight)
    refinement = Refinement(Summaries.of(logits), np.array([0.1, -0.05, 0.02, 0.03]), mapped)
    return Calibration(plain.scaling, head, refinement=refinement), logits, features


BENT = DisagreementMap(0.6, 1.1, -0.2)
STEPPED = PiecewiseMap(np.array([-3.0, -1.0]), np.array([0.5, 0.8, 1.3]), -2.5)


@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("mapped", [BENT, STEPPED])
def test_probabilities_disagreement_and_posterior_come_from_one_distribution(members: int, mapped: Any) -> None:
    """Rebuilt from class probabilities and concentrations alone, as a service stores them, it says the same."""
    made, logits, features = calibration(members, mapped)
    served = made.apply(logits, features)
    bare = replace(made, refinement=replace(made.refinement, disagreement_map=None)).apply(logits, features)
    assert served.stated_disagreement is None
    if isinstance(served, DirichletCpe):
        rebuilt: Any = DirichletCpe(served.class_probs, served.log_concentration)
    else:
        assert isinstance(served, DirichletMixtureCpe)
        rebuilt = DirichletMixtureCpe(served.member_class_probs, served.member_log_concentration)
    np.testing.assert_array_equal(rebuilt.disagreement_probs, served.disagreement_probs)
    counts = np.random.default_rng(0).integers(0, 2, (300, 4))
    np.testing.assert_array_equal(rebuilt.posterior(counts).class_probs, served.posterior(counts).class_probs)
    np.testing.assert_allclose(served.disagreement_probs, mapped(bare.disagreement_probs), rtol=1e-6)


def test_the_identity_changes_nothing_and_a_document_keeps_everything() -> None:
    made, logits, features = calibration(0, IDENTITY)
    without = replace(made, refinement=replace(made.refinement, disagreement_map=None))
    one, other = made.apply(logits, features), without.apply(logits, features)
    np.testing.assert_allclose(one.class_probs, other.class_probs, atol=1e-9)
    np.testing.assert_allclose(one.disagreement_probs, other.disagreement_probs, rtol=1e-9)
    counts = np.eye(4, dtype=int)[np.zeros(300, dtype=int)]
    np.testing.assert_allclose(one.posterior(counts).class_probs, other.posterior(counts).class_probs, atol=1e-9)
    for mapped in (None, BENT, STEPPED):
        made = replace(made, refinement=replace(made.refinement, disagreement_map=mapped), constant_disagreement=None)
        document = json.loads(json.dumps(made.to_dict()))
        assert document["version"] == 3
        back = Calibration.from_dict(document)
        assert back.to_dict() == made.to_dict()
        np.testing.assert_array_equal(
            back.apply(logits, features).disagreement_probs, made.apply(logits, features).disagreement_probs
        )
    assert replace(without, refinement=Refinement()).to_dict()["version"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"temperature_weight": [1.0]},
        {"temperature_weight": None},
        {"summaries": {"centre": [0.0] * 4, "spread": [0.0] * 4, "low": [0.0] * 4, "high": [0.0] * 4}},
        {"disagreement_map": {"kind": "magic", "offset": 0.0}},
        {"disagreement_map": {"kind": "beta", "low": -1.0, "high": 1.0, "offset": 0.0}},
        {"disagreement_map": {"kind": "piecewise", "knots": [1.0, 0.0], "slopes": [1.0] * 3, "offset": 0.0}},
        {"disagreement_map": {"kind": "piecewise", "knots": [0.0, 1.0], "slopes": [1.0] * 2, "offset": 0.0}},
    ],
)
def test_a_broken_refinement_is_refused(change: dict[str, Any]) -> None:
    document = calibration(0, BENT)[0].to_dict()
    with pytest.raises(ValueError, match=r"calibration|map"):
        Calibration.from_dict(document | {"refinement": document["refinement"] | change})


@pytest.mark.parametrize("kind", ["beta", "piecewise"])
def test_a_map_keeps_the_order_and_finds_a_known_bend(kind: Any) -> None:
    rng = np.random.default_rng(6)
    true = rng.uniform(0.02, 0.6, 20_000)
    odds = true / (1 - true)
    said = odds**1.6 / (odds**1.6 + 0.7)
    found = fit_map(said, (rng.random(20_000) < true).astype(float), kind)
    assert np.abs(found(said) - true).mean() < 0.012
    assert (np.diff(found(np.linspace(0, 1, 301))) >= -1e-12).all()
    assert from_document(type(found), json.loads(json.dumps(to_document(found)))) == found


@pytest.mark.parametrize("n", [700, pytest.param(2500, marks=pytest.mark.slow)])
def test_what_is_refined_says_the_truth_better_before_and_after_labels(n: int) -> None:
    """On blends, which no Dirichlet describes: less error of φ, of the class probabilities, and of the posterior."""
    logits, features, y, _ = world(n, 8)
    plain, refined = (calibrate(logits, features, y, names(n), refined=refined) for refined in (False, True))
    assert refined.report["refinement"]["variant"] != "neither"
    new, new_features, label, q = world(4000, 9)
    said = [fit.calibration.apply(new, new_features) for fit in (plain, refined)]
    before, after = (exact_metrics(q, d.class_probs, d.disagreement_probs) for d in said)
    assert after["CL_D"].value < 0.7 * before["CL_D"].value
    assert after["EL"].value < before["EL"].value
    one = np.eye(4, dtype=int)[label.argmax(axis=1)]
    errors = [((d.posterior(one).class_probs - q) ** 2).sum(axis=1).mean() for d in said]
    assert errors[1] < errors[0]


def test_where_there_is_nothing_to_learn_the_calibration_is_the_papers() -> None:
    logits, features, y, _ = world(60, 10)
    y[20:] = np.minimum(y[20:], [1, 0, 0, 0])
    few = calibrate(logits, features, y, names(60))
    assert "fewer than" in few.report["refinement"]["failed"]
    assert few.calibration.to_dict()["version"] == 1
    assert "refinement" not in calibrate(logits, features, y, names(60), refined=False).report


@pytest.mark.slow
def test_adjudicated_labels_lower_no_disagreement() -> None:
    """A third label of each case whose first two differ: its pairs differ less, and what is served must not."""
    rng = np.random.default_rng(0)
    logits, features = rng.normal(0, 2, (800, 4)), rng.normal(0, 1, (800, 2))
    gammas = rng.standard_gamma(np.exp(0.5 + 0.8 * features[:, :1]) * softmax_probs(logits) + 1e-12) + 1e-300
    q = gammas / gammas.sum(axis=1, keepdims=True)
    planned = np.array([rng.multinomial(2, row) for row in q])
    third = np.array([rng.multinomial(1, row) for row in q]) * (planned.max(axis=1) == 1)[:, None]
    fit = calibrate(logits, features, planned + third, names(800), scaling_label_counts=planned)
    said = fit.calibration.apply(logits, features).disagreement_probs
    assert said.mean() == pytest.approx((1 - (q**2).sum(axis=1)).mean(), abs=0.02)


def shipped(mapped: Any = None) -> Calibration:
    head = ConcentrationHead(np.array([0.8, -0.3]), 0.5)
    return Calibration(Scaling("temperature", 0.2), head, refinement=Refinement(disagreement_map=mapped))


def cases(n: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, 2, (n, 4)), rng.normal(0, 1, (n, 2))


def labels(calibration: Calibration, logits: Any, features: Any, seed: int, n_labels: int = 2) -> Any:
    """Of annotators for whom a calibration is exact."""
    rng, said = np.random.default_rng(seed), calibration.apply(logits, features)
    assert isinstance(said, DirichletCpe)
    alpha = np.exp(said.log_concentration)[:, None] * said.class_probs
    gammas = rng.standard_gamma(alpha + 1e-12) + 1e-300
    return np.array([rng.multinomial(n_labels, row / row.sum()) for row in gammas])


def adapted(calibration: Calibration, logits: Any, features: Any, counts: Any) -> Calibration:
    """With its own disagreement probabilities."""
    return fit_adaptation(calibration, LabelledOutputs.of(logits, features, counts)).calibration


@pytest.mark.parametrize(
    "mapped",
    [None, DisagreementMap(0.7, 1.2, -0.3), PiecewiseMap(np.array([-2.0, 0.0]), np.array([0.5, 1.0, 1.5]), -1.5)],
)
def test_a_map_followed_by_slope_and_level_is_one_map(mapped: Any) -> None:
    both = domain_adaptation._compose_affine_map(mapped or IDENTITY, 0.6, -0.4)
    dpe = np.linspace(0.01, 0.7, 50)
    first = dpe if mapped is None else mapped(dpe)
    np.testing.assert_allclose(both(dpe), expit(0.6 * logit(first) - 0.4), rtol=1e-9)


def test_endless_penalties_leave_what_was_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, features = cases(60, 0)
    for name in ("PULL_TEMPERATURE", "PULL_SLOPE", "PULL_LEVEL"):
        monkeypatch.setattr(domain_adaptation, name, 1e9)
    other = replace(shipped(), scaling=Scaling("temperature", 0.9))
    before = shipped().apply(logits, features)
    after = adapted(shipped(), logits, features, labels(other, logits, features, 1)).apply(logits, features)
    np.testing.assert_allclose(after.class_probs, before.class_probs, atol=1e-5)
    np.testing.assert_allclose(after.disagreement_probs, before.disagreement_probs, atol=1e-5)


def test_with_many_labels_another_crowd_is_found() -> None:
    """One with another temperature and another map: what is said afterwards is what that crowd does."""
    logits, features = cases(6000, 2)
    true = replace(shipped(DisagreementMap(0.6, 0.6, -1.0)), scaling=Scaling("temperature", 0.6))
    after = adapted(shipped(), logits, features, labels(true, logits, features, 3)).apply(logits, features)
    wanted = true.apply(logits, features)
    before = shipped().apply(logits, features)
    gaps = [np.abs(d.disagreement_probs - wanted.disagreement_probs).mean() for d in (before, after)]
    assert gaps[1] < 0.15 * gaps[0]
    gaps = [np.abs(d.class_probs - wanted.class_probs).mean() for d in (before, after)]
    assert gaps[1] < 0.6 * gaps[0]
    assert isinstance(after, DirichletCpe)
    assert after.stated_disagreement is None


@pytest.mark.parametrize("runs", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_fifty_double_reads_beat_what_was_shipped_and_the_constant_that_they_teach(runs: int) -> None:
    logits, features = cases(3000, 4)
    true = replace(shipped(DisagreementMap(0.8, 0.8, -1.5)), scaling=Scaling("temperature", 0.0))
    judged = labels(true, logits, features, 5, n_labels=20)
    rng, better, much_worse, total = np.random.default_rng(6), 0, 0, 0.0
    before = disagreement_loss(judged, shipped().apply(logits, features).disagreement_probs).value
    for run in range(runs):
        some = rng.choice(3000, 50, replace=False)
        pairs = labels(true, logits[some], features[some], 100 + run)
        after = adapted(shipped(), logits[some], features[some], pairs).apply(logits, features)
        loss = disagreement_loss(judged, after.disagreement_probs).value
        constant = disagreement_loss(judged, np.full(3000, observed_disagreement(pairs).mean())).value
        better += loss < constant
        much_worse += loss > 1.05 * constant
        total += loss
    assert total / runs < before
    # where chance gives twice the disagreements that there are, of cases easier than most, both are wrong
    assert much_worse <= 0.03 * runs
    assert better >= 0.8 * runs


def test_too_few_pairs_and_no_head_are_refused() -> None:
    logits, features = cases(60, 7)
    counts = labels(shipped(), logits, features, 8)
    with pytest.raises(FitError, match="head"):
        relearned(replace(shipped(), concentration=None), logits, features, counts)
    with pytest.raises(FitError, match=r"20 cases .*there are 19"):
        relearned(shipped(), logits[:19], features[:19], counts[:19])
    with pytest.raises(FitError, match="two patients"):
        recalibrate_for_annotators(shipped(), logits, features, counts, ["one"] * 60)


def relearned(calibration: Calibration, logits: Any, features: Any, counts: Any, **fields: Any) -> Adaptation:
    return recalibrate_for_annotators(calibration, logits, features, counts, names(len(counts)), **fields)


def test_whom_the_release_knows_already_changes_nearly_nothing() -> None:
    """Labels of its own distribution: level, slope and temperature stay, up to what chance in the labels allows."""
    logits, features = cases(1200, 9)
    found = relearned(shipped(), logits, features, labels(shipped(), logits, features, 10, n_labels=30))
    after, before = (made.apply(logits, features) for made in (found.calibration, shipped()))
    assert np.abs(after.disagreement_probs - before.disagreement_probs).mean() < 0.01
    assert np.abs(after.class_probs - before.class_probs).max() < 0.03
    assert found.figures["mean_after"] == pytest.approx(found.figures["mean_before"], abs=0.02)
    assert found.figures["slope"] == pytest.approx(1, abs=0.1)
    assert found.figures["temperature_after"] == pytest.approx(found.figures["temperature_before"], rel=0.1)
    assert found.calibration.constant_disagreement is None


def test_a_crowd_that_disagrees_twice_as_often_moves_the_level_and_no_leader() -> None:
    logits, features = cases(2000, 11)
    calm = shipped(DisagreementMap(1.0, 1.0, -1.5))
    loud = shipped(DisagreementMap(1.0, 1.0, -0.6))
    before, true = (made.apply(logits, features) for made in (calm, loud))
    assert 1.8 < true.disagreement_probs.mean() / before.disagreement_probs.mean() < 2.4
    found = relearned(calm, logits[:60], features[:60], labels(loud, logits[:60], features[:60], 12))
    assert found.figures["rise"] > 0.5
    assert found.figures["mean_after"] > 1.5 * found.figures["mean_before"]
    assert found.figures["mean_after"] == pytest.approx(found.figures["seen"], abs=0.05)
    after = found.calibration.apply(logits, features)
    np.testing.assert_array_equal(after.class_probs.argmax(axis=1), before.class_probs.argmax(axis=1))


def test_a_crowd_that_differs_far_more_often_blurs_no_class() -> None:
    """Small concentrations of a release that knows little rise, where a map would make all classes equal."""
    logits, features = cases(2000, 31)
    knows_little = replace(shipped(), concentration=ConcentrationHead(np.array([0.2, -0.1]), -1.5))
    loud = replace(shipped(), concentration=ConcentrationHead(np.array([0.2, -0.1]), 3.0))
    found = relearned(knows_little, logits[:60], features[:60], labels(loud, logits[:60], features[:60], 32))
    after, true = (made.apply(logits, features) for made in (found.calibration, loud))
    assert abs(after.disagreement_probs.mean() - true.disagreement_probs.mean()) < 0.1
    assert np.abs(after.class_probs - true.class_probs).sum(axis=1).mean() / 2 < 0.1


@pytest.mark.parametrize("scaling", [Scaling(), Scaling("vector", 0.0, np.array([1.0, 2.0, 0.5, 1.5]), np.ones(4))])
def test_what_is_relearned_is_the_plain_fit_and_goes_through_its_document(scaling: Scaling) -> None:
    logits, features = cases(80, 13)
    counts = labels(shipped(), logits, features, 14)
    parent = replace(shipped(), scaling=scaling)
    found = relearned(parent, logits, features, counts)
    for made in (adapted(parent, logits, features, counts), Calibration.from_dict(found.calibration.to_dict())):
        after, wanted = (one.apply(logits, features) for one in (made, found.calibration))
        np.testing.assert_array_equal(after.class_probs, wanted.class_probs)
        np.testing.assert_array_equal(after.disagreement_probs, wanted.disagreement_probs)
    factor = found.figures["temperature_after"] / found.figures["temperature_before"]
    np.testing.assert_allclose(found.calibration.scaling(logits) * factor, parent.scaling(logits))


def test_figures_of_a_case_know_nothing_of_its_labels() -> None:
    """Other labels of one patient change what is said of all patients but theirs."""
    logits, features = cases(60, 15)
    groups = [f"p{row // 3}" for row in range(60)]
    counts = labels(shipped(), logits, features, 16)
    other = counts.copy()
    other[:3] = np.roll(counts[:3], 1, axis=1) + 1
    first, second = (
        recalibrate_for_annotators(shipped(), logits, features, one, groups).unseen for one in (counts, other)
    )
    np.testing.assert_array_equal(first.disagreement_probs[:3], second.disagreement_probs[:3])
    np.testing.assert_array_equal(first.class_probs[:3], second.class_probs[:3])
    assert (first.disagreement_probs[3:] != second.disagreement_probs[3:]).mean() > 0.5


def test_labels_of_an_adjudication_teach_the_temperature_and_no_pair() -> None:
    logits, features = cases(60, 17)
    planned = labels(shipped(), logits, features, 18)
    split = (planned > 0).sum(axis=1) == 2
    asked = planned + np.where(split[:, None], np.eye(4, dtype=np.int64)[logits.argmax(axis=1)], 0)
    found = relearned(shipped(), logits, features, asked, pair_label_counts=planned)
    assert found.figures["seen"] == observed_disagreement(planned).mean() > observed_disagreement(asked).mean()
    assert found.figures["mean_after"] == pytest.approx(found.figures["seen"], abs=0.03)
    with pytest.raises(ValueError, match="some of label_counts"):
        relearned(shipped(), logits, features, planned, pair_label_counts=asked)


def test_a_constant_is_kept_unless_the_own_is_surely_better_and_none_is_stated_unless_surely_worse() -> None:
    logits, features = cases(250, 19)
    stating = replace(shipped(), constant_disagreement=0.9)
    own = relearned(stating, logits, features, labels(shipped(), logits, features, 20, n_labels=6))
    assert (own.figures["verdict"], own.figures["constant"]) == ("better", None)
    assert own.calibration.constant_disagreement is None
    # labels that have nothing to do with the cells
    random = np.random.default_rng(21).multinomial(2, [0.9, 0.1, 0.0, 0.0], 250)
    for parent, n, verdict, states in (
        (stating, 60, "no better so far", True),
        (shipped(), 60, "no better so far", False),
        (shipped(), 250, "worse", True),
    ):
        found = relearned(parent, logits[:n], features[:n], random[:n])
        judged = judge_disagreement(random[:n], found.unseen.own_disagreement_probs)
        assert found.figures["verdict"] == judged == verdict
        stated = observed_disagreement(random[:n]).mean() if states else None
        assert (found.figures["constant"], found.calibration.constant_disagreement) == (stated, stated)
        assert (found.unseen.disagreement_probs == found.unseen.own_disagreement_probs).all() == (not states)
    members = np.stack([logits, logits + 0.1]), np.stack([features, features])
    ensemble = relearned(shipped(), *members, random)
    assert (ensemble.figures["verdict"], ensemble.figures["constant"]) == ("worse", None)  # it keeps its own


P = 0.17


@pytest.mark.parametrize("own", all_distributions(), ids=lambda d: type(d).__name__)
def test_only_what_is_said_before_labels_is_the_constant(own: Any) -> None:
    """Class probabilities, likelihood, posterior and the worth of labels are the distribution's own."""
    constant = replace(own, stated_disagreement=np.full(2, P))
    counts = np.array([[0, 0, 0], [2, 0, 1]])
    np.testing.assert_array_equal(constant.disagreement_probs, np.full(2, P))
    np.testing.assert_array_equal(constant.class_probs, own.class_probs)
    np.testing.assert_array_equal(constant.log_likelihood(counts), own.log_likelihood(counts))
    np.testing.assert_array_equal(further_labels_expected(constant, 0.01), further_labels_expected(own, 0.01))
    after, own_after = constant.posterior(counts), own.posterior(counts)
    np.testing.assert_array_equal(after.class_probs, own_after.class_probs)
    np.testing.assert_array_equal(after.disagreement_probs, [P, own_after.disagreement_probs[1]])
    with pytest.raises(ValueError, match="stated_disagreement"):
        replace(own, stated_disagreement=np.full(5, P))


@pytest.mark.parametrize("head", [None, ConcentrationHead(np.array([0.5, -0.2]), 0.1)])
@pytest.mark.parametrize("members", [(), (4,)])
def test_a_calibration_keeps_its_constant_and_says_so_to_older_readers(head: Any, members: Any) -> None:
    rng = np.random.default_rng(2)
    logits, features = rng.normal(size=(*members, 5, 3)), rng.normal(size=(*members, 5, 2))
    plain = Calibration(Scaling("temperature", 0.3), head)
    calibration = replace(plain, constant_disagreement=P)
    back = Calibration.from_dict(json.loads(json.dumps(calibration.to_dict())))
    np.testing.assert_array_equal(back.apply(logits, features).disagreement_probs, np.full(5, P))
    np.testing.assert_array_equal(back.apply(logits, features).class_probs, plain.apply(logits, features).class_probs)
    # a reader that knows of version 1 only refuses version 2, and reads what has no constant
    assert (plain.to_dict()["version"], calibration.to_dict()["version"]) == (1, 2)
    assert "constant_disagreement" not in plain.to_dict()
    with pytest.raises(ValueError, match="constant_disagreement"):
        Calibration.from_dict(calibration.to_dict() | {"constant_disagreement": 1.5})


def outputs(seed: int, turned: bool) -> CachedOutputs:
    """A network whose classes are right and whose feature tells the concentration, or tells it turned round."""
    rng = np.random.default_rng(seed)
    n = 800
    sharp = rng.random(n) < 0.5
    q = np.where(sharp[:, None], [0.97, 0.03], [0.5, 0.5])
    counts = rng.multinomial(2, q)
    feature = np.where(sharp != turned, -3.0, 3.0)[:, None].astype(np.float32)
    logits = np.tile(np.log([0.6, 0.4]), (n, 1)).astype(np.float32)
    names = np.array([f"c{i}" for i in range(n)])
    part = np.where(np.arange(n) < n // 2, "calibration", "test")
    return CachedOutputs(logits, feature, feature, counts, part, names, names)


def test_a_head_that_is_worse_than_the_rate_is_replaced_by_that_of_the_calibration_part() -> None:
    calibration = Calibration(Scaling(), ConcentrationHead(np.array([1.0]), 0.0))
    for turned, verdict in ((False, "better"), (True, "worse")):
        made = outputs(0, turned)
        fitted_on, held_out = (made.take(made.partition == name) for name in ("calibration", "test"))
        served, said = with_judged_disagreement(calibration, fitted_on, held_out, None)
        assert said is not None
        assert said["verdict"] == verdict
        rate = (fitted_on.label_counts == 1).all(axis=1).mean()
        assert served.constant_disagreement == (pytest.approx(rate) if turned else None)
        skill = held_out_metrics(held_out, served)["skill_D"]["value"]
        assert skill is not None
        assert skill > -0.02
    single = replace(held_out, label_counts=np.minimum(held_out.label_counts, [1, 0]))
    assert with_judged_disagreement(calibration, fitted_on, single, None) == (calibration, None)
    kept, said = with_judged_disagreement(
        calibration, replace(fitted_on, label_counts=single.label_counts), held_out, None
    )
    assert kept == calibration
    assert said is not None
    assert (said["verdict"], said["constant"], said["second_order"]["p_value"] < 0.01) == ("worse", None, True)
