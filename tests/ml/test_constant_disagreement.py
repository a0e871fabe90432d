"""Laws of a constant that is served in place of a disagreement probability that was found worse."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.calibration.calibrators import Calibration
from ml.calibration.concentration import ConcentrationHead
from ml.calibration.scaling import Scaling
from ml.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
from ml.distributions.decisions import further_labels_expected
from ml.training.calibrate import held_out_metrics, with_judged_disagreement
from ml.training.run_folder import CachedOutputs

P = 0.17


def families() -> list[Any]:
    rng = np.random.default_rng(0)
    f, members = rng.dirichlet(np.ones(3), 6), rng.dirichlet(np.ones(3), (4, 6))
    a, of_members = rng.normal(size=6), rng.normal(size=(4, 6))
    return [PointCpe(f), DirichletCpe(f, a), EnsembleCpe(members), DirichletMixtureCpe(members, of_members)]


@pytest.mark.parametrize("own", families(), ids=lambda d: type(d).__name__)
def test_only_what_is_said_before_labels_is_the_constant(own: Any) -> None:
    """Class probabilities, likelihood, posterior and the worth of labels are the distribution's own."""
    constant = replace(own, stated_disagreement=np.full(6, P))
    counts = np.random.default_rng(1).integers(0, 3, (6, 3))
    counts[:2] = 0
    np.testing.assert_array_equal(constant.disagreement_probs, np.full(6, P))
    np.testing.assert_array_equal(constant.class_probs, own.class_probs)
    np.testing.assert_array_equal(constant.log_likelihood(counts), own.log_likelihood(counts))
    np.testing.assert_array_equal(further_labels_expected(constant, 0.01), further_labels_expected(own, 0.01))
    after, own_after = constant.posterior(counts), own.posterior(counts)
    np.testing.assert_array_equal(after.class_probs, own_after.class_probs)
    np.testing.assert_array_equal(after.disagreement_probs[:2], [P, P])
    np.testing.assert_array_equal(after.disagreement_probs[2:], own_after.disagreement_probs[2:])
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
    assert (kept, said) == (calibration, {"verdict": "worse", "constant": None})
