"""Thirty small worlds as data, and what is drawn from each: labels, predictions, patients, annotators, weights.

All that is random comes from the raw bits of PCG64, which NumPy keeps the same in every version; what is made of them
takes sums, products and quotients only, so that a world is the same on every machine.
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.distributions import DirichletCpe, DirichletMixtureCpe, EnsembleCpe, PointCpe, PredictiveDistribution
from ml.metrics import Readings

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
MEMBERS, FEATURES = 3, 4


def uniforms(seed: int, *shape: int) -> Floats:
    """Numbers in [0, 1) from the raw bits of a generator."""
    raw = np.random.PCG64(seed).random_raw(int(np.prod(shape)))
    return (raw >> np.uint64(11)).reshape(shape) * 2.0**-53


def shares(values: Floats) -> Floats:
    """Positive numbers over their sum."""
    return np.asarray(values / values.sum(axis=-1, keepdims=True))


@dataclass(frozen=True)
class World:
    """One world.

    Attributes:
        name: of its file.
        seed: of everything drawn.
        n_cases: N.
        n_classes: K.
        n_labels: numbers of labels that cases have, one after the other.
        kind: family of the predictions.
        n_bins: of reliability tables and calibration losses.
        debias: form of CL.
        level: ``binary`` has one column of probabilities.
        n_readers: annotators by name; 0 where nobody knows who gave a label, so that the table is wide.
        per_patient: cases of a patient; 0 where patients are not named.
        weighted: which inverse probabilities there are.
        with_dpe: whether disagreement probabilities are given, else they follow from the class probabilities.
        planned: whether a column names the planned read that a label answers, so that metrics of one label use these.
        grid: probabilities are multiples of 1/grid, which lie on edges of bins; 0 for any.
        all_sums: whether every sum of the accumulator is kept, and not only their totals.
        changes: number that an issue is going to change; empty where none is.
    """

    name: str
    seed: int
    n_cases: int
    n_classes: int
    n_labels: tuple[int, ...] = (2, 3)
    kind: Literal["point", "dirichlet", "mixture", "ensemble"] = "point"
    n_bins: int = 15
    debias: Literal["pair", "paper", "none"] = "pair"
    level: Literal["nominal", "ordinal", "binary"] = "nominal"
    n_readers: int = 6
    per_patient: int = 0
    weighted: Literal["none", "first", "both"] = "none"
    with_dpe: bool = True
    planned: bool = False
    grid: int = 0
    all_sums: bool = False
    changes: str = ""

    def drawn(self, what: int, *shape: int) -> Floats:
        """Numbers in [0, 1) for one purpose."""
        return uniforms(100 * self.seed + what, *shape)

    @cached_property
    def classes(self) -> list[str]:
        """Names of the classes, in alphabetical order."""
        return ["absent", "present"] if self.level == "binary" else [f"class {k}" for k in range(self.n_classes)]

    @cached_property
    def truth(self) -> Floats:
        """True class probabilities (N, K)."""
        squared = self.drawn(0, self.n_cases, self.n_classes) ** 2
        return shares(squared * squared + 0.02)

    @cached_property
    def members(self) -> Floats:
        """Class probabilities (S, N, K) of the members of an ensemble, and of its first member where there is one."""
        noise = self.drawn(1, MEMBERS, self.n_cases, self.n_classes)
        return shares(self.truth * self.truth + 0.15 * noise * noise + 0.002)

    @cached_property
    def log_concentration(self) -> Floats:
        """Log concentrations (S, N)."""
        return np.asarray(4 * self.drawn(2, MEMBERS, self.n_cases) - 1)

    @cached_property
    def distribution(self) -> PredictiveDistribution:
        """The predictions."""
        members, a = self.members, self.log_concentration
        if self.grid:
            first = np.floor(self.drawn(3, self.n_cases) * (self.grid + 1)) / self.grid
            rest = np.zeros((self.n_cases, self.n_classes - 2))
            members = np.concatenate([first[:, None], 1 - first[:, None], rest], axis=1)[None]
        if self.kind == "point":
            return PointCpe(members[0])
        if self.kind == "dirichlet":
            return DirichletCpe(members[0], a[0])
        log_weights = np.asarray(self.drawn(4, MEMBERS, self.n_cases))
        if self.kind == "ensemble":
            return EnsembleCpe(members, log_weights)
        return DirichletMixtureCpe(members, a, log_weights)

    @cached_property
    def probs(self) -> Floats:
        """Predicted class probabilities (N, K)."""
        return self.distribution.class_probs

    @cached_property
    def dpe(self) -> Floats | None:
        """Disagreement probabilities (N,) where they are given."""
        return self.distribution.disagreement_probs if self.with_dpe else None

    @cached_property
    def rival(self) -> tuple[Floats, Floats]:
        """Another prediction of the same cases."""
        probs = shares(0.7 * self.probs + 0.3 * self.drawn(5, self.n_cases, self.n_classes))
        return probs, 0.8 * (1 - (probs * probs).sum(axis=1)) + 0.05

    @cached_property
    def totals(self) -> Whole:
        """Labels (N,) of each case."""
        return np.resize(np.array(self.n_labels), self.n_cases)

    @cached_property
    def readings(self) -> Readings:
        """Who gave which label: annotators next to each other in a circle, who lean to either end of the classes."""
        case = np.repeat(np.arange(self.n_cases), self.totals)
        place = np.concatenate([np.arange(n) for n in self.totals])
        readers = max(self.n_readers, int(self.totals.max()))
        start = np.floor(self.drawn(6, self.n_cases) * readers).astype(np.int64)
        annotator = (start[case] + place) % readers
        place_in_order = self.drawn(7, len(case))
        leaning = np.where(annotator % 2 == 1, place_in_order * place_in_order, place_in_order)
        label = (leaning[:, None] >= np.cumsum(self.truth, axis=1)[case, :-1]).sum(axis=1)
        first = place < 1 if self.planned else None
        return Readings(case, annotator.astype(np.int64), label.astype(np.int64), first)

    def _histograms(self, chosen: npt.NDArray[np.bool_] | slice) -> Whole:
        counts = np.zeros((self.n_cases, self.n_classes), dtype=np.int64)
        np.add.at(counts, (self.readings.case[chosen], self.readings.label[chosen]), 1)
        return counts

    @cached_property
    def counts(self) -> Whole:
        """Label histograms (N, K)."""
        return self._histograms(slice(None))

    @cached_property
    def first_counts(self) -> Whole | None:
        """Those of the labels that metrics which need one label use; None where these are all."""
        return None if self.readings.first is None else self._histograms(self.readings.first)

    @cached_property
    def matrix(self) -> Whole:
        """Labels (N, A) of each case by each annotator, −1 where there is none."""
        labels = np.full((self.n_cases, int(self.readings.annotator.max(initial=0)) + 1), -1)
        labels[self.readings.case, self.readings.annotator] = self.readings.label
        return labels

    @cached_property
    def patients(self) -> npt.NDArray[np.str_] | None:
        """Patients (N,), whose numbers of cases vary."""
        if not self.per_patient:
            return None
        number = np.floor(self.drawn(8, self.n_cases) * max(1, self.n_cases // self.per_patient)).astype(int)
        return np.array([f"p{n}" for n in number])

    @cached_property
    def probabilities(self) -> tuple[Floats, Floats]:
        """Probabilities (N,) of one label, and of two."""
        first = 0.25 + 0.75 * self.drawn(9, self.n_cases)
        return first, first * (0.3 + 0.7 * self.drawn(10, self.n_cases))

    @cached_property
    def weights(self) -> tuple[Floats | None, Floats | None]:
        """Inverse probabilities (N,) of one label and of two, where they are given."""
        first, second = self.probabilities
        return None if self.weighted == "none" else 1 / first, 1 / second if self.weighted == "both" else None

    @cached_property
    def logits(self) -> Floats:
        """Logits (N, K) of a network."""
        return np.asarray(6 * self.members[0] - 3 * self.drawn(11, self.n_cases, self.n_classes))

    @cached_property
    def features(self) -> Floats:
        """Features (N, D) of a network."""
        return np.asarray(2 * self.drawn(12, self.n_cases, FEATURES) - 1)

    @cached_property
    def case_ids(self) -> list[str]:
        """Names of the cases, in alphabetical order."""
        return [f"c{number:04}" for number in range(self.n_cases)]

    @cached_property
    def labels_table(self) -> dict[str, list[Any]]:
        """LABELS: long, or wide where annotators are not named."""
        case = self.readings.case if self.n_readers else np.flatnonzero(self.totals > 0)
        table: dict[str, list[Any]] = {"case_id": [self.case_ids[number] for number in case]}
        if self.n_readers:
            table["annotator"] = [f"r{number}" for number in self.readings.annotator]
            table["label"] = [self.classes[k] for k in self.readings.label]
        else:
            table |= {f"count:{name}": self.counts[case, k].tolist() for k, name in enumerate(self.classes)}
        further = {"weight": self.weights[0], "weight2": self.weights[1], "patient": self.patients}
        table |= {name: column[case].tolist() for name, column in further.items() if column is not None}
        if self.readings.first is not None:
            table["planned_read"] = [int(first) for first in self.readings.first]
        return table

    def predictions_table(self, *, rival: bool = False, complete: bool = False) -> dict[str, list[Any]]:
        """PREDICTIONS, of one column of probabilities where the world is binary and the table need not be complete."""
        probs, dpe = self.rival if rival else (self.probs, self.dpe)
        table: dict[str, list[Any]] = {"case_id": self.case_ids}
        for k, name in enumerate(self.classes):
            if complete or self.level != "binary" or name == "present":
                table[f"prob:{name}"] = probs[:, k].tolist()
        if dpe is not None:
            table["disagreement_prob"] = dpe.tolist()
        return table

    @property
    def columns(self) -> dict[str, str | None]:
        """Columns of LABELS with weights and patients, by the arguments that name them."""
        return {
            "weights": None if self.weights[0] is None else "weight",
            "weights2": None if self.weights[1] is None else "weight2",
            "cluster": None if self.patients is None else "patient",
        }


def write_csv(table: dict[str, list[Any]], path: Path) -> Path:
    """Write a table with every digit of its numbers."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(table)
        rows.writerows(zip(*table.values(), strict=True))
    return path


