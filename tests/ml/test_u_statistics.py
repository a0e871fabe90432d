"""U-statistics of histograms, and the Horvitz–Thompson forms beside the Hájek ones."""

import itertools

import numpy as np
import pytest

from ml.distributions.families import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe
from ml.metrics import disagreement_calibration_loss, disagreement_loss, evaluate
from ml.metrics.cases import observed_disagreement
from ml.metrics.u_statistics import (
    disagreement_kernel,
    expected_statistic,
    statistic_calibration_loss,
    statistic_loss,
    u_statistic,
)
from tests.ml.test_metrics import Counts, draw


def at_least_two_of_the_last(counts: Counts) -> float:
    return float(counts[-1] >= 2)


@pytest.mark.parametrize("m", [1, 2, 3])
def test_a_u_statistic_is_the_mean_over_all_choices_of_labels(m: int) -> None:
    y, _ = draw(0, n=40, low=0)
    found = u_statistic(y, at_least_two_of_the_last, m)
    for row, value in zip(y, found, strict=True):
        labels = np.repeat(np.arange(3), row)
        if len(labels) < m:
            assert np.isnan(value)
            continue
        choices = [np.bincount(c, minlength=3) for c in itertools.combinations(labels, m)]
        assert value == pytest.approx(np.mean([at_least_two_of_the_last(c) for c in choices]), abs=1e-14)


def test_disagreement_is_the_u_statistic_of_its_kernel() -> None:
    y, f = draw(1)
    rng = np.random.default_rng(1)
    phi = rng.uniform(0, 1, len(y))
    two = y.sum(1) >= 2
    np.testing.assert_allclose(u_statistic(y, disagreement_kernel, 2)[two], observed_disagreement(y[two]), atol=1e-15)
    pairs = ((statistic_loss, disagreement_loss), (statistic_calibration_loss, disagreement_calibration_loss))
    for general, special in pairs:
        found, expected = general(y, phi, disagreement_kernel, 2), special(y, phi)
        assert (found.value, found.se, found.dropped) == pytest.approx((expected.value, expected.se, expected.dropped))
    assert len(f) == len(y)


def test_expected_statistics_of_every_distribution() -> None:
    rng = np.random.default_rng(2)
    members, a = rng.dirichlet(np.ones(4), (3, 5)), rng.normal(0, 2, (3, 5))
    for distribution in (
        PointCpe(members[0]),
        DirichletCpe(members[0], a[0]),
        EnsembleCpe(members),
        DirichletMixtureCpe(members, a),
    ):
        dpe = expected_statistic(distribution, disagreement_kernel, 2)
        np.testing.assert_allclose(dpe, distribution.disagreement_probs, atol=1e-14)
        np.testing.assert_allclose(expected_statistic(distribution, lambda c: 1.0, 3), 1, atol=1e-13)


def test_a_statistic_of_no_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="m must"):
        u_statistic([[1, 1]], disagreement_kernel, 0)


def test_horvitz_thompson_equals_hajek_where_everybody_is_labelled_alike() -> None:
    y, f = draw(3, low=2)
    ones = np.ones(len(y))
    for row in evaluate(y, f, sample_weight=ones).to_dict()["metrics"].values():
        if row["horvitz_thompson"] is not None:
            assert row["horvitz_thompson"] == pytest.approx(row["value"], abs=1e-13)
    assert evaluate(y, f).to_dict()["metrics"]["L"]["horvitz_thompson"] is None


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
