"""The paired change of proper scores: equal to the difference of the metrics, sharper than their errors suggest."""

import numpy as np
import pytest

from ml.metrics import evaluate
from ml.metrics.paired_difference import paired_change, paired_changes


def problem(n: int = 300) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    truth = rng.dirichlet(np.ones(3), n)
    counts = np.array([rng.multinomial(k, p) for k, p in zip(rng.integers(0, 4, n), truth, strict=True)])
    worse = 0.5 * truth + 0.5 * rng.dirichlet(np.ones(3), n)
    return counts, truth, worse, rng.uniform(0.5, 2, n), np.repeat(np.arange(n // 3), 3)


def gini(probs: np.ndarray) -> np.ndarray:
    return np.asarray(1 - np.square(probs).sum(axis=1))


def test_it_is_the_difference_of_the_metrics() -> None:
    counts, truth, worse, weight, cluster = problem()
    change = paired_change(counts, (worse, gini(worse)), (truth, gini(truth)), sample_weight=weight, cluster=cluster)
    documents = [
        evaluate(counts, probs, gini(probs), sample_weight=weight, cluster=cluster).metrics for probs in (worse, truth)
    ]
    for name, estimate in (("L", change.loss), ("L_D", change.disagreement_loss)):
        assert estimate.value == pytest.approx(documents[1][name].value - documents[0][name].value, abs=1e-12)
    assert change.loss.se is not None
    assert change.loss.se < documents[0]["L"].se
    assert change.loss.high is not None
    assert change.loss.high < 0


@pytest.mark.parametrize("by_patient", [False, True])
def test_each_change_is_the_difference_of_two_evaluations_and_of_their_replicates(by_patient: bool) -> None:
    counts, truth, worse, weight, patient = problem(90)
    cluster = patient if by_patient else None
    both = (worse, gini(worse)), (truth, gini(truth))

    def values(rows: np.ndarray) -> dict[str, float]:
        documents = [
            evaluate(
                counts[rows],
                probs[rows],
                dpe[rows],
                n_bins=2,  # which all have pairs, whoever is left out
                sample_weight=weight[rows],
                cluster=None if cluster is None else cluster[rows],
            ).metrics
            for probs, dpe in both
        ]
        return {name: documents[1][name].value - documents[0][name].value for name in changes}

    changes = paired_changes(counts, *both, n_bins=2, sample_weight=weight, cluster=cluster)
    whole = values(np.arange(90))
    units = patient if by_patient else np.arange(90)
    for name, estimate in changes.items():
        assert estimate.value == pytest.approx(whole[name], abs=1e-12), name
    needed = {name: 2 if name in {"EL", "L_D", "CL_D"} else 1 for name in changes}
    without = [values(np.flatnonzero(units != unit)) for unit in np.unique(units)]
    for name, estimate in changes.items():
        used = [bool((counts[units == unit].sum(axis=1) >= needed[name]).any()) for unit in np.unique(units)]
        left = np.array([row[name] for row, kept in zip(without, used, strict=True) if kept])
        jackknife = np.sqrt((left.size - 1) / left.size * ((left - left.mean()) ** 2).sum())
        assert estimate.se == pytest.approx(jackknife, rel=1e-9), name


def test_no_change_is_exactly_nothing() -> None:
    counts, truth, _, _, cluster = problem()
    change = paired_change(counts, (truth, gini(truth)), (truth, gini(truth)), cluster=cluster)
    for estimate in (change.loss, change.disagreement_loss):
        assert (estimate.value, estimate.high) == (0.0, 0.0)


def test_without_two_labels_of_a_case_the_change_of_disagreement_cannot_be_told() -> None:
    counts, probs = np.array([[1, 0], [0, 1]]), np.full((2, 2), 0.5)
    change = paired_change(counts, (probs, gini(probs)), (probs, gini(probs)))
    assert change.disagreement_loss.to_dict()["value"] is None
    assert change.disagreement_loss.to_dict()["high"] is None


def test_the_chance_of_labels_is_how_much_changes_vary_when_the_first_prediction_is_right() -> None:
    rng = np.random.default_rng(5)
    f = rng.dirichlet(np.ones(3), 150)
    g, weight = 0.7 * f + 0.3 * rng.dirichlet(np.ones(3), 150), rng.uniform(0.5, 4, 150)
    before, after = (f, gini(f)), (g, gini(g))
    draws = [paired_change(rng.multinomial(2, f), before, after, sample_weight=weight) for _ in range(600)]
    values = np.array([[change.loss.value, change.disagreement_loss.value] for change in draws])
    np.testing.assert_allclose(draws[0].chance, values.std(axis=0, ddof=1), rtol=0.1)
    once = paired_change(np.eye(3, dtype=int)[rng.integers(0, 3, 150)], before, after, sample_weight=weight)
    assert once.chance[1] == 0  # nobody could disagree
    assert once.chance[0] == pytest.approx(draws[0].chance[0] * np.sqrt(2), rel=1e-12)
