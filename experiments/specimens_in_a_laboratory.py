"""Shares of specimens in a simulated laboratory whose annotators tilt, and whose patients' cells err together.

The release knows how kinds of cells look, but every patient has a mix of their own, and a shift of the logits that all
of the patient's cells share. Experts disagree about a cell, most about bands and segmented cells, which matter to no
threshold. Annotators tilt: each calls some classes more often than the others do. Shown: coverage of the slide's share
once completely read specimens of other patients have taught the overdispersion, and the loss of decisions about blasts
after a few reads, chosen in several ways.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax, ndtr, softmax

from experiments import reproduce_from_arguments
from ml.annotations import Annotations
from ml.distributions.families import DirichletCpe
from ml.reproduce.report import Reproduction, Setting
from ml.specimens.cells import Group, Specimen, Threshold
from ml.specimens.laboratory import (
    GroupKnowledge,
    Laboratory,
    annotator_tilt,
    coverage_by_band,
    fit_kappa,
    fit_shift,
    half_cell_logit,
)
from ml.specimens.shares import GroupShare, measure_specimen
from ml.util.arrays import FloatArray, IntArray

CLASSES = ("blast", "reactive", "lymphocyte", "band", "segmented", "monocyte", "eosinophil", "other")
#: Class frequencies of the calibration cells, which are those of the training laboratory.
MIX = np.array([0.06, 0.06, 0.20, 0.10, 0.40, 0.10, 0.05, 0.03])
#: Strength with which a patient's mix resembles it.
KAPPA = 2.0
N_CELLS, N_ANNOTATORS = 100, 12
#: Standard deviation of an annotator's tilt on the log-odds of each class.
TILT = 0.3
# distance of the kinds in units of the noise, and of those that are alike
_APART, _ALIKE = 4.0, 2.0
_PAIRS = ((0, 1), (3, 4))
#: Laboratories, patients of each whose shares are covered or decided, and completely read specimens to learn from.
N_LABORATORIES, N_COVERED, N_DECIDED, LEARNED_FROM = 8, 60, 150, (0, 20, 50)
#: Shifts of the patients' logits; decisions are made under the middle one.
SHIFTS = (0.0, 0.3, 0.6)
BANDS = (0.0, 0.05, 0.2, 1.0)
#: Reads by cell, made in so many rounds, and how they are chosen.
RATE, ROUNDS, RULES = 0.01, 4, ("at random", "by disagreement", "by value for the share", "by value for the decision")
#: Thresholds of the share of blasts; a miss costs as much as four false alarms.
BLASTS = Group("blasts", ("blast",), (Threshold(0.05, 4.0), Threshold(0.2, 4.0)))


@dataclass(frozen=True)
class Patient:
    """A specimen with what nobody in the laboratory knows."""

    specimen: Specimen
    experts: FloatArray  # (n, K) what experts think of each cell
    panel: FloatArray  # (n, K) what all annotators together answer
    share: float  # of blasts by the panel, in the patient's blood


class World:
    """Annotators, looks of cells, and patients."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng([39, seed])
        self.tilts = rng.normal(0, TILT, (N_ANNOTATORS, len(CLASSES)))
        self.looks = _APART / np.sqrt(2) * np.eye(len(CLASSES))
        for one, other in _PAIRS:
            middle, half = self.looks[[one, other]].mean(axis=0), _ALIKE / np.sqrt(8)
            direction = np.sqrt(2) / _APART * (self.looks[one] - self.looks[other])
            self.looks[one], self.looks[other] = middle + half * direction, middle - half * direction
        kinds = np.repeat(np.arange(len(CLASSES)), 4000)
        _, experts = self._cells(rng, kinds)
        #: What the panel answers about a kind of cell, on average.
        self.answers = self.answered(experts).mean(axis=0).reshape(len(CLASSES), 4000, -1).mean(axis=1)

    def _cells(self, rng: np.random.Generator, kinds: IntArray) -> tuple[FloatArray, FloatArray]:
        """Log probabilities of cells under the calibration mix, and what experts think of them."""
        seen = self.looks[kinds] + rng.normal(0, 1, (len(kinds), len(CLASSES)))
        distances = ((seen[:, None] - self.looks) ** 2).sum(axis=2)
        logs = np.asarray(log_softmax(np.log(MIX) - distances / 2, axis=1))
        gammas = rng.standard_gamma(_concentration(np.exp(logs))[:, None] * np.exp(logs) + np.eye(len(CLASSES))[kinds])
        return logs, gammas / gammas.sum(axis=1, keepdims=True)

    def answered(self, experts: FloatArray) -> FloatArray:
        """Distribution (A, n, K) of each annotator's answer."""
        return np.asarray(softmax(np.log(experts + 1e-12) + self.tilts[:, None], axis=2))

    def patient(self, key: str, rng: np.random.Generator, shift: float) -> Patient:
        """Draw a patient whose cells share a shift of the logits with this standard deviation."""
        mix = rng.dirichlet(KAPPA * MIX)
        logs, experts = self._cells(rng, rng.choice(len(CLASSES), N_CELLS, p=mix))
        alpha = _concentration(np.exp(logs))
        served = softmax(logs + rng.normal(0, shift, len(CLASSES)), axis=1)
        cells = tuple(f"{row:03d}" for row in range(N_CELLS))
        one = Specimen(key, cells, CLASSES, DirichletCpe(served, np.log(alpha)), MIX)
        return Patient(one, experts, self.answered(experts).mean(axis=0), float((mix @ self.answers)[0]))

    def labels(self, experts: FloatArray, annotators: IntArray, rng: np.random.Generator) -> IntArray:
        """Answers about cells (n, K), each by one annotator."""
        below = self.answered(experts)[annotators, np.arange(len(experts))].cumsum(axis=1)
        return np.asarray((rng.random((len(experts), 1)) > below[:, :-1]).sum(axis=1))


