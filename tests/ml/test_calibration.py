"""Laws of the calibrators, of the map of disagreement probabilities, and of one coherent distribution."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, check_grad
from scipy.special import expit

from ml.calibration.calibrators import Calibration, calibrate, calibration_mix
from ml.calibration.concentration import concentration_loss, fit_concentration
from ml.calibration.disagreement_map import (
    IDENTITY,
    DisagreementMap,
    fit_disagreement_map,
    fit_map,
    match_disagreement,
    pair_loss,
)
from ml.calibration.joint_fit import case_temperature_loss
from ml.calibration.optimise import FitError
from ml.calibration.scaling import (
    METHODS,
    Scaling,
    affine_loss,
    fit_affine,
    fit_temperature,
    scaling_loss,
    temperature_loss,
)
from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, gini, softmax_probs
from ml.distributions.likelihood import mixture_log_likelihood
from ml.metrics import disagreement_calibration_loss, disagreement_loss


def simulated(n: int = 3000, labels: int = 3, temperature: float = 2.0, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Overconfident logits and a concentration that follows the first feature; truth is known."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (n, 4))
    features = rng.normal(3, 2, (n, 5))
    a = 1.0 + 0.5 * (features[:, 0] - 3)
    f = softmax_probs(logits)
    q = np.array([rng.dirichlet(np.exp(c) * p + 1e-12) for c, p in zip(a, f, strict=True)])
    y = np.array([rng.multinomial(labels, p / p.sum()) for p in q])
    return logits * temperature, features, y, a


def test_temperature_recovers_the_truth_and_never_raises_the_fitting_loss() -> None:
    logits, _, y, _ = simulated()
    log_t, _ = fit_temperature(logits, y)
    assert log_t == pytest.approx(np.log(2.0), abs=0.05)
    assert temperature_loss(logits, y, log_t)[0] <= temperature_loss(logits, y, 0.0)[0]


@pytest.mark.parametrize("temperature", [0.02, 0.5, 2.0, 300.0])
def test_temperature_ends_where_the_loss_is_level(temperature: float) -> None:
    logits, _, y, _ = simulated(400, temperature=temperature)
    log_t, _ = fit_temperature(logits, y)
    assert temperature_loss(logits, y, log_t)[1] == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("labels", "log_t"), [([[3, 0], [0, 3]], -3.0), ([[0, 3], [3, 0]], 3.0)])
def test_labels_that_every_temperature_contradicts_or_none_does_end_far_out(labels: Any, log_t: float) -> None:
    found, _ = fit_temperature([[2.0, 0.0], [0.0, 2.0]], labels)
    assert np.isfinite(found)
    assert found / log_t > 0.5


def test_temperature_keeps_the_argmax() -> None:
    logits, features, y, _ = simulated(200)
    found = calibrate(logits, features, y, [str(i) for i in range(200)], refined=False).calibration
    calibrated = found.apply(logits, features).class_probs
    np.testing.assert_array_equal(calibrated.argmax(1), logits.argmax(1))


def test_affine_scalings_undo_what_was_done_to_the_logits() -> None:
    """Counts from softmax(u), seen through u' = (u − b) / w: vector and matrix scaling find w and b again."""
    rng = np.random.default_rng(0)
    truth = rng.normal(0, 1.5, (30_000, 4))
    y = np.array([rng.multinomial(3, p) for p in softmax_probs(truth)])
    w, b = np.array([0.5, 1.0, 2.0, 1.5]), np.array([0.6, -0.3, 0.0, -0.3])
    seen = (truth - b) / w
    for method in ("vector", "matrix"):
        found, _ = fit_affine(seen, y, method, off_penalty=1e-4, bias_penalty=1e-6)
        assert found.weight is not None
        whole = np.diag(found.weight) if method == "vector" else found.weight
        # softmax does not see what is added to a whole column of W or to the whole of b
        np.testing.assert_allclose(whole - whole.mean(axis=0), np.diag(w) - w / 4, atol=0.06)
        assert found.bias is not None
        np.testing.assert_allclose(found.bias - found.bias.mean(), b - b.mean(), atol=0.06)
        assert scaling_loss(found, seen, y) < scaling_loss(Scaling(), seen, y) - 0.01


