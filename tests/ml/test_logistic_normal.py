"""Laws of the logistic normal of rank two and of the pair head: alone, chosen by a fit, in a graph, in a release."""

import json
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit, ndtr

from ml.calibration.calibration import Calibration, Refinement, Summaries
from ml.calibration.calibrators import FitDocument, calibrate, fitted_level
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import (
    DisagreementMap,
    PairHead,
    fit_pair_head,
    pair_inputs,
    principal_components,
)
from ml.calibration.domain_adaptation import fit_adaptation
from ml.calibration.joint_fit import LabelledOutputs
from ml.calibration.logistic_normal import N_NODES, POINT, fit_loadings, member_logits, nodes
from ml.calibration.optimise import FitError
from ml.calibration.scaling import Scaling
from ml.distributions.decisions import class_intervals
from ml.distributions.families import DirichletMixtureCpe, EnsembleCpe, softmax_probs
from ml.metrics import disagreement_loss
from ml.metrics.cases import observed_disagreement
from ml.training.fused import Calibrated, output_names

K, D = 4, 3
# neighbours on an ordered scale: annotators lean to one end, or to the middle
ORDERED = np.array([[-1.5, 0.7], [-0.5, -0.7], [0.5, -0.7], [1.5, 0.7]])


def names(n: int) -> list[str]:
    return [f"patient {i // 2}" for i in range(n)]


def outputs(n: int, seed: int) -> tuple[Any, Any]:
    """Logits, from flat to nearly certain, and features."""
    rng = np.random.default_rng(seed)
    return rng.normal(0, 1, (n, K)) * rng.choice([0.3, 1.0, 4.0], n)[:, None], rng.normal(0, 1, (n, D))