def _concentration(probs: FloatArray) -> npt.NDArray[np.float64]:
    """α of cells: experts split on bands and segmented cells, and a label there shows little."""
    return 2 + 10 * probs[:, 3:5].sum(axis=1)


class SimulatedLaboratory:
    """A world of which completely read specimens are known: two labels of each cell."""

    def __init__(self, seed: int, shift: float, n_learned: int) -> None:
        self.world, self.shift = World(seed), shift
        self.rng = np.random.default_rng([39, seed, int(10 * shift)])
        self.name = f"{seed} {shift}"
        patients = self.patients("learned", n_learned)
        self.kappa = fit_kappa([one.specimen for one in patients])
        self.predicted = [self.measure(one.specimen).raw for one in patients]
        every = np.argsort(self.rng.random((n_learned, N_CELLS, N_ANNOTATORS)), axis=2)[..., :2]
        labels = np.full((n_learned, N_CELLS, N_ANNOTATORS), -1)
        for one, answers, annotators in zip(patients, labels, every, strict=True):
            for annotator in annotators.T:
                answers[np.arange(N_CELLS), annotator] = self.world.labels(one.experts, annotator, self.rng)
        self.truth = ((labels == 0).sum(axis=2) / 2).mean(axis=1)
        self.tilt = annotator_tilt(Annotations.of_matrix(labels.reshape(-1, N_ANNOTATORS), len(CLASSES)), [0])

    def patients(self, what: str, count: int) -> list[Patient]:
        return [self.world.patient(f"{self.name} {what} {row}", self.rng, self.shift) for row in range(count)]

    def knows(self, count: int) -> Laboratory:
        """What so many specimens taught."""
        some = self.predicted[:count]
        found = fit_shift(some, self.truth[:count].tolist(), [one.label_noise / 2 for one in some])
        return Laboratory(self.kappa, {"blasts": GroupKnowledge(self.tilt, found.sd, count)})

    def measure(self, one: Specimen, count: int = 0) -> GroupShare:
        known = self.knows(count) if count else Laboratory(self.kappa)
        return measure_specimen(one, [BLASTS], known).groups[0]