@pytest.mark.parametrize("method", METHODS)
def test_no_method_is_worse_than_nothing_where_it_was_chosen_and_all_survive_json(method: Any) -> None:
    logits, features, y, _ = simulated(300, temperature=0.5)
    found = calibrate(logits, features, y, [str(i) for i in range(300)], method=method, refined=False)
    if method != "none":
        assert found.report[method]["cv_after"] < found.report[method]["cv_before"]
        assert found.calibration.scaling.method == method
    back = Calibration.from_dict(found.calibration.to_dict())
    expected, again = (c.apply(logits, features).class_probs for c in (found.calibration, back))
    np.testing.assert_array_equal(expected, again)


def test_a_strong_penalty_leaves_no_off_diagonal_and_no_bias() -> None:
    logits, _, y, _ = simulated(500)
    found, _ = fit_affine(logits, y, "matrix", off_penalty=1e6, bias_penalty=1e6)
    assert found.weight is not None
    np.testing.assert_allclose(found.weight - np.diag(np.diag(found.weight)), 0, atol=1e-4)
    assert found.bias is not None
    np.testing.assert_allclose(found.bias, 0, atol=1e-4)


def test_concentration_head_recovers_the_truth() -> None:
    logits, features, y, a = simulated(20_000, labels=5, temperature=1.0)
    head, _ = fit_concentration(features, softmax_probs(logits), y, penalty=0.0)
    assert head.weight[0] == pytest.approx(0.5, abs=0.06)
    np.testing.assert_allclose(head.weight[1:], 0, atol=0.06)
    assert np.abs(head(features) - a).mean() < 0.15


def test_standardisation_of_features_does_not_change_the_model() -> None:
    logits, features, y, _ = simulated(400)
    f = softmax_probs(logits)
    plain, _ = fit_concentration(features, f, y)
    moved, _ = fit_concentration(100 * features - 7, f, y)
    np.testing.assert_allclose(moved(100 * features - 7), plain(features), atol=2e-3)


def test_a_feature_that_never_varies_is_harmless() -> None:
    logits, features, y, _ = simulated(200)
    head, _ = fit_concentration(np.column_stack([features, np.full(200, 4.0)]), softmax_probs(logits), y)
    assert np.isfinite(head.weight).all()


def test_one_label_a_case_gives_no_head_and_says_so() -> None:
    logits, features, y, _ = simulated(200, labels=1)
    with pytest.raises(FitError, match="two labels"):
        fit_concentration(features, softmax_probs(logits), y)
    found = calibrate(logits, features, y, [str(i) for i in range(200)])
    assert found.calibration.concentration is None
    assert "concentration" not in found.report


def test_single_labels_carry_no_information_on_the_concentration() -> None:
    logits, _, y, _ = simulated(50, labels=1)
    f = softmax_probs(logits)
    low, high = (concentration_loss(f, y, np.full(50, a), penalty=0.0)[0] for a in (-3.0, 3.0))
    assert low == pytest.approx(high, abs=1e-14)


@pytest.mark.slow
def test_calibrating_never_leaves_a_worse_loss_on_the_cases_set_aside() -> None:
    for seed in range(4):
        logits, features, y, _ = simulated(60, seed=seed)
        report = calibrate(logits, features, y, [str(i) for i in range(60)], seed=seed, refined=False).report
        assert report["temperature"]["cv_after"] <= report["temperature"]["cv_before"]
        assert report["concentration"]["cv_after"] <= report["concentration"]["cv_before"]


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"method": "magic"}, {"log_temperature": float("nan")}, {"concentration": {"weight": [1]}}],
)
def test_a_broken_calibration_document_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="calibration"):
        Calibration.from_dict(Calibration(Scaling(), None).to_dict() | change)


