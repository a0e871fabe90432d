"""Second-order calibration: the pairs of labels that were seen, beside those that a predictive distribution expects."""

from typing import TypedDict

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax

from ml.distributions.families import PredictiveDistribution, members_of
from ml.metrics.cases import check_clusters, class_frequencies
from ml.util.arrays import FloatArray, IntArray, as_label_counts

#: Cells with two labels that a level set has at least, sets of one leading class at most (more find less: of 3,000
#: cells with twice the true concentration .23 with four, .67 with two), and simulations.
_CELLS, _SETS, _ROUNDS = 100, 2, 200
#: Patients below which a common bias counts as dependence: with two, a test of 5 % would find it in 13 to 17 %.
_PATIENTS = 5
#: Log concentrations above the second are drawn as points, below the first as certain classes.
_CLASS, _POINT = -300.0, np.log(1e8)


class SecondOrderError(TypedDict):
    """How far seen pairs of labels are from expected ones, in the level set in which they are farthest.

    ``largest`` is the largest total variation between the means of seen and of expected pairs, ``excess`` what exceeds
    its mean for labels that follow the predictions, ``p_value`` how often such labels have one as large.
    """

    largest: float
    excess: float
    p_value: float
    n_sets: int
    n_cells: int


def second_order_error(
    label_counts: npt.ArrayLike,
    distribution: PredictiveDistribution,
    *,
    cluster: npt.ArrayLike | None = None,
    seed: int = 0,
) -> SecondOrderError | None:
    """Compare the mean of E[q qᵀ] with the mean of label pairs, by leading class and disagreement.

    A level set has the cells of one leading class between two quantiles of the disagreement probability; classes with
    too few cells for one share theirs. If cells of a patient deviate together, simulated distances are widened by the
    root of the design effect.

    Args:
        label_counts: (N, K), of cells that calibrated nothing.
        distribution: of the N cells, before any label.
        cluster: (N,) patient of each case.
        seed: of the simulation.

    Returns:
        None if no level set has 100 cells with two labels.

    Source: Ahdritz, Gollakota, Gopalan, Peale, Wieder 2024 (higher-order calibration), with pairs of labels.
    """
    counts = as_label_counts(label_counts)
    names = check_clusters(cluster, len(counts))
    patient = np.arange(len(counts)) if names is None else np.unique(names, return_inverse=True)[1]
    leading, dpe = distribution.class_probs.argmax(axis=1), distribution.own_disagreement_probs
    paired = np.flatnonzero(counts.sum(axis=1) >= 2)
    sets = _level_sets(paired, leading, dpe)
    if not sets:
        return None
    means = [expected_pairs(distribution, rows) for rows in sets]
    deviations = class_frequencies(counts) - distribution.class_probs
    widening = np.array([_widening(deviations[rows], patient[rows]) for rows in sets])
    rng, totals = np.random.default_rng(seed), counts.sum(axis=1)

    def distances(labels: IntArray) -> FloatArray:
        return np.array([np.abs(mean_pairs(labels[r]) - m).sum() / 2 for r, m in zip(sets, means, strict=True)])

    largest = float(distances(counts).max())
    simulated = np.array(
        [(distances(simulated_counts(rng, distribution, totals)) * widening).max() for _ in range(_ROUNDS)]
    )
    return {
        "largest": largest,
        "excess": max(0.0, largest - float(simulated.mean())),
        "p_value": float(1 + (simulated >= largest).sum()) / (1 + _ROUNDS),
        "n_sets": len(sets),
        "n_cells": sum(map(len, sets)),
    }


def _level_sets(rows: npt.NDArray[np.intp], leading: IntArray, dpe: FloatArray) -> list[npt.NDArray[np.intp]]:
    rows = rows[np.argsort(dpe[rows], kind="stable")]
    numbers, sizes = np.unique(leading[rows], return_counts=True)
    group = np.where(np.isin(leading[rows], numbers[sizes >= _CELLS]), leading[rows], -1)
    members = [rows[group == number] for number in np.unique(group)]
    return [
        part
        for each in members
        for part in np.array_split(each, min(len(each) // _CELLS, _SETS) or 1)
        if len(part) >= _CELLS
    ]


def mean_pairs(counts: IntArray) -> FloatArray:
    """Mean (K, K) over cells of their ordered pairs of two labels."""
    n = counts.sum(axis=1)
    weighted = counts / (n * (n - 1))[:, None]
    return np.asarray(weighted.T @ counts - np.diag(weighted.sum(axis=0))) / len(counts)


def expected_pairs(distribution: PredictiveDistribution, rows: npt.NDArray[np.intp]) -> FloatArray:
    """Mean (K, K) over cells of E[q qᵀ] = Σ_s w_s (σ(a_s) f_s f_sᵀ + (1 − σ(a_s)) diag f_s)."""
    probs, a, log_weights = (each[:, rows] for each in members_of(distribution))
    apart = np.exp(log_weights) * expit(a)
    alike = np.einsum("sn,snk->k", np.exp(log_weights) - apart, probs)
    return np.asarray(np.einsum("sn,snk,snl->kl", apart, probs, probs, optimize=True) + np.diag(alike)) / len(rows)


def _widening(deviations: FloatArray, patient: npt.NDArray[np.intp]) -> float:
    """Root of the design effect, at least one: spread of the mean over patients for that over as many lone cells."""
    n_patients, n_cells = np.unique(patient).size, len(deviations)
    scale = 1.0
    # a bias that all patients share makes their cells no less independent; of few patients too little would be left
    if n_patients >= _PATIENTS:
        deviations = deviations - deviations.mean(axis=0)
        scale = n_patients / (n_patients - 1) * (n_cells - 1) / n_cells
    sums = np.zeros((patient.max() + 1, deviations.shape[1]))
    np.add.at(sums, patient, deviations)
    return max(1.0, float(np.sqrt(scale * np.square(sums).sum() / max(np.square(deviations).sum(), 1e-300))))


def simulated_counts(rng: np.random.Generator, distribution: PredictiveDistribution, totals: IntArray) -> IntArray:
    """Draw label counts (N, K) of n labels per cell, each cell's from one q."""
    probs, a, log_weights = members_of(distribution)
    steps, cell = np.cumsum(np.exp(log_weights), axis=0), np.arange(len(totals))
    member = np.minimum((rng.random(len(totals)) * steps[-1] > steps).sum(axis=0), len(steps) - 1)
    mean, a = probs[member, cell], a[member, cell]
    with np.errstate(divide="ignore"):
        shapes = np.exp(np.clip(a, _CLASS, _POINT))[:, None] * mean
        # the logarithm of a gamma draw, which no small shape takes to zero
        logs = np.log(rng.standard_gamma(1 + shapes)) - rng.standard_exponential(shapes.shape) / shapes
    return rng.multinomial(totals, softmax(logs, axis=1))
