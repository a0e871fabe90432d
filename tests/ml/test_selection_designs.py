"""Designs of second reads: budgets that are kept, what they catch, and the variance that they promise."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml.metrics import epistemic_loss
from ml.metrics.cases import epistemic_terms, observed_disagreement, select_sample
from ml.metrics.selection import (
    disagreements_caught,
    graded_probabilities,
    graded_scale,
    interval_length,
    threshold_probabilities,
)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=80), st.floats(0.01, 1), st.floats(0.001, 1))
def test_both_designs_spend_the_budget(scores: list[float], share: float, floor: float) -> None:
    dpe = np.array(scores)
    scale = graded_scale(dpe, share, floor)
    pi = graded_probabilities(dpe, scale, floor)
    most = np.where(dpe > 1e-12, 1.0, floor).mean()
    assert pi.mean() == pytest.approx(np.clip(share, floor, max(most, floor)), abs=1e-6)
    assert ((pi >= floor) & (pi <= 1)).all()
    assert (np.diff(pi[np.argsort(dpe)]) >= -1e-12).all()
    certain = threshold_probabilities(dpe, share, floor)
    assert certain.mean() == pytest.approx(max(share, floor), abs=1e-9)
    assert (np.diff(certain[np.argsort(dpe)]) >= -1e-12).all()


def test_the_scale_grows_with_the_budget_and_ends_where_everything_is_certain() -> None:
    dpe = np.random.default_rng(0).random(500)
    scales = [graded_scale(dpe, share, 0.05) for share in (0.01, 0.1, 0.2, 0.5, 0.9, 1.0)]
    assert scales == sorted(scales)
    assert scales[0] == 0
    assert graded_probabilities(dpe, scales[-1], 0.05).min() == pytest.approx(1, abs=1e-9)
    assert graded_scale(np.zeros(5), 0.5, 0.1) == 0
    assert graded_scale(np.zeros(0), 0.5, 0.1) == 0


@pytest.mark.slow
def test_the_promised_length_is_what_the_design_gives() -> None:
    """Cases read twice by one design foretell the spread of an estimate by another, with patients."""
    rng = np.random.default_rng(3)
    n, runs = 1_000, 400
    cluster = np.arange(n) // 5

    def draw() -> tuple[np.ndarray, np.ndarray]:
        shift = rng.normal(0, 0.5, (n // 5, 1))[cluster]
        p = 1 / (1 + np.exp(-(shift + rng.normal(0, 1.5, (n, 1)))))
        f = np.column_stack([p, 1 - p])
        bent = f**1.5 / (f**1.5).sum(1, keepdims=True)
        return rng.multinomial(2, f), bent

    lengths, values, caught = {"all": [], "graded": []}, {"all": [], "graded": []}, {"all": [], "graded": []}
    for _ in range(runs):
        y, f = draw()
        dpe = 1 - (f**2).sum(1)
        designs = {
            "all": threshold_probabilities(dpe, 0.2, 0.1),
            "graded": graded_probabilities(dpe, graded_scale(dpe, 0.2, 0.1), 0.1),
        }
        u = rng.random(n)
        for name, other in (("all", "graded"), ("graded", "all")):
            pi = designs[name]
            rows = np.flatnonzero(u < pi)
            values[name].append(epistemic_loss(y[rows], f[rows], sample_weight=1 / pi[rows]).value)
            sample = select_sample(u < pi, 1 / pi, cluster)
            terms, observed = epistemic_terms(y, f)[:, 1], observed_disagreement(y)
            kept = designs[other][sample.rows]
            lengths[other].append(interval_length(kept, terms[sample.rows], sample, n))
            caught[other].append(
                disagreements_caught(kept, observed[sample.rows], sample) - (designs[other] @ observed) / observed.sum()
            )
    for name in lengths:
        assert np.mean(lengths[name]) == pytest.approx(2 * 1.96 * np.std(values[name]), rel=0.1)
        assert abs(np.mean(caught[name])) < 0.01
    assert np.std(values["graded"]) < np.std(values["all"])
