"""Worlds of a laboratory's first week: few cases, two labels, rare disagreement.

Experts are split on twice as many cases as two of them disagree on, and agree on all others. The network names
another class than they do in 2 % of the cases. Under triage the first label of every case is used where one label is
enough, and a fifth of the cases has a second.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from ml.charts.rows import CoverageRow
from ml.distributions.families import gini
from ml.metrics import disagreement_loss, epistemic_loss, evaluate
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.reproduce.scoring import markdown_table
from ml.util.arrays import FloatArray, IntArray

#: Cases, cases under triage, and rates of disagreement.
SIZES, TRIAGE_SIZES, RATES = (50, 100, 200, 1_000), (100, 200, 1_000), (0.01, 0.05)
#: Coverage that is wanted, and misses on the flattering side.
GOAL, MOST_FLATTERING = (0.93, 0.987), 0.04
GROSS_ERRORS, READ_TWICE, AUDIT_RATE, K = 0.02, 0.2, 0.1, 3
ASSISTED = ", model-assisted"


@dataclass(frozen=True)
class SmallSample:
    """Cases of a world."""

    true_probs: FloatArray  # (N, K) shares of experts
    probs: FloatArray  # (N, K) predicted
    dpe: FloatArray  # (N,) predicted
    counts: IntArray  # (N, K) of labels
    weights2: FloatArray | None  # (N,) inverse probabilities of a second label


def draw(n_cases: int, rate: float, rng: np.random.Generator, *, triage: bool = False) -> SmallSample:
    """Draw cases of which two experts disagree at a rate."""
    of_class = np.eye(K)
    majority, is_split, is_wrong = (
        rng.integers(0, K, n_cases),
        rng.random(n_cases) < 2 * rate,
        rng.random(n_cases) < GROSS_ERRORS,
    )
    other = (majority + rng.integers(1, K, n_cases)) % K
    q = np.where(is_split[:, None], (of_class[majority] + of_class[other]) / 2, of_class[majority])
    named = np.where(is_wrong, (majority + rng.integers(1, K, n_cases)) % K, majority)
    largest = expit(rng.normal(3 - 1.5 * is_split, 1))[:, None]
    probs = largest * of_class[named] + (1 - largest) * (1 - of_class[named]) / (K - 1)
    dpe = gini(probs) / 2
    if not triage:
        return SmallSample(q, probs, dpe, rng.multinomial(2, q).astype(np.int64), None)
    threshold = np.quantile(dpe, 1 - (READ_TWICE - AUDIT_RATE) / (1 - AUDIT_RATE))
    pi = np.where(dpe > threshold, 1.0, AUDIT_RATE)
    twice = rng.random(n_cases) < pi
    return SmallSample(q, probs, dpe, rng.multinomial(1 + twice, q).astype(np.int64), np.where(twice, 1 / pi, 1.0))


def estimate(sample: SmallSample) -> Mapping[str, Estimate | ModelAssisted]:
    """EL and L_φ of a sample; under triage with and without model assistance."""
    counts, weights = sample.counts, sample.weights2
    if weights is None:
        return {"EL": epistemic_loss(counts, sample.probs), "L_φ": disagreement_loss(counts, sample.dpe)}
    metrics = evaluate(counts, sample.probs, sample.dpe, sample_weight=(None, weights)).metrics
    named = {"EL": metrics["EL"], "L_φ": metrics["L_D"]}
    assisted = {name + ASSISTED: row.model_assisted for name, row in named.items() if row.model_assisted}
    return {**named, **assisted}


def truths(large: SmallSample) -> dict[str, float]:
    """True EL and L_φ."""
    differ = gini(large.true_probs)
    loss = (differ - large.dpe) ** 2 + differ * (1 - differ)
    aims = {"EL": float(((large.true_probs - large.probs) ** 2).sum(axis=1).mean()), "L_φ": float(loss.mean())}
    return aims | {name + ASSISTED: value for name, value in aims.items()}


def panel_name(rate: float, *, triage: bool) -> str:
    """Name of a world's panel."""
    return f"{rate:.0%} disagree" + (", a fifth read twice" if triage else "")


def goals_table(rows: Sequence[CoverageRow]) -> str:
    """Which rows miss the goals of small samples."""
    low, high = GOAL
    missed = [row for row in rows if not low <= row.coverage <= high or row.above > MOST_FLATTERING]
    sentence = (
        f"Goal of small samples: coverage {low:.1%} to {high:.1%}, truth above at most {MOST_FLATTERING:.0%}; "
        f"{len(missed)} of {len(rows)} rows miss it."
    )
    lines = [
        [row.panel, row.estimator, f"{row.n_cases:,}", f"{row.coverage:.3f}", f"{row.above:.3f}"] for row in missed
    ]
    return sentence + (
        "\n\n" + markdown_table("missed | estimator | cases | coverage | truth above", lines) if lines else ""
    )
