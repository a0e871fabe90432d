"""Simulation study: bias of every estimator, coverage of every interval.

Panels: independent cases, cases by patient, two designs of a service that has
a fifth read twice, and the small samples of a laboratory's first week.
Predictions are overconfident and noisy.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ml.agreement.coefficients import krippendorff_alpha
from ml.charts.results import coverage_chart
from ml.charts.rows import CoverageRow
from ml.distributions.families import DirichletCpe, softmax_probs
from ml.metrics import (
    calibration_loss,
    disagreement_calibration_loss,
    disagreement_loss,
    dispersion_loss,
    epistemic_loss,
    evaluate,
    expected_squared_loss,
)
from ml.metrics.jackknife import Estimate, ModelAssisted
from ml.metrics.losses import exact_metrics
from ml.metrics.paired_difference import paired_changes
from ml.metrics.posterior_gain import exact_posterior_epistemic_loss, posterior_epistemic_loss, posterior_gain
from ml.metrics.selection import graded_probabilities, graded_scale
from ml.metrics.triage_curves import net_benefit, triage_recall
from ml.reproduce import small_samples
from ml.reproduce.report import Observer, Reproduction, Setting, show_nothing
from ml.reproduce.scoring import markdown_table
from ml.reproduce.small_samples import ASSISTED
from ml.util.arrays import FloatArray, IntArray

K, N_BINS = 3, 10
CASES_PER_PATIENT = 10
CAPACITY, THRESHOLD = 0.3, 0.2
#: Share of the cases that a service reads twice, and the least probability of a second read by either design: that of
#: a service whose policy does not say another.
READ_TWICE, AUDIT_RATE = 0.2, 0.1


@dataclass(frozen=True)
class Simulated:
    """Simulated cases with two predictions of them."""

    true_probs: FloatArray
    prior: DirichletCpe
    candidate: DirichletCpe
    counts: IntArray
    patients: npt.NDArray[np.int64] | None
    weights2: FloatArray | None = None

    @property
    def probs(self) -> FloatArray:
        """Predicted class probabilities (N, K)."""
        return self.prior.class_probs

    @property
    def dpe(self) -> FloatArray:
        """Predicted disagreement probabilities (N,)."""
        return self.prior.disagreement_probs


#: π (N,) of cases by their disagreement probabilities (N,).
Design = Callable[[FloatArray], FloatArray]


def draw(n_cases: int, rng: np.random.Generator, *, clustered: bool, design: Design | None = None) -> Simulated:
    """Draw cases with two, three or five labels, or by a design."""
    seen = rng.normal(0, 1.5, (n_cases, K))
    patients = np.arange(n_cases) // CASES_PER_PATIENT if clustered else None
    shift = rng.normal(0, 0.8, (n_cases, K))
    if patients is not None:
        shift = 0.5 * shift + rng.normal(0, 0.7, (patients[-1] + 1, K))[patients]
    q = softmax_probs(seen + shift)
    labels = rng.choice([2, 3, 5], n_cases)
    counts = np.asarray(rng.multinomial(labels, q), dtype=np.int64)
    prior = DirichletCpe(softmax_probs(1.4 * seen), rng.normal(0.8, 0.3, n_cases))
    candidate = DirichletCpe(softmax_probs(1.1 * seen + rng.normal(0, 0.3, seen.shape)), prior.log_concentration + 0.4)
    if design is None:
        return Simulated(q, prior, candidate, counts, patients)
    pi = design(prior.disagreement_probs)
    twice = rng.random(n_cases) < pi
    counts = np.asarray(rng.multinomial(1 + twice, q), dtype=np.int64)
    return Simulated(q, prior, candidate, counts, patients, np.where(twice, 1 / pi, 1.0))


def designs(rng: np.random.Generator, size: int) -> dict[str, Design]:
    """Both designs at one budget, set by cases of earlier days."""
    earlier = draw(size, rng, clustered=False).dpe
    threshold = float(np.quantile(earlier, 1 - (READ_TWICE - AUDIT_RATE) / (1 - AUDIT_RATE)))
    scale = graded_scale(earlier, READ_TWICE, AUDIT_RATE)
    return {
        "all or audit": lambda dpe: np.where(dpe > threshold, 1.0, AUDIT_RATE),
        "graded": lambda dpe: graded_probabilities(dpe, scale, AUDIT_RATE),
    }


Estimator = Callable[[Simulated], Estimate]
#: Everything that is estimated where cases are read by everybody.
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

_NAMES = {"L": "L", "CL": "CL", "EL": "EL", "CL_paired": "CL, two labels", "DL": "DL", "L_D": "L_φ", "CL_D": "CL_φ"}


def estimate_service_design(sample: Simulated) -> Mapping[str, Estimate | ModelAssisted]:
    """Estimates of a service from cases that its design had read twice."""
    weights2, patients = sample.weights2, sample.patients
    metrics = evaluate(
        sample.counts, sample.probs, sample.dpe, n_bins=N_BINS, sample_weight=(None, weights2), cluster=patients
    ).metrics
    estimates = {label: metrics[name] for name, label in _NAMES.items()}
    before, after = ((side.class_probs, side.disagreement_probs) for side in (sample.prior, sample.candidate))
    changes = paired_changes(
        sample.counts, before, after, n_bins=N_BINS, sample_weight=(None, weights2), cluster=patients
    )
    estimates |= {f"Δ{_NAMES[name]}": changes[name] for name in ("L", "EL", "L_D")}
    estimates["triage recall"] = triage_recall(
        sample.counts, sample.dpe, [CAPACITY], sample_weight=weights2, cluster=patients
    )[0]
    assisted = {name + ASSISTED: row.model_assisted for name, row in estimates.items() if row.model_assisted}
    return {**estimates, **assisted}


def truths(large: Simulated) -> dict[str, float]:
    """True value of each estimator's target."""
    exact, other = (
        exact_metrics(large.true_probs, side.class_probs, side.disagreement_probs, n_bins=N_BINS)
        for side in (large.prior, large.candidate)
    )
    aims = {label: exact[name].value for name, label in _NAMES.items() if name in exact}
    aims |= {"CL, two labels": aims["CL"], "DL": aims["EL"] - aims["CL"]}
    aims |= {f"Δ{_NAMES[name]}": other[name].value - exact[name].value for name in ("L", "EL", "L_D")}
    aims["EL′"] = exact_posterior_epistemic_loss(large.counts, large.true_probs, large.prior).value
    aims["gain EL − EL′"] = aims["EL"] - aims["EL′"]
    for name in ("Krippendorff α", "triage recall", "net benefit"):
        aims[name] = ESTIMATORS[name](large).value
    return aims | {name + ASSISTED: value for name, value in aims.items()}