_NO_PAIR = "CL where no bin has a pair"

WORLDS = (
    World("plain", 1, 60, 3),
    World("two_classes", 2, 60, 2, n_bins=5, all_sums=True),
    World("eight_classes", 3, 80, 8, (1, 2, 3), kind="dirichlet", n_bins=20),
    World("no_or_one_label", 4, 60, 3, (0, 1, 2, 1, 3)),
    World("one_label_each", 5, 40, 3, (1,)),
    World("no_label", 6, 12, 3, (0,), n_readers=0),
    World("many_labels", 7, 40, 4, (5, 8, 11), n_readers=12, kind="dirichlet"),
    World("dirichlet", 8, 60, 4, (2, 3), kind="dirichlet"),
    World("mixture", 9, 60, 4, (1, 2, 4), kind="mixture"),
    World("ensemble", 10, 60, 4, (2, 3, 3), kind="ensemble"),
    World("no_disagreement_probs", 11, 60, 3, (2, 3), kind="dirichlet", with_dpe=False),
    World("paper_form", 12, 60, 3, debias="paper"),
    World("plugin_form", 13, 60, 3, debias="none", n_bins=5),
    World("patients", 14, 90, 4, (1, 2, 3), kind="dirichlet", per_patient=3),
    World("patients_paper_form", 15, 90, 3, (2, 3), debias="paper", per_patient=4, n_bins=20),
    World("patients_in_few_bins", 16, 90, 2, (0, 2, 3), per_patient=2, n_bins=5, all_sums=True),
    World("weights_of_order_1", 17, 80, 3, (1, 2, 3), weighted="first"),
    World("weights_of_both_orders", 18, 80, 3, (0, 1, 2, 3), kind="dirichlet", weighted="both"),
    World("weights_and_patients", 19, 100, 4, (1, 2, 3), kind="mixture", weighted="both", per_patient=3),
    World("weights_paper_form", 20, 80, 3, (1, 2, 3), debias="paper", weighted="both", n_bins=5),
    World("planned_reads", 21, 80, 3, (1, 2, 3), kind="dirichlet", planned=True, per_patient=2),
    World("planned_reads_weighted", 22, 80, 4, (0, 1, 2, 4), planned=True, weighted="both"),
    World("grades", 23, 70, 5, (1, 2, 3), level="ordinal", kind="dirichlet"),
    World("grades_of_patients", 24, 90, 4, (2, 3), level="ordinal", weighted="both", per_patient=3),
    World("binary", 25, 70, 2, (1, 2, 3), level="binary", kind="dirichlet"),
    World("binary_weighted", 26, 70, 2, (2, 3), level="binary", weighted="first", with_dpe=False, n_bins=5),
    World("on_the_edges", 27, 90, 2, (1, 2, 3), grid=5, n_bins=15),
    World("annotators_not_named", 28, 60, 3, (1, 2, 4), n_readers=0, per_patient=2, kind="ensemble"),
    World("two_annotators", 29, 60, 3, (2,), n_readers=2),
    # all cases are of one patient
    World("one_patient", 30, 20, 3, (2, 3), per_patient=20, changes=_NO_PAIR),
)