def coverage_rows(laboratories: list[SimulatedLaboratory], n_patients: int) -> list[dict[str, Any]]:
    """Coverage of slides and patients, by band of the share, with so many specimens to learn from."""
    cohorts = [(one, one.patients("covered", n_patients)) for one in laboratories]
    rows: list[dict[str, Any]] = []
    for count in LEARNED_FROM:
        slides, shares, patients = [], [], []
        for laboratory, cohort in cohorts:
            for patient in cohort:
                found = laboratory.measure(patient.specimen, count)
                slides.append((found.slide.low, found.slide.high))
                shares.append(float(patient.panel[:, 0].mean()))
                patients.append(found.patient.low <= patient.share <= found.patient.high)
        bands = coverage_by_band(slides, shares, BANDS)
        rows.append({
            "shift": laboratories[0].shift,
            "learned from": count,
            "fitted": float(np.mean([one.knows(count).of("blasts").shift if count else 0 for one in laboratories])),
            "slide": sum(band.n_covered for band in bands) / len(slides),
            "patient": float(np.mean(patients)),
            "specimens": [band.n_specimens for band in bands],
            "bands": [band.n_covered / max(1, band.n_specimens) for band in bands],
        })  # fmt: skip
    return rows


def losses(cohort: list[Patient], shares: list[GroupShare], shift: float) -> FloatArray:
    """Mean loss by threshold, of decisions about the panel's share on the slide, and about the patient's."""
    truth, by_threshold = np.array([(one.panel[:, 0].mean(), one.share) for one in cohort]), []
    raw = [share.raw for share in shares]
    mean, spread = (
        np.array(x)
        for x in zip(*((one.mean, np.hypot(one.variance**0.5, shift * one.sensitivity)) for one in raw), strict=True)
    )
    for row, threshold in enumerate(BLASTS.thresholds):
        of_slide = ndtr((mean - half_cell_logit(threshold.at, N_CELLS)) / np.maximum(spread, 1e-9))
        of_patient = [share.thresholds[row].probability_above for share in shares]
        above = np.stack([of_slide, of_patient], axis=1)
        called, over = threshold.miss_cost * above >= 1 - above, truth >= threshold.at
        by_threshold.append((threshold.miss_cost * (over & ~called) + (~over & called)).mean(axis=0))
    return np.array(by_threshold)