SIZES, SERVICE_SIZES = (100, 1_000), (500, 2_000)
RUNS, SERVICE_RUNS, QUICK_RUNS = 1_000, 4_000, 40
LARGE, QUICK_LARGE = 4_000_000, 40_000

Estimates = Mapping[str, Estimate | ModelAssisted]
_Sample = TypeVar("_Sample")


@dataclass
class Tally:
    """Estimates of one estimator over runs, with missed truths."""

    values: list[float] = field(default_factory=list)
    low: int = 0
    high: int = 0

    def add(self, estimate: Estimate | ModelAssisted, truth: float) -> None:
        """Count one run."""
        self.values.append(estimate.value)
        self.low += estimate.low is None or truth < estimate.low
        self.high += estimate.high is None or truth > estimate.high

    def row(self, name: str, n_cases: int, panel: str, truth: float) -> CoverageRow:
        """Summarise the runs as a row."""
        runs, spread = len(self.values), float(np.std(self.values, ddof=1))
        bias = float(np.mean(self.values) - truth)
        covered = 1 - (self.low + self.high) / runs
        error = spread / float(np.sqrt(runs))
        return CoverageRow(
            name, n_cases, panel, truth, bias, error, spread, covered, self.high / runs, self.low / runs, runs
        )


def simulate(
    panel: str,
    n_cases: int,
    runs: int,
    one: Callable[[], _Sample],
    estimates: Callable[[_Sample], Estimates],
    aims: Mapping[str, float],
    observer: Observer,
) -> list[CoverageRow]:
    """Estimate everything in repeated runs of N cases."""
    tallies: dict[str, Tally] = {}
    for done in range(runs):
        for name, estimate in estimates(one()).items():
            tallies.setdefault(name, Tally()).add(estimate, aims[name])
        observer(f"N = {n_cases}, {panel}", done + 1, runs)
    return [tally.row(name, n_cases, panel, aims[name]) for name, tally in tallies.items()]