def members(n: int = 14, s: int = 3, seed: int = 3) -> tuple[Any, Any, Any]:
    """Logits and features of an ensemble, and counts with empty, single and several labels."""
    rng = np.random.default_rng(seed)
    y = np.array([rng.multinomial(m, [0.4, 0.3, 0.2, 0.1]) for m in rng.integers(0, 6, n)])
    return rng.normal(0, 2, (s, n, 4)), rng.normal(0, 1, (s, n, 5)), y


def test_an_ensemble_of_equal_members_is_calibrated_like_one_of_them() -> None:
    logits, features, y, _ = simulated(400)
    groups = [str(i) for i in range(400)]
    alone = calibrate(logits, features, y, groups, refined=False).calibration
    three = calibrate(np.stack([logits] * 3), np.stack([features] * 3), y, groups, refined=False).calibration
    assert three.scaling.log_temperature == pytest.approx(alone.scaling.log_temperature, abs=1e-4)
    single, mixture = alone.apply(logits, features), three.apply(np.stack([logits] * 3), np.stack([features] * 3))
    np.testing.assert_allclose(mixture.disagreement_probs, single.disagreement_probs, atol=2e-3)


def test_an_ensemble_aware_fit_beats_calibrators_fitted_for_single_members() -> None:
    """Members scatter around the truth; the mixture's own likelihood knows that, a member's does not."""
    logits, features, y, _ = simulated(4000, temperature=1.0, seed=5)
    rng = np.random.default_rng(0)
    noisy = logits + rng.normal(0, 1.5, (8, *logits.shape))
    many = np.broadcast_to(features, (8, *features.shape))
    groups = [str(i) for i in range(4000)]
    aware = calibrate(noisy, many, y, groups, refined=False).calibration
    single = calibrate(noisy[0], features, y, groups, refined=False).calibration
    fresh = [c.apply(noisy, many).log_likelihood(y).mean() for c in (aware, single)]
    assert fresh[0] > fresh[1] + 0.005