def labels(q: Any, per_case: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.stack([rng.multinomial(per_case, row) for row in q])


def drawn(logits: Any, loadings: Any, seed: int) -> Any:
    """Class probabilities (N, K) of cases whose normal is drawn and not one of the nodes."""
    rng = np.random.default_rng(seed)
    centre = member_logits(logits, loadings) - (nodes() @ loadings.T)[:, None]
    return softmax_probs(centre[0] + rng.normal(size=(len(logits), 2)) @ loadings.T)


def neighbourly(pair_head: bool = True, mapped: Any = None) -> tuple[Calibration, Any, Any]:
    """A calibration with loadings, and outputs to apply it to."""
    logits, features = outputs(120, 1)
    refinement = Refinement(disagreement_map=mapped, loadings=ORDERED)
    if pair_head:
        head = PairHead(0.5, np.array([0.1, -0.1, 0.2, 0.1, 0.8, 0.3, -0.2, 0.0]), -0.3)
        refinement = replace(refinement, pair_head=head, pair_summaries=Summaries.of(logits))
    point = ConcentrationHead(np.zeros(D), POINT)
    return Calibration(Scaling("temperature", 0.2), point, refinement=refinement), logits, features


def test_nodes_have_the_moments_of_the_normal() -> None:
    assert nodes().shape == (N_NODES, 2)
    np.testing.assert_allclose(nodes().mean(axis=0), 0, atol=1e-14)
    np.testing.assert_allclose(nodes().T @ nodes() / N_NODES, np.eye(2), atol=1e-14)
    np.testing.assert_allclose((nodes() ** 4).mean(axis=0), 3, rtol=0.25)
    # along any direction, as rotated loadings are the same model
    for angle in np.linspace(0, np.pi, 7):
        along = np.sort(nodes() @ [np.cos(angle), np.sin(angle)])
        assert np.abs(ndtr(along) - (np.arange(N_NODES) + 0.5) / N_NODES).max() < 0.08


@pytest.mark.parametrize("scale", [0.0, 1.0, 5.0, 1e4])
def test_the_mean_over_nodes_is_what_it_was_calibrated_to(scale: float) -> None:
    logits = np.concatenate([outputs(50, 2)[0], [[60.0, 0.0, 0.0, -60.0]]])
    members = softmax_probs(member_logits(logits, scale * ORDERED))
    if scale == 1e4:  # each member is certain of a class, and may only stay finite
        assert np.isfinite(members).all()
        return
    np.testing.assert_allclose(members.mean(axis=0), softmax_probs(logits), atol=1e-11)
    if scale == 0:  # nothing is left to learn from labels
        np.testing.assert_allclose(members, np.broadcast_to(members[0], members.shape), atol=1e-11)


def test_classes_in_another_order_are_predicted_in_that_order() -> None:
    logits, order = outputs(20, 3)[0], [2, 0, 3, 1]
    np.testing.assert_allclose(
        member_logits(logits[:, order], ORDERED[order]), member_logits(logits, ORDERED)[..., order], atol=1e-9
    )


def test_the_posterior_is_that_of_all_labels_and_labels_of_a_class_raise_its_neighbours() -> None:
    """Bayes' rule by hand over the 64 nodes, for every sequence of two labels, in sum one."""
    made, logits, features = neighbourly(pair_head=False)
    said = made.apply(logits, features)
    assert isinstance(said, DirichletMixtureCpe)
    q, total = said.member_class_probs, np.zeros(len(logits))
    for first, second in product(range(K), range(K)):
        counts = np.zeros((len(logits), K), dtype=int)
        counts[:, first] += 1
        counts[:, second] += 1
        weight = q[..., first] * q[..., second]
        total += weight.mean(axis=0)
        np.testing.assert_allclose(np.exp(said.log_likelihood(counts)), weight.mean(axis=0), rtol=1e-9)
        by_hand = (weight[..., None] * q).sum(axis=0) / weight.sum(axis=0)[:, None]
        np.testing.assert_allclose(said.posterior(counts).class_probs, by_hand, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(total, 1, atol=1e-9)
    np.testing.assert_allclose(said.disagreement_probs, (1 - (q**2).sum(axis=-1)).mean(axis=0), atol=1e-12)
    raised = said.posterior(np.eye(K, dtype=int)[np.zeros(len(logits), dtype=int)]).class_probs / said.class_probs
    assert np.median(raised[:, 1] / raised[:, 3]) > 1.5


def test_points_have_the_intervals_of_their_order() -> None:
    made, logits, features = neighbourly(pair_head=False)
    said: Any = made.apply(logits[:5], features[:5])
    expected = np.sort(said.member_class_probs, axis=0)[[1, 62]]  # above 2.5 % and 97.5 % of 64
    np.testing.assert_allclose(class_intervals(said), expected.transpose(1, 2, 0), atol=1e-12)
    after = said.posterior(np.eye(K, dtype=int)[:1].repeat(5, axis=0) * 3)
    nearly = DirichletMixtureCpe(after.member_class_probs, np.full((N_NODES, 5), 27.0), after.log_weights)
    np.testing.assert_allclose(class_intervals(after), class_intervals(nearly), atol=1e-4)
    ensemble = EnsembleCpe(after.member_class_probs, after.log_weights)
    np.testing.assert_allclose(class_intervals(ensemble), class_intervals(after), atol=1e-12)


def test_gradients_by_every_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    logits = outputs(40, 4)[0]
    problem: list[Any] = []

    def look(objective: Any, start: Any, *_: Any, **__: Any) -> Any:
        problem.append(objective)
        return start, 0

    monkeypatch.setattr("ml.calibration.logistic_normal.minimise", look)
    fit_loadings(softmax_probs(logits), labels(softmax_probs(logits), 3, 5))
    x = rng.normal(0, 1, 2 * K)
    numeric = [(problem[0](x + e)[0] - problem[0](x - e)[0]) / 2e-5 for e in 1e-5 * np.eye(len(x))]
    np.testing.assert_allclose(problem[0](x)[1], numeric, rtol=1e-4, atol=1e-7)


def test_loadings_are_found_again_up_to_a_turn() -> None:
    logits = outputs(600, 6)[0]
    counts = labels(drawn(logits, ORDERED, 7), 6, 8)
    found = fit_loadings(softmax_probs(logits), counts)

    def covariance(loadings: Any) -> Any:
        centred = loadings - loadings.mean(axis=0)
        return centred @ centred.T

    np.testing.assert_allclose(covariance(found), covariance(ORDERED), atol=0.6)
    with pytest.raises(FitError, match="no case has two labels"):
        fit_loadings(softmax_probs(logits), np.minimum(counts, 1) * (counts.cumsum(axis=1) == counts))


@pytest.mark.slow
@pytest.mark.ci
def test_neighbours_are_chosen_where_there_are_some_and_a_dirichlet_stays_one() -> None:
    logits, features = outputs(300, 9)
    counts = labels(drawn(logits, ORDERED, 10), 4, 11)
    fit = calibrate(logits, features, counts, names(300), level="ordinal")
    choice = fit.report["refinement"]
    assert choice["neighbours"]
    assert fit.calibration.refinement.loadings is not None
    assert (choice["logistic_normal"] or np.inf) < choice["dirichlet"]
    assert not fit.calibration.has_constant_concentration
    new, new_features = outputs(400, 12)
    seen = labels(drawn(new, ORDERED, 13), 4, 14)
    served, plain = (
        made.apply(new, new_features)
        for made in (fit.calibration, calibrate(logits, features, counts, names(300), refined=False).calibration)
    )
    assert served.log_likelihood(seen).mean() > plain.log_likelihood(seen).mean() + 0.05

    gammas = np.random.default_rng(15).standard_gamma(3 * softmax_probs(logits)) + 1e-12
    dirichlet = labels(gammas / gammas.sum(axis=1, keepdims=True), 4, 16)
    kept = calibrate(logits, features, dirichlet, names(300), level="ordinal")
    assert kept.report["refinement"]["neighbours"] is False
    assert kept.calibration.refinement.loadings is None
    two = labels(softmax_probs(logits[:, :2] + np.random.default_rng(17).normal(size=(300, 2))), 4, 18)
    with pytest.raises(ValueError, match="unknown level 'grades'; there are nominal, ordinal"):
        calibrate(logits, features, counts, names(300), level="grades")  # type: ignore[arg-type]
    # of two classes none is nearer than another
    assert "neighbours" not in calibrate(logits[:, :2], features, two, names(300), level="ordinal").report["refinement"]


@pytest.mark.parametrize("per_case", [1, 2])
def test_grades_stay_grades_when_too_few_double_reads_teach_nothing_of_them(per_case: int) -> None:
    logits, features = outputs(40, 9)
    counts = labels(softmax_probs(logits), per_case, 10)
    for level in ("ordinal", "nominal"):
        report = calibrate(logits, features, counts, names(40), level=level).report
        assert "neighbours" not in report.get("refinement", {})
        assert fitted_level(report) == level
    without: FitDocument = {"n_fit": 8, "n_cv": 2}  # of before
    assert fitted_level(without) == "nominal"
    assert fitted_level({**without, "refinement": {"neighbours": False}}) == "ordinal"


def test_components_are_uncorrelated_and_blind_to_scale() -> None:
    rng = np.random.default_rng(17)
    features = np.column_stack([rng.normal(size=(300, 12)) @ rng.normal(size=(12, 12)), np.full(300, 7.0)])
    weights = principal_components(features)
    assert weights.shape == (13, 8)
    parts = (features - features.mean(axis=0)) @ weights
    np.testing.assert_allclose(parts.T @ parts / 300, np.eye(8), atol=1e-9)
    np.testing.assert_allclose(principal_components(features * 5) * 5, weights, atol=1e-9)
    assert principal_components(np.ones((20, 2))).shape == (2, 0)


def test_a_regression_of_pairs_finds_what_they_follow() -> None:
    rng = np.random.default_rng(18)
    inputs = rng.normal(size=(20_000, 3))
    truth = expit(inputs @ [1.0, -0.5, 0.0] - 0.7)
    weight, bias = fit_pair_head(inputs, (rng.random(20_000) < truth).astype(float), 1.0)
    np.testing.assert_allclose([*weight, bias], [1.0, -0.5, 0.0, -0.7], atol=0.07)


@pytest.mark.slow
@pytest.mark.ci
def test_a_pair_head_is_chosen_only_where_features_tell_what_probabilities_do_not() -> None:
    """Images of one kind are harder than the network knows, which no concentration can express."""

    def world(n: int, seed: int) -> tuple[Any, Any, Any]:
        logits, features = outputs(n, seed)
        hard = np.where(features[:, :1] > 0, 0.7, 0.0)
        return 2 * logits, features, labels((1 - hard) * softmax_probs(2 * logits) + hard / K, 2, seed + 1)

    logits, features, counts = world(400, 20)
    fit = calibrate(logits, features, counts, names(400))
    assert fit.report["refinement"]["pair_share"] > 0
    new, new_features, seen = world(1500, 22)
    without = replace(fit.calibration.refinement, pair_head=None, pair_summaries=None)
    bare = replace(fit.calibration, refinement=without).apply(new, new_features)
    served = fit.calibration.apply(new, new_features)
    loss, before = (disagreement_loss(seen, made.disagreement_probs).value for made in (served, bare))
    assert loss < before - 0.002
    assert served.log_likelihood(seen).mean() > bare.log_likelihood(seen).mean()
    shuffled = np.random.default_rng(24).permutation(features)
    blind = calibrate(logits, shuffled, counts, names(400))
    assert blind.report["refinement"]["pair_share"] == 0
    assert blind.calibration.refinement.pair_head is None


@pytest.mark.parametrize("mapped", [None, DisagreementMap(0.8, 1.1, -0.1)])
def test_disagreement_is_mixed_and_put_back_into_the_distribution(mapped: Any) -> None:
    made, logits, features = neighbourly(mapped=mapped)
    bare, head = neighbourly(pair_head=False)[0].apply(logits, features), made.refinement.pair_head
    assert head is not None
    assert made.refinement.pair_summaries is not None
    dpe = bare.disagreement_probs if mapped is None else mapped(bare.disagreement_probs)
    inputs = pair_inputs(dpe, made.refinement.pair_summaries(logits), features)
    wanted = 0.5 * dpe + 0.5 * expit(inputs @ head.weight + head.bias)
    served: Any = made.apply(logits, features)
    assert served.stated_disagreement is None
    np.testing.assert_allclose(served.disagreement_probs, np.minimum(wanted, 0.75), atol=1e-9)
    rebuilt = DirichletMixtureCpe(served.member_class_probs, served.member_log_concentration)
    np.testing.assert_array_equal(rebuilt.disagreement_probs, served.disagreement_probs)


@pytest.mark.parametrize("pair_head", [False, True])
def test_a_graph_gives_what_is_served(pair_head: bool) -> None:
    for made, logits, features in (neighbourly(pair_head), neighbourly(pair_head, DisagreementMap(0.8, 1.1, -0.1))):
        graph = Calibrated(made, K).eval()
        with torch.inference_mode():
            probs, differ = graph(*(torch.tensor(part, dtype=torch.float32) for part in (logits, features)))
        served = made.apply(logits, features)
        assert output_names(made) == ["class_probs", "disagreement_prob"]
        np.testing.assert_allclose(probs.numpy(), served.class_probs, atol=2e-5)
        np.testing.assert_allclose(differ.numpy(), served.disagreement_probs, atol=2e-5)


def test_documents_keep_everything_and_older_ones_are_as_they_were() -> None:
    made, logits, features = neighbourly()
    document = json.loads(json.dumps(made.to_dict()))
    assert document["version"] == 4
    np.testing.assert_array_equal(
        Calibration.from_dict(document).apply(logits, features).disagreement_probs,
        made.apply(logits, features).disagreement_probs,
    )
    older = replace(made, refinement=Refinement(disagreement_map=DisagreementMap(1.0, 1.0, 0.1))).to_dict()
    assert older["version"] == 3
    assert set(older["refinement"]) == {"summaries", "temperature_weight", "disagreement_map"}
    for change in ({"loadings": [[1.0]] * K}, {"pair_summaries": None}, {"loadings": [[None, 1.0]] * K}):
        with pytest.raises(ValueError, match="not a calibration document"):
            Calibration.from_dict(document | {"refinement": document["refinement"] | change})
    with pytest.raises(ValueError, match="makes its own members"):
        made.apply(np.stack([logits, logits]), np.stack([features, features]))


def test_other_annotators_move_the_level_of_disagreement_and_leave_the_pair_head_behind() -> None:
    made, logits, features = neighbourly()
    counts = labels(drawn(logits, 2 * ORDERED, 22), 2, 23)
    adapted = fit_adaptation(made, LabelledOutputs.of(logits, features, counts)).calibration
    assert adapted.refinement.pair_head is None
    assert adapted.refinement.loadings is made.refinement.loadings
    said = adapted.apply(logits, features).disagreement_probs.mean()
    assert said == pytest.approx(observed_disagreement(counts).mean(), abs=0.05)