def run(seed: int = 0, *, quick: bool = False, observer: Observer = show_nothing) -> list[CoverageRow]:
    """Simulate every estimator in every panel and size."""
    runs, large = (QUICK_RUNS, QUICK_LARGE) if quick else (RUNS, LARGE)
    rows, aims = [], {}

    def all_estimates(sample: Simulated) -> Estimates:
        return {name: estimator(sample) for name, estimator in ESTIMATORS.items()}

    for clustered, panel in ((False, "independent cases"), (True, "by patient")):
        rng = np.random.default_rng([seed, clustered])
        aims = truths(draw(large, rng, clustered=clustered))
        for n_cases in SIZES:
            one = partial(draw, n_cases, rng, clustered=clustered)
            rows += simulate(panel, n_cases, runs, one, all_estimates, aims, observer)
    runs, sizes = (QUICK_RUNS, SERVICE_SIZES[:1]) if quick else (SERVICE_RUNS, SERVICE_SIZES)
    for panel, design in designs(np.random.default_rng([seed, 2]), QUICK_LARGE).items():
        rng = np.random.default_rng([seed, 3])
        for n_cases in sizes:
            one = partial(draw, n_cases, rng, clustered=True, design=design)
            rows += simulate(panel, n_cases, runs, one, estimate_service_design, aims, observer)
    return rows


def run_small_samples(
    seed: int = 0, *, runs: int = SERVICE_RUNS, large: int = LARGE, observer: Observer = show_nothing
) -> list[CoverageRow]:
    """Simulate EL and L_φ in a laboratory's first week."""
    rows: list[CoverageRow] = []
    for triage, sizes in ((False, small_samples.SIZES), (True, small_samples.TRIAGE_SIZES)):
        for rate in small_samples.RATES:
            panel = small_samples.panel_name(rate, triage=triage)
            aims = small_samples.truths(small_samples.draw(large // 4, rate, np.random.default_rng([seed, 4])))
            for n_cases in sizes:
                rng = np.random.default_rng([seed, 5, n_cases])
                one = partial(small_samples.draw, n_cases, rate, rng, triage=triage)
                rows += simulate(panel, n_cases, runs, one, small_samples.estimate, aims, observer)
    return rows


def reproduce(setting: Setting) -> Reproduction:
    """Table and figure of bias and coverage."""
    runs, large = (QUICK_RUNS, QUICK_LARGE) if setting.quick else (SERVICE_RUNS, LARGE)
    small = run_small_samples(setting.seeds[0], runs=runs, large=large, observer=setting.observer)
    large_samples = run(setting.seeds[0], quick=setting.quick, observer=setting.observer)
    rows = large_samples + small
    columns = (
        "panel | estimator | cases | runs | truth | bias (in its own error) | spread | coverage | truth above, below"
    )
    lines = [
        [
            row.panel,
            row.estimator,
            f"{row.n_cases:,}",
            f"{row.runs:,}",
            f"{row.truth:.4f}",
            f"{row.bias:+.5f} ({row.bias / row.bias_se:+.1f})",
            f"{row.spread:.4f}",
            f"{row.coverage:.3f}",
            f"{row.above:.3f}, {row.below:.3f}",
        ]
        for row in rows
    ]
    return Reproduction(
        what="Bias of the estimators and coverage of their 95 % intervals",
        rows=[asdict(row) for row in rows],
        text=markdown_table(columns, lines) + "\n\n" + small_samples.goals_table(small),
        charts={"coverage": coverage_chart(large_samples)},
    )
