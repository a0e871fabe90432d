"""Laws of a calibration that is adapted to other annotators by few double reads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from ml.calibration import domain_adaptation
from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import IDENTITY, DisagreementMap, PiecewiseMap
from ml.calibration.domain_adaptation import Adaptation, fit_adaptation, recalibrate_for_annotators
from ml.calibration.joint_fit import LabelledOutputs
from ml.calibration.optimise import FitError
from ml.calibration.scaling import Scaling
from ml.distributions.families import DirichletCpe
from ml.metrics import disagreement_loss
from ml.metrics.cases import observed_disagreement
from ml.metrics.losses import judge_disagreement


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
    with pytest.raises(FitError, match="20 cases"):
        relearned(shipped(), logits[:19], features[:19], counts[:19])
    with pytest.raises(FitError, match="head"):
        relearned(replace(shipped(), concentration=None), logits, features, counts)
    with pytest.raises(FitError, match="there are 19"):
        relearned(shipped(), logits[:19], features[:19], counts[:19])
    with pytest.raises(FitError, match="two patients"):
        recalibrate_for_annotators(shipped(), logits, features, counts, ["one"] * 60)


def relearned(calibration: Calibration, logits: Any, features: Any, counts: Any, **fields: Any) -> Adaptation:
    return recalibrate_for_annotators(
        calibration, logits, features, counts, [str(row) for row in range(len(counts))], **fields
    )


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
    plain, again = (
        adapted(parent, logits, features, counts),
        Calibration.from_dict(found.calibration.to_dict()),
    )
    for made in (plain, again):
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