def losses_by_rule(laboratory: SimulatedLaboratory, n_patients: int) -> Mapping[str, FloatArray]:
    """Losses without a read, and after reads that are shared out between all specimens."""
    cohort, learned_from = laboratory.patients("decided", n_patients), LEARNED_FROM[-1]
    before = [laboratory.measure(one.specimen, learned_from) for one in cohort]
    shift = laboratory.knows(learned_from).of("blasts").shift
    found = {"no read": losses(cohort, before, shift)}
    n_reads = round(RATE * n_patients * N_CELLS / ROUNDS)
    for rule in RULES:
        shares, counts = list(before), np.zeros((n_patients, N_CELLS, len(CLASSES)), dtype=np.int64)
        asked: list[set[int]] = [set() for _ in cohort]
        for _ in range(ROUNDS):
            by_rule = {
                "at random": laboratory.rng.random((n_patients, N_CELLS)),
                "by disagreement": np.array([one.specimen.prior.disagreement_probs for one in cohort]),
                "by value for the share": np.array([share.read_values for share in shares]),
                "by value for the decision": np.array([share.decision_values for share in shares]),
            }
            score = by_rule[rule]
            score[counts.sum(axis=2) >= 2] = -1  # at most two labels of a cell
            chosen = np.argsort(-score, axis=None, kind="stable")[:n_reads]
            for row in sorted(set((chosen // N_CELLS).tolist())):
                cells = chosen[chosen // N_CELLS == row] % N_CELLS
                annotators = laboratory.rng.integers(N_ANNOTATORS, size=len(cells))
                answers = laboratory.world.labels(cohort[row].experts[cells], annotators, laboratory.rng)
                np.add.at(counts[row], (cells, answers), 1)
                asked[row] |= set(annotators.tolist())
                read = replace(cohort[row].specimen, label_counts=counts[row], n_annotators=len(asked[row]))
                shares[row] = laboratory.measure(read, learned_from)
        found[rule] = losses(cohort, shares, shift)
    return found


def reproduce(setting: Setting) -> Reproduction:
    """Both tables."""
    n_laboratories, n_covered, n_decided = (2, 4, 8) if setting.quick else (N_LABORATORIES, N_COVERED, N_DECIDED)
    seeds = range(setting.seeds[0], setting.seeds[0] + n_laboratories)
    laboratories = {shift: [SimulatedLaboratory(seed, shift, LEARNED_FROM[-1]) for seed in seeds] for shift in SHIFTS}
    covered = [row for shift in SHIFTS for row in coverage_rows(laboratories[shift], n_covered)]
    by_rule = [losses_by_rule(one, n_decided) for one in laboratories[SHIFTS[1]]]
    lost: list[dict[str, Any]] = []
    for rule in by_rule[0]:
        loss = 1000 * np.array([found[rule] for found in by_rule])
        fewer = loss - 1000 * np.array([found["no read"] for found in by_rule])
        for row, threshold in enumerate(BLASTS.thresholds):
            for column, truth in enumerate(("slide", "patient")):
                one, gain = loss[:, row, column], fewer[:, row, column]
                error = float(gain.std(ddof=1) / np.sqrt(n_laboratories))
                numbers = {"loss": float(one.mean()), "change": float(gain.mean()), "standard error": error}
                lost.append({"reads": rule, "threshold": threshold.at, "truth": truth, **numbers})
    text = (
        f"{n_laboratories} laboratories; specimens of {N_CELLS} cells. Coverage by band of the share on the slide, "
        f"{n_covered} patients of each laboratory. Learned from specimens of which two annotators read each cell.\n\n"
        f"{_coverage_table(covered)}\nLoss of decisions about blasts per 1,000 specimens, {n_decided} of each "
        f"laboratory, a shift of {SHIFTS[1]:g}; {RATE:.0%} of the cells read; ± standard error of the change.\n\n"
        f"{_loss_table(lost)}"
    )
    return Reproduction("Shares of specimens in a simulated laboratory", [*covered, *lost], text, {})


def _coverage_table(rows: list[dict[str, Any]]) -> str:
    bands = [f"{low:.0%} to {high:.0%}" for low, high in pairwise(BANDS)]
    lines = [f"| shift | learned from | fitted | slide | patient | {' | '.join(bands)} |", "|---" * 8 + "|"]
    for row in rows:
        inside = [f"{share:.3f} of {n}" for share, n in zip(row["bands"], row["specimens"], strict=True)]
        first = f"| {row['shift']} | {row['learned from']} | {row['fitted']:.2f} | {row['slide']:.3f} "
        lines.append(f"{first}| {row['patient']:.3f} | {' | '.join(inside)} |")
    return "\n".join(lines) + "\n"


def _loss_table(rows: list[dict[str, Any]]) -> str:
    places = list(dict.fromkeys((row["threshold"], row["truth"]) for row in rows))
    lines = [f"| reads | {' | '.join(f'{at:.0%}, {truth}' for at, truth in places)} |", "|---" * 5 + "|"]
    for rule in dict.fromkeys(row["reads"] for row in rows):
        of_rule = [row for row in rows if row["reads"] == rule]
        values = [f"{r['loss']:.1f} ({r['change']:+.1f} ± {r['standard error']:.1f})" for r in of_rule]
        lines.append(f"| {rule} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    reproduce_from_arguments("specimens-in-a-laboratory", __doc__, reproduce)


if __name__ == "__main__":
    main()
