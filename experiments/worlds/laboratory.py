"""One simulated laboratory: cases arrive day by day, triage plans second reads at a capacity, annotators answer."""

from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from app.metrics.cohort import CohortQuery, build_cohort, evaluate_cohort
from app.metrics.dataset import EvaluationDataset
from app.triage.rules import capacity_threshold, plan_reads
from ml.distributions.families import DirichletCpe, softmax_probs
from ml.specimens.cells import Group, Specimen
from ml.specimens.reads import choose_reads
from ml.specimens.shares import measure_specimen
from ml.util.arrays import FloatArray, IntArray

CLASSES, PER_PATIENT, DAYS = 6, 10, 20
CAPACITY_SHARE, AUDIT_RATE, PER_SPECIMEN = 0.20, 0.10, 50
QUANTITIES = ("EL", "CL", "L_D")


@dataclass(frozen=True)
class Laboratory:
    """Cases of one laboratory before anybody read them.

    Attributes:
        true_probs: (N, K) what annotators draw from.
        prediction: what the release says.
        labels: (N, 2) the labels that two annotators would give.
        cluster: (N,) patients.
        u: (N,) coins.
        day: (N,) of arrival.
    """

    true_probs: FloatArray
    prediction: DirichletCpe
    labels: IntArray
    cluster: IntArray
    u: FloatArray
    day: IntArray


def open_laboratory(seed: int, n: int) -> Laboratory:
    """Cells of patients who differ, a miscalibrated network, annotators who draw from the truth."""
    rng = np.random.default_rng(seed)
    patients = n // PER_PATIENT
    cluster = np.repeat(np.arange(patients), PER_PATIENT)
    scores = rng.normal(size=(patients, CLASSES))[cluster] + 2.5 * rng.normal(size=(n, CLASSES))
    truth = softmax_probs(1.6 * scores)
    noisy = softmax_probs(2.4 * (scores + 0.7 * rng.normal(size=scores.shape)))
    prediction = DirichletCpe(noisy, 1.0 + 0.5 * rng.normal(size=n))
    cumulative = truth.cumsum(axis=1)
    labels = (rng.random((n, 2, 1)) > cumulative[:, None, :-1]).sum(axis=2)
    day = rng.permutation(np.arange(n) % DAYS)
    return Laboratory(truth, prediction, labels, cluster, rng.random(n), day)


def planned(lab: Laboratory) -> tuple[FloatArray, IntArray]:
    """π and the number of planned reads of each case, by the rule at 20 % capacity with 10 % audit."""
    n, dpe = len(lab.u), lab.prediction.disagreement_probs
    pi, reads = np.zeros(n), np.ones(n, dtype=np.int64)
    for day in range(DAYS):
        before, today = lab.day < day, np.flatnonzero(lab.day == day)
        capacity = CAPACITY_SHARE * n / DAYS
        threshold = capacity_threshold(dpe[before], capacity, float(max(day, 1)), AUDIT_RATE)
        for case in today:
            found = plan_reads(float(lab.u[case]), bool(dpe[case] > threshold), AUDIT_RATE)
            pi[case], reads[case] = found.pi, 1 if found.arm is None else 2
    return pi, reads