def assert_gradient(loss: Callable[[Any], tuple[Any, ...]], x: Any) -> None:
    """Compare the gradient that a loss returns after its value with central differences."""
    steps = 1e-5 * np.eye(x.size).reshape(-1, *x.shape)
    numeric = [(loss(x + step)[0] - loss(x - step)[0]) / 2e-5 for step in steps]
    np.testing.assert_allclose(np.ravel(loss(x)[1]), numeric, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("ensemble", [False, True])
def test_every_loss_has_the_gradient_that_it_returns(ensemble: bool) -> None:
    """At an extreme temperature too, where softmax(u / T) underflows to zero: ln f does not."""
    rng, (logits, _, y) = np.random.default_rng(0), members()
    logits = logits if ensemble else logits[0]
    a = rng.normal(0, 1, logits.shape[:-1])
    assert_gradient(lambda x: temperature_loss(logits, y, float(x[0])), np.array([0.3]))
    for shape in ((4,), (4, 4)):

        def affine(x: Any, shape: tuple[int, ...] = shape) -> tuple[Any, Any]:
            value, by_weight, by_bias = affine_loss(x[:-4].reshape(shape), x[-4:], logits, y, (0.7, 1.3))
            return value, np.concatenate([by_weight.ravel(), by_bias])

        assert_gradient(affine, rng.normal(size=int(np.prod(shape)) + 4))
    for scale in (0.5, 5.0):
        assert_gradient(lambda x: concentration_loss(softmax_probs(logits), y, x), scale * a)
    for log_t in (0.2, -9.0, -16.0):
        temperatures = np.full(a.shape, log_t)
        value, by_a, _ = case_temperature_loss(logits, y, temperatures, a, 0.005)
        assert np.isfinite(value)
        assert np.isfinite(by_a).all()
        assert_gradient(lambda x: case_temperature_loss(logits, y, x, a, 0.005)[::2], temperatures)
    assert_gradient(lambda x: case_temperature_loss(logits, y, np.full(a.shape, 0.2), x, 0.005), a)


@pytest.mark.slow
def test_temperature_and_concentration_together_explain_labels_better_than_one_after_the_other() -> None:
    logits, features, y, _ = simulated(6000, labels=5, temperature=1.6, seed=7)
    found = calibrate(logits, features, y, [str(i) for i in range(6000)], refined=False)
    joint = found.report["joint"]
    assert joint["cv_after"] <= joint["cv_before"] or not joint["kept"]
    # the truth: T = 1.6, and a that follows the first feature
    assert found.calibration.scaling.log_temperature == pytest.approx(np.log(1.6), abs=0.04)


def test_a_case_that_no_member_can_explain_has_no_share_instead_of_no_number() -> None:
    mixed, share = mixture_log_likelihood(np.array([[-1.0, -np.inf], [-2.0, -np.inf]]))
    assert mixed[1] == -np.inf
    assert mixed[0] == pytest.approx(np.log((np.exp(-1) + np.exp(-2)) / 2))
    assert share[:, 0].sum() == pytest.approx(1.0)
    assert (share[:, 1] == 0.0).all()


def case(seed: int, n: int = 30, k: int = 4, members: int = 0) -> tuple[Any, Any, Any]:
    """Logits from flat to nearly certain, concentrations from tiny to large, and DPEs anywhere."""
    rng = np.random.default_rng(seed)
    shape = (members, n) if members else (n,)
    logits = rng.normal(0, 1, (*shape, k)) * rng.choice([0.3, 2.0, 8.0], n)[:, None]
    return logits, rng.normal(0, 3, shape), rng.uniform(1e-4, 0.9 * (1 - 1 / k), n)


def own(logits: Any, a: Any) -> Any:
    family = DirichletCpe if logits.ndim == 2 else DirichletMixtureCpe
    return family(softmax_probs(logits), a)


@pytest.mark.parametrize("members", [0, 3])
def test_what_a_distribution_says_already_changes_nothing(members: int) -> None:
    logits, a, _ = case(0, members=members)
    again, same = match_disagreement(logits, a, own(logits, a).disagreement_probs)
    np.testing.assert_allclose(again, logits, rtol=1e-6)
    np.testing.assert_allclose(own(again, same).class_probs, own(logits, a).class_probs, atol=1e-9)
    np.testing.assert_allclose(own(again, same).disagreement_probs, own(logits, a).disagreement_probs, rtol=1e-9)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), members=st.sampled_from([0, 3]))
def test_one_distribution_says_what_is_wanted_and_a_label_still_counts(seed: int, members: int) -> None:
    """φ is that of the distribution; the weight of labels falls by less than a factor e; the leader stays."""
    logits, a, wanted = case(seed, members=members)
    flat, moved = match_disagreement(logits, a, wanted)
    said = own(flat, moved).disagreement_probs
    reachable = gini(np.full(4, 0.25)) * expit(np.maximum(a + 1, 0)).reshape(-1, len(wanted)).mean(axis=0)
    np.testing.assert_allclose(said, np.minimum(wanted, reachable), rtol=1e-6)
    assert (moved <= np.maximum(a + 1, 0) + 1e-12).all()
    for n in (1, 2, 9):
        assert (expit(np.log(n) - moved) >= expit(np.log(n) - a) / np.e * (1 - 1e-12)).all()
    np.testing.assert_array_equal(flat.argmax(axis=-1), logits.argmax(axis=-1))
    # flattened only where the concentration rose as far as it may
    flattened = (flat != logits).any(axis=-1)
    assert (moved[flattened] >= np.maximum(a + 1, 0)[flattened] - 1e-9).all()


