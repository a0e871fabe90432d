"""Do the estimators hit what they aim at, and do their intervals cover it? A simulation with known truth.

Cases have two, three or five labels. Predictions are overconfident and noisy, so that no loss is zero. In the
clustered half of the simulation cases come from patients who share an error, and intervals are by patient.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.agreement.coefficients import krippendorff_alpha
from ml.arrays import FloatArray, IntArray
from ml.charts.results import coverage_chart
from ml.charts.rows import CoverageRow
from ml.distributions.families import DirichletCpe, softmax_probs
from ml.metrics import (
    calibration_loss,
    disagreement_calibration_loss,
    disagreement_loss,
    dispersion_loss,
    epistemic_loss,
    expected_squared_loss,
)
from ml.metrics.jackknife import Estimate
from ml.metrics.known_truth import exact_metrics
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss, posterior_gain
from ml.metrics.triage_curves import net_benefit, triage_recall
from ml.reproduce.setting import Reproduction, Setting

K, N_BINS = 3, 10
SIZES = (100, 1_000)
RUNS, QUICK_RUNS = 1_000, 40
LARGE, QUICK_LARGE = 4_000_000, 40_000
CASES_PER_PATIENT = 10
CAPACITY, THRESHOLD = 0.3, 0.2


@dataclass(frozen=True)
class Sample:
    """Simulated cases: truth (N, K), predictions, labels and patients."""

    true_probs: FloatArray
    prior: DirichletCpe
    counts: IntArray
    patients: npt.NDArray[np.int64] | None

    @property
    def probs(self) -> FloatArray:
        """Predicted class probabilities (N, K)."""
        return self.prior.class_probs

    @property
    def dpe(self) -> FloatArray:
        """Predicted disagreement probabilities (N,)."""
        return self.prior.disagreement_probs


def draw(n_cases: int, rng: np.random.Generator, *, clustered: bool) -> Sample:
    """Draw cases; in the clustered form ten of each patient, whose true class probabilities shift together."""
    seen = rng.normal(0, 1.5, (n_cases, K))
    patients = np.arange(n_cases) // CASES_PER_PATIENT if clustered else None
    shift = rng.normal(0, 0.8, (n_cases, K))
    if patients is not None:
        shift = 0.5 * shift + rng.normal(0, 0.7, (patients[-1] + 1, K))[patients]
    q = softmax_probs(seen + shift)
    labels = rng.choice([2, 3, 5], n_cases)
    counts = np.asarray(rng.multinomial(labels, q), dtype=np.int64)
    return Sample(q, DirichletCpe(softmax_probs(1.4 * seen), rng.normal(0.8, 0.3, n_cases)), counts, patients)


Estimator = Callable[[Sample], Estimate]
ESTIMATORS: dict[str, Estimator] = {
    "L": lambda s: expected_squared_loss(s.counts, s.probs, cluster=s.patients),
    "EL": lambda s: epistemic_loss(s.counts, s.probs, cluster=s.patients),
    "CL": lambda s: calibration_loss(s.counts, s.probs, n_bins=N_BINS, cluster=s.patients),
    "DL": lambda s: dispersion_loss(s.counts, s.probs, n_bins=N_BINS, cluster=s.patients),
    "L_φ": lambda s: disagreement_loss(s.counts, s.dpe, cluster=s.patients),
    "CL_φ": lambda s: disagreement_calibration_loss(s.counts, s.dpe, n_bins=N_BINS, cluster=s.patients),
    "gain EL − EL′": lambda s: posterior_gain(s.counts, s.prior, cluster=s.patients),
    "EL′": lambda s: posterior_epistemic_loss(s.counts, s.prior, cluster=s.patients),
    "Krippendorff α": lambda s: krippendorff_alpha(s.counts, cluster=s.patients),
    "triage recall": lambda s: triage_recall(s.counts, s.dpe, [CAPACITY], cluster=s.patients)[0],
    "net benefit": lambda s: net_benefit(s.counts, s.dpe, CAPACITY, THRESHOLD, cluster=s.patients),
}


def truths(large: Sample) -> dict[str, float]:
    """What each estimator aims at, from many cases and their known probabilities."""
    exact = exact_metrics(large.true_probs, large.probs, large.dpe, n_bins=N_BINS)
    aims = {name: exact[name].value for name in ("L", "EL", "CL")}
    aims |= {"DL": aims["EL"] - aims["CL"], "L_φ": exact["L_D"].value, "CL_φ": exact["CL_D"].value}
    aims["EL′"] = exact_posterior_epistemic_loss(large.counts, large.true_probs, large.prior).value
    aims["gain EL − EL′"] = aims["EL"] - aims["EL′"]
    for name in ("Krippendorff α", "triage recall", "net benefit"):
        aims[name] = ESTIMATORS[name](large).value
    return aims


def run(seed: int = 0, *, quick: bool = False, observer: Any = lambda what, done, total: None) -> list[CoverageRow]:
    """Simulate every estimator at every size, without and with patients."""
    runs = QUICK_RUNS if quick else RUNS
    rows = []
    for clustered in (False, True):
        rng = np.random.default_rng([seed, clustered])
        aims = truths(draw(QUICK_LARGE if quick else LARGE, rng, clustered=clustered))
        for n_cases in SIZES:
            values: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
            hits = dict.fromkeys(ESTIMATORS, 0)
            for done in range(runs):
                sample = draw(n_cases, rng, clustered=clustered)
                for name, estimator in ESTIMATORS.items():
                    estimate = estimator(sample)
                    values[name].append(estimate.value)
                    if estimate.low is not None and estimate.high is not None:
                        hits[name] += estimate.low <= aims[name] <= estimate.high
                observer(f"N = {n_cases}{', by patient' if clustered else ''}", done + 1, runs)
            for name in ESTIMATORS:
                bias = float(np.mean(values[name]) - aims[name])
                error = float(np.std(values[name], ddof=1) / np.sqrt(runs))
                rows.append(CoverageRow(name, n_cases, clustered, aims[name], bias, error, hits[name] / runs, runs))
    return rows


def reproduce(setting: Setting) -> Reproduction:
    """Table and figure of bias and coverage."""
    rows = run(setting.seeds[0], quick=setting.quick, observer=setting.observer)
    lines = ["| estimator | cases | by patient | truth | bias (in its own error) | coverage |", "|---" * 6 + "|"]
    for row in rows:
        bias = f"{row.bias:+.5f} ({row.bias / row.bias_se:+.1f})"
        patient = "yes" if row.clustered else "no"
        lines.append(
            f"| {row.estimator} | {row.n_cases:,} | {patient} | {row.truth:.4f} | {bias} | {row.coverage:.3f} |"
        )
    return Reproduction(
        what="Bias of the estimators and coverage of their 95 % intervals",
        rows=[asdict(row) for row in rows],
        text="\n".join(lines),
        charts={"coverage": coverage_chart(rows)},
    )