def planned_by_specimen(lab: Laboratory) -> tuple[FloatArray, IntArray]:
    """The same by the rule by specimen value, which looks at each specimen after half of its cells and after all."""
    pi = np.zeros(len(lab.u))
    for start in range(0, len(lab.u), PER_SPECIMEN):
        cells = np.arange(start, min(start + PER_SPECIMEN, len(lab.u)))
        for seen in (cells[: len(cells) // 2], cells):
            names = tuple(map(str, seen))
            prior = DirichletCpe(lab.prediction.class_probs[seen], lab.prediction.log_concentration[seen])
            mix = np.full(CLASSES, 1 / CLASSES)
            specimen = Specimen(f"specimen {start}", names, tuple(map(str, range(CLASSES))), prior, mix)
            values = measure_specimen(specimen, [Group("first", ("0",))]).groups[0].read_values
            chosen = set(choose_reads(values, int(CAPACITY_SHARE * len(seen)), names))
            for case in seen:
                found = plan_reads(float(lab.u[case]), str(case) in chosen, AUDIT_RATE, float(pi[case]))
                pi[case] = found.pi
    return pi, 1 + (lab.u < pi).astype(np.int64)


def columns_of(lab: Laboratory, pi: FloatArray, reads: IntArray) -> EvaluationDataset:
    """What the service would hold once everybody has read what was planned."""
    n = len(lab.u)
    counts = np.zeros((n, CLASSES), dtype=np.int64)
    counts[np.arange(n), lab.labels[:, 0]] += 1
    second = np.flatnonzero(reads == 2)
    counts[second, lab.labels[second, 1]] += 1
    return replace(
        EvaluationDataset.empty([str(k) for k in range(CLASSES)], n),
        cluster=lab.cluster.astype(np.int64),
        evaluation=np.ones(n, dtype=bool),
        pi=pi,
        class_probs=lab.prediction.class_probs,
        disagreement_probs=lab.prediction.disagreement_probs,
        label_counts=counts,
        first_class=lab.labels[:, 0].astype(np.int64),
        n_planned=reads,
    )


@dataclass(frozen=True)
class Outcome:
    """Estimates of one laboratory: everybody read twice, weighted, unweighted, and the weighted intervals."""

    complete: dict[str, float]
    weighted: dict[str, float]
    unweighted: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    share_read_twice: float


def live(seed: int, n: int, *, by_specimen: bool = False) -> Outcome:
    """One laboratory from its first case to its report."""
    lab = open_laboratory(seed, n)
    pi, reads = planned_by_specimen(lab) if by_specimen else planned(lab)
    everybody = columns_of(lab, np.ones(n), np.full(n, 2, dtype=np.int64))
    triaged = columns_of(lab, pi, reads)
    documents = {
        "complete": evaluate_cohort(build_cohort(everybody, CohortQuery(weighting="none"), 0.0)).to_dict(),
        "weighted": evaluate_cohort(build_cohort(triaged, CohortQuery(), 0.0)).to_dict(),
        "unweighted": evaluate_cohort(build_cohort(triaged, CohortQuery(weighting="none"), 0.0)).to_dict(),
    }
    values = {kind: {q: found["metrics"][_name(q)]["value"] for q in QUANTITIES} for kind, found in documents.items()}
    rows = {q: documents["weighted"]["metrics"][_name(q)] for q in QUANTITIES}
    intervals = {q: (row["low"], row["high"]) for q, row in rows.items()}
    return Outcome(**values, intervals=intervals, share_read_twice=float((reads == 2).mean()))


def _name(quantity: str) -> str:
    """CL on the cases with two labels, which triage chose; CL of order 1 has every case."""
    return "CL_paired" if quantity == "CL" else quantity


class QuantityRow(TypedDict):
    """One quantity over many laboratories; ``z`` counts Monte-Carlo errors, ``coverage`` is of 95 % intervals."""

    complete: float
    weighted: float
    weighted_z: float
    unweighted: float
    unweighted_z: float
    coverage: float


def table(outcomes: list[Outcome]) -> dict[str, QuantityRow]:
    """Weighted and unweighted means against complete labelling, by quantity."""
    rows: dict[str, QuantityRow] = {}
    for name in QUANTITIES:
        complete, weighted, unweighted = (
            np.array([getattr(outcome, kind)[name] for outcome in outcomes])
            for kind in ("complete", "weighted", "unweighted")
        )
        truth = float(complete.mean())
        rows[name] = {
            "complete": truth,
            "weighted": float(weighted.mean()),
            "weighted_z": _in_errors(weighted - complete),
            "unweighted": float(unweighted.mean()),
            "unweighted_z": _in_errors(unweighted - complete),
            "coverage": float(np.mean([low <= truth <= high for low, high in (o.intervals[name] for o in outcomes)])),
        }
    return rows


def _in_errors(differences: FloatArray) -> float:
    return float(differences.mean() / (differences.std(ddof=1) / np.sqrt(len(differences))))
