"""Laws of summaries, case-wise temperatures, and of how they and the map of φ are chosen."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.calibration.calibration import Refinement, Summaries, logit_summaries
from ml.calibration.calibrators import Calibration, calibrate
from ml.calibration.concentration import HeadKind
from ml.calibration.disagreement_map import IDENTITY, DisagreementMap, PiecewiseMap, fit_map
from ml.calibration.joint_fit import (
    VARIANTS,
    LabelledOutputs,
    _Problem,
    case_temperature_loss,
    fit_variant,
    start_without_summaries,
)
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, softmax_probs
from ml.documents import from_document, to_document
from ml.metrics.losses import exact_metrics


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
def test_gradients_by_every_temperature_and_by_every_parameter(members: int) -> None:
    logits, features, y, _ = world(15, 2, members)
    y[0], y[1] = 0, [3, 1, 0, 0]
    rng = np.random.default_rng(0)
    log_t, a = rng.normal(0, 0.3, logits.shape[:-1]), rng.normal(0, 1, logits.shape[:-1])
    _, _, by_t = case_temperature_loss(logits, y, log_t, a, 0.01)
    for index in list(np.ndindex(log_t.shape))[:20]:
        step = np.zeros(log_t.shape)
        step[index] = 1e-5
        ends = [case_temperature_loss(logits, y, log_t + sign * step, a, 0.01)[0] for sign in (1, -1)]
        assert by_t[index] == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)
    seen = Summaries.of(logits)
    outputs = LabelledOutputs.of(logits, features, y, summaries=seen(logits))
    begun = start_without_summaries(
        0.1, calibrate(*world(60, 3)[:3], names(60), refined=False).calibration.concentration
    )  # type: ignore[arg-type]
    for variant in VARIANTS:
        problem = _Problem(outputs, HeadKind(0.01, 0.005), variant, begun, False)
        x = problem.start(begun) + rng.normal(0, 0.1, len(problem.start(begun)))
        value_slopes = problem(x)[1]
        numeric = [(problem(x + e)[0] - problem(x - e)[0]) / 2e-6 for e in 1e-6 * np.eye(len(x))]
        free = np.arange(len(x)) < len(x) - (0 if variant.temperature else 4)
        np.testing.assert_allclose(value_slopes[free], np.array(numeric)[free], rtol=1e-4, atol=1e-7)


def test_a_variant_explains_its_cases_better_than_one_that_reads_less() -> None:
    logits, features, y, _ = world(800, 4)
    outputs = LabelledOutputs.of(logits, features, y, summaries=Summaries.of(logits)(logits))
    head = calibrate(logits, features, y, names(800), refined=False).calibration.concentration
    assert head is not None
    start = start_without_summaries(0.0, head)
    fits = [fit_variant(outputs, start, HeadKind(0.0, 0.0), variant).predicted(outputs) for variant in VARIANTS]
    neither, by_head, by_temperature, both = (
        -DirichletCpe(softmax_probs(scaled), a).log_likelihood(y).sum() for scaled, a in fits
    )
    assert both < min(by_head, by_temperature)
    assert max(by_head, by_temperature) < neither


def calibration(members: int, mapped: Any, n: int = 300) -> tuple[Calibration, Any, Any]:
    """A calibration with everything that a refinement can have, and outputs to apply it to."""
    logits, features, y, _ = world(n, 5, members)
    plain = calibrate(logits, features, y, names(n), refined=False).calibration
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