def test_the_vectorised_solution_is_that_of_one_case_at_a_time() -> None:
    logits, a, wanted = case(3, n=60)
    flat, moved = match_disagreement(logits, a, wanted)
    for u, was, target, served, a_served in zip(logits, a, wanted, flat, moved, strict=True):
        highest = max(was + 1, 0.0)

        def missing(log_a: float, sharpness: float = 1.0, u: Any = u, target: float = target) -> float:
            return float(expit(log_a) * gini(softmax_probs(sharpness * u)) - target)

        if missing(highest) >= 0:
            assert a_served == pytest.approx(brentq(missing, -60, highest, xtol=1e-12), abs=1e-6)
            np.testing.assert_array_equal(served, u)
        elif missing(highest, 1e-9) > 0:
            sharpness = brentq(partial(missing, highest), 1e-9, 1, xtol=1e-14)
            np.testing.assert_allclose(served, sharpness * u, rtol=1e-6, atol=1e-9)


def test_equal_members_are_put_back_like_one_of_them() -> None:
    logits, a, wanted = case(7)
    flat, moved = match_disagreement(logits, a, wanted)
    many, shifted = match_disagreement(np.stack([logits] * 3), np.stack([a] * 3), wanted)
    for member in range(3):
        np.testing.assert_allclose(many[member], flat, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(shifted[member], moved, atol=1e-6)


def test_what_no_distribution_reaches_is_approached_without_harm() -> None:
    """Certain predictions, tiny and huge concentrations: finite numbers, probabilities that sum to one."""
    logits = np.array([[800.0, 0.0, -800.0], [0.0, 0.0, 0.0], [30.0, 0.0, 0.0]])
    for a in (-40.0, 0.0, 40.0):
        for wanted in (1e-9, 0.3, 1 - 1e-9):
            flat, moved = match_disagreement(logits, np.full(3, a), np.full(3, wanted))
            assert np.isfinite(flat).all()
            assert np.isfinite(moved).all()
            np.testing.assert_allclose(softmax_probs(flat).sum(axis=1), 1)


def problem(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels, two a case, of blends of two classes with known probability of disagreement 2w(1 − w)."""
    rng = np.random.default_rng(seed)
    w = np.where(rng.random(n) < 0.5, rng.uniform(0, 0.05, n), rng.uniform(0.1, 0.5, n))
    first = rng.binomial(2, w)
    return np.stack([first, 2 - first], axis=1), 2 * w * (1 - w)


def spread_out(dpe: np.ndarray) -> np.ndarray:
    """Too high where high, too low where low."""
    odds = dpe / (1 - dpe)
    return np.asarray(odds**1.7 / (odds**1.7 + 0.5))


def names(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def test_over_dispersed_probabilities_are_mended_on_new_cases() -> None:
    counts, dpe = problem(6000, 0)
    found = fit_disagreement_map(spread_out(dpe), counts, names(6000))
    new_counts, new_dpe = problem(6000, 1)
    before, after = spread_out(new_dpe), found(spread_out(new_dpe))
    assert np.abs(after - new_dpe).mean() < 0.25 * np.abs(before - new_dpe).mean()
    assert disagreement_loss(new_counts, after).value < disagreement_loss(new_counts, before).value
    bad, good = (disagreement_calibration_loss(new_counts, dpe).value for dpe in (before, after))
    assert good < 0.1 * bad


def test_what_is_right_is_hardly_moved() -> None:
    counts, dpe = problem(6000, 2)
    found = fit_disagreement_map(dpe, counts, names(6000))
    assert np.abs(found(dpe) - dpe).mean() < 0.01


@given(low=st.floats(0, 5), high=st.floats(0, 5), offset=st.floats(-5, 5))
def test_no_map_turns_an_order_round(low: float, high: float, offset: float) -> None:
    mapped = DisagreementMap(low, high, offset)(np.linspace(0, 1, 301))
    assert (np.diff(mapped) >= -1e-15).all()
    assert ((mapped >= 0) & (mapped <= 1)).all()


def test_the_identity_changes_nothing_and_no_help_keeps_it() -> None:
    dpe = np.linspace(0.001, 0.999, 99).reshape(3, 33)
    np.testing.assert_allclose(IDENTITY(dpe), dpe, atol=1e-14)
    rng = np.random.default_rng(3)
    counts = np.stack([np.full(40, 2), np.zeros(40, dtype=int)], axis=1)
    counts[rng.permutation(40)[:8]] = (1, 1)
    assert fit_disagreement_map(np.full(40, 0.2), counts, names(40), seed=1) is IDENTITY


def test_the_fit_is_a_minimum_within_its_bounds() -> None:
    counts, dpe = problem(800, 4)
    differ = (counts.min(axis=1) == 1).astype(float)
    found = fit_map(spread_out(dpe), differ)

    def loss(x: np.ndarray) -> float:
        return float(pair_loss(DisagreementMap(*x).logits(spread_out(dpe)), differ).mean())

    best = np.array([found.low, found.high, found.offset])
    for step in (*np.eye(3), *-np.eye(3)):
        other = best + 1e-3 * step
        if (other[:2] >= 0).all():
            assert loss(other) >= loss(best) - 1e-9
    assert check_grad(loss, lambda x: np.zeros(3), best) < 1e-3 or 0 in best[:2]


@pytest.mark.parametrize("labels", [1, 2])
def test_too_few_labels_are_refused(labels: int) -> None:
    with pytest.raises(FitError, match="two labels"):
        fit_disagreement_map(np.full(9, 0.2), np.array([[labels, 0]] * 9), names(9))
    with pytest.raises(FitError, match="several patients"):
        fit_disagreement_map(np.full(20, 0.2), np.array([[2, 0]] * 20), ["one"] * 20)


def test_the_calibration_mix_is_that_of_predictions_that_the_labels_follow() -> None:
    probs = [[0.7, 0.3]] * 10
    assert calibration_mix(probs, [[7, 3]] * 10) == pytest.approx([7.25 / 10.5, 3.25 / 10.5], abs=1e-6)
    assert calibration_mix([*probs, [0.1, 0.9]], [[7, 3]] * 10 + [[0, 0]]) == pytest.approx(
        calibration_mix(probs, [[14, 6]] * 10), abs=1e-6
    )
    with pytest.raises(ValueError, match="no cell has a label"):
        calibration_mix(probs, [[0, 0]] * 10)
    for wrong, counts in (([[2, 0], [0, 1]], [[1, 0], [0, 1]]), ([[1, 0]], [[1, 0], [0, 1]])):
        with pytest.raises(ValueError, match="class_probs"):
            calibration_mix(wrong, counts)


@pytest.mark.parametrize("trained_for", [[0.25] * 4, [0.01, 0.09, 0.3, 0.6], [0.7, 0.1, 0.1, 0.1]])
def test_cells_of_the_calibration_mix_are_estimated_as_such_whatever_the_network_was_trained_for(
    trained_for: list[float],
) -> None:
    """The mix π that is at rest under the mean of f ∘ π / m is that of the labels."""
    rng, mix = np.random.default_rng(0), np.array([0.01, 0.09, 0.3, 0.6])
    classes = rng.choice(4, 4_000, p=mix)
    probs = softmax_probs(np.log(trained_for) + 2 * rng.normal(size=(4_000, 4)) + 4 * np.eye(4)[classes])
    weights = probs / calibration_mix(probs, np.eye(4, dtype=np.int64)[classes])
    at_rest = np.full(4, 0.25)
    for _ in range(200):
        own = at_rest * weights
        at_rest = (own / own.sum(axis=1, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(at_rest, np.bincount(classes) / 4_000, rtol=0.1)
