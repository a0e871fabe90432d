"""Means of losses with the help of what is known of all cases: brute force, invariance, bias and gain."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ml.metrics import evaluate, paired_changes
from ml.metrics.cases import select_sample
from ml.metrics.jackknife import mean_replicates
from ml.metrics.model_assisted import cross_fitted, model_assisted_means


def world(seed: int, n: int = 120, patients: int = 30) -> dict[str, Any]:
    """Losses that features tell something about, known where a coin of known probability fell."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)) + 2
    loss = features @ [0.5, -0.2, 0.1] + rng.normal(0, 1, n)
    pi = np.where(features[:, 0] > 3, 1.0, 0.25)
    weight = np.where(rng.random(n) < pi, 1 / pi, 0.0)
    return {"loss": loss, "weight": weight, "features": features, "cluster": rng.integers(0, patients, n), "pi": pi}


def population(w: dict[str, Any], *, clustered: bool = True) -> Any:
    return select_sample(np.ones(len(w["loss"]), dtype=bool), None, w["cluster"] if clustered else None)


def found(w: dict[str, Any], *, clustered: bool = True) -> Any:
    people = population(w, clustered=clustered)
    losses = [(w["loss"][people.rows], None)]
    return model_assisted_means(losses, w["weight"][people.rows], w["features"][people.rows], people)[0]


@pytest.mark.parametrize("clustered", [False, True])
def test_predictions_come_from_fits_without_the_patient(clustered: bool) -> None:
    w = world(0)
    people = population(w, clustered=clustered)
    loss, weight, features = (w[name][people.rows] for name in ("loss", "weight", "features"))
    group = np.arange(len(loss)) if people.cluster is None else people.cluster
    precision = np.maximum(weight * (weight - 1), 0)
    scaled = (features - features.mean(0)) / features.std(0)
    design = np.column_stack([np.ones(len(loss)), scaled])
    mean = precision[precision > 0].mean()
    expected = np.empty(len(loss))
    for own in np.unique(group):
        others = group != own
        # least squares with one more row a slope, of one case's weight, that pulls it to zero
        root = np.sqrt(precision[others])
        pull = np.sqrt(mean) * np.eye(4)[1:]
        fit = np.linalg.lstsq(
            np.vstack([root[:, None] * design[others], pull]), np.append(root * loss[others], [0] * 3), rcond=None
        )[0]
        expected[group == own] = design[group == own] @ fit
    np.testing.assert_allclose(cross_fitted(loss, precision, features, people), expected, rtol=1e-4)


@pytest.mark.parametrize("clustered", [False, True])
def test_names_and_order_of_patients_and_units_of_features_change_nothing(clustered: bool) -> None:
    w = world(1)
    expected = found(w, clustered=clustered)
    order = np.random.default_rng(2).permutation(len(w["loss"]))
    other = {name: values[order] for name, values in w.items()}
    other["cluster"] = np.array([f"patient {(7 * name) % 30}" for name in other["cluster"]])
    other["features"] = other["features"] * [1000, 0.01, -1] + [5, 0, 3]
    again = found(other, clustered=clustered)
    for name in ("value", "se", "low", "high"):
        assert getattr(again, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_of_nobody_nothing_is_known() -> None:
    nobody = world(0, n=0)
    assert np.isnan(found(nobody).value)
    empty = np.zeros(0)
    assert cross_fitted(empty, empty, np.zeros((0, 3)), population(nobody)).shape == (0,)


def test_where_everybody_is_known_it_is_the_mean() -> None:
    w = world(3)
    w["weight"] = np.ones(len(w["loss"]))
    estimate, plain = found(w), mean_replicates(w["loss"][population(w).rows], population(w))
    assert estimate.value == pytest.approx(w["loss"].mean(), abs=1e-14)
    assert estimate.se == pytest.approx(plain.standard_error(), rel=1e-12)


def test_useless_features_cost_nothing_and_good_ones_help() -> None:
    """Spread of the estimates over coins and noise, and the error that they claim: 300 draws of one population."""
    gains = []
    for useful in (False, True):
        plain, assisted, claimed = [], [], []
        for seed in range(300):
            w = world(seed, n=400, patients=100)
            if not useful:
                w["features"] = np.random.default_rng(seed + 10_000).normal(size=(400, 3))
            known = replace(population(w), weight=w["weight"][population(w).rows])
            plain.append(mean_replicates(w["loss"][known.rows], known).value)
            estimate = found(w)
            assisted.append(estimate.value)
            claimed.append(estimate.se)
        truth = np.mean([world(seed, n=400, patients=100)["loss"].mean() for seed in range(300)])
        assert abs(np.mean(assisted) - truth) < 3 * np.std(assisted) / np.sqrt(300)
        gains.append(np.var(assisted) / np.var(plain))
    assert gains[0] < 1.1
    assert gains[1] < 0.95


def test_the_change_of_el_is_what_first_labels_say_of_l() -> None:
    """L and EL change by the same, and L is known of everybody: nothing is left for second labels to estimate."""
    rng = np.random.default_rng(6)
    n = 600
    q = rng.dirichlet(np.ones(3), n)
    twice = rng.random(n) < 0.2
    y = np.array([rng.multinomial(1 + both, row) for both, row in zip(twice, q, strict=True)])
    sides = [(f, 1 - (f**2).sum(1)) for f in (rng.dirichlet(np.ones(3), n), 0.5 * q + 1 / 6)]
    changes = paired_changes(y, sides[0], sides[1], sample_weight=(None, np.where(twice, 5.0, 1.0)))
    assert changes["EL"].model_assisted.value == pytest.approx(changes["L"].value, abs=0.01)
    assert changes["EL"].model_assisted.se == pytest.approx(changes["L"].se, rel=0.05)
    assert changes["EL"].se > 1.5 * changes["L"].se


@pytest.mark.parametrize("clustered", [False, True])
def test_cases_without_any_label_are_evaluated_as_that(clustered: bool) -> None:
    """A service that predicts before anybody reads has weights, and nothing to weigh."""
    n = 4
    cluster = np.arange(n) // 2 if clustered else None
    found = evaluate(np.zeros((n, 3), dtype=int), np.full((n, 3), 1 / 3), sample_weight=np.ones(n), cluster=cluster)
    assert found.n_labels == 0
    assert np.isnan(found.metrics["L"].value)
