"""Laws of a calibration that is adapted to other annotators by few double reads."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logit

from ml.calibration import new_crowd
from ml.calibration.calibration import Calibration, Refinement
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.disagreement_map import DisagreementMap, PiecewiseMap
from ml.calibration.new_crowd import adapt
from ml.calibration.optimise import FitError
from ml.calibration.scaling import Scaling
from ml.distributions.families import DirichletCpe
from ml.metrics import disagreement_loss
from ml.metrics.histograms import observed_disagreement


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


@pytest.mark.parametrize(
    "mapped",
    [None, DisagreementMap(0.7, 1.2, -0.3), PiecewiseMap(np.array([-2.0, 0.0]), np.array([0.5, 1.0, 1.5]), -1.5)],
)
def test_a_map_followed_by_slope_and_level_is_one_map(mapped: Any) -> None:
    both = new_crowd._then(mapped or new_crowd.IDENTITY, 0.6, -0.4)
    dpe = np.linspace(0.01, 0.7, 50)
    first = dpe if mapped is None else mapped(dpe)
    np.testing.assert_allclose(both(dpe), expit(0.6 * logit(first) - 0.4), rtol=1e-9)


def test_endless_penalties_leave_what_was_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, features = cases(60, 0)
    for name in ("PULL_TEMPERATURE", "PULL_SLOPE", "PULL_LEVEL"):
        monkeypatch.setattr(new_crowd, name, 1e9)
    other = replace(shipped(), scaling=Scaling("temperature", 0.9))
    before = shipped().apply(logits, features)
    after = adapt(shipped(), logits, features, labels(other, logits, features, 1)).apply(logits, features)
    np.testing.assert_allclose(after.class_probs, before.class_probs, atol=1e-5)
    np.testing.assert_allclose(after.disagreement_probs, before.disagreement_probs, atol=1e-5)


def test_with_many_labels_another_crowd_is_found() -> None:
    """One with another temperature and another map: what is said afterwards is what that crowd does."""
    logits, features = cases(6000, 2)
    true = replace(shipped(DisagreementMap(0.6, 0.6, -1.0)), scaling=Scaling("temperature", 0.6))
    after = adapt(shipped(), logits, features, labels(true, logits, features, 3)).apply(logits, features)
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
        after = adapt(shipped(), logits[some], features[some], pairs).apply(logits, features)
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
        adapt(shipped(), logits[:19], features[:19], counts[:19])
    with pytest.raises(FitError, match="head"):
        adapt(replace(shipped(), concentration=None), logits, features, counts)
