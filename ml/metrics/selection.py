"""Second reads by design: probabilities and weights.

A case has two planned labels with a known probability π: 1 if triage
selected it, else the audit rate. Estimates weight by 1/π (Horvitz and
Thompson 1952), raised for unanswered reads within cells of selection
and DPE quintile (Oh and Scheuren 1983). A graded design lets π grow
with √φ, the standard deviation of the outcome (Neyman 1934).
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.messages import Message
from ml.metrics.cases import Sample
from ml.util.arrays import FloatArray, IntArray

QUINTILES = 5
#: Share of planned reads without an answer above which estimates are warned about.
NON_RESPONSE_LIMIT = 0.02


class CellDocument(TypedDict):
    """A ``Cell`` as JSON values; ``arm`` is triage or audit."""

    arm: str
    quintile: int
    planned: int
    answered: int
    waiting: int


@dataclass(frozen=True)
class Cell:
    """Planned and answered cases of one cell."""

    selected: bool  # whether triage selected its cases
    quintile: int  # of the DPE, 1 to 5 over all cases
    planned: int  # cases planned to get the labels that the order needs
    answered: int  # those of them that got them
    waiting: int = 0  # those that may still get them in time

    def to_dict(self) -> CellDocument:
        """Return it as JSON values."""
        return {
            "arm": "triage" if self.selected else "audit",
            "quintile": self.quintile,
            "planned": self.planned,
            "answered": self.answered,
            "waiting": self.waiting,
        }


@dataclass(frozen=True)
class SelectionWeights:
    """Weights of one order."""

    order: int  # labels that the estimates need, 1 or 2
    weight: FloatArray  # (N,), 0 for a case that has fewer
    cells: list[Cell]  # planned and answered, cell by cell

    @property
    def non_response(self) -> float:
        """Share of planned cases that were not answered."""
        planned = sum(cell.planned - cell.waiting for cell in self.cells)
        return 1 - sum(cell.answered for cell in self.cells) / planned if planned else 0.0

    def warnings(self) -> list[str]:
        """Warnings about the weights."""
        texts: list[str] = []
        if self.non_response > NON_RESPONSE_LIMIT:
            texts.append(
                Message(
                    "{non_response:.1%} of the cells planned for {order} label{plural} did not get them; "
                    "adjusted by read reason and disagreement",
                    non_response=self.non_response,
                    order=self.order,
                    plural="" if self.order == 1 else "s",
                )
            )
        lost = sum(cell.planned - cell.waiting for cell in self.cells if cell.answered == 0)
        if lost:
            texts.append(
                Message(
                    "{lost} planned cells are in groups without any answer and cannot be represented by weights",
                    lost=lost,
                )
            )
        return texts


def quintiles(values: FloatArray) -> IntArray:
    """Quintile 1 to 5 (N,) of each value; ties fall together."""
    if values.size == 0:
        return np.zeros(0, dtype=np.int64)
    edges = np.quantile(values, np.arange(1, QUINTILES) / QUINTILES, method="inverted_cdf")
    return np.searchsorted(edges, values, side="left") + 1


def selection_weights(
    order: int,
    n_planned: IntArray,
    n_labels: IntArray,
    pi: FloatArray,
    selected: npt.NDArray[np.bool_],
    quintile: IntArray,
    waiting: npt.NDArray[np.bool_] | None = None,
) -> SelectionWeights:
    """Weights of estimates that need ``order`` planned labels."""
    if order not in {1, 2}:
        raise ValueError(f"order must be 1 or 2, got {order}")
    planned, answered = n_planned >= order, n_labels >= order
    probability = np.ones(len(pi)) if order == 1 else np.asarray(pi, dtype=np.float64)
    if (probability[planned] <= 0).any():
        raise ValueError("a planned case has selection probability 0; its labels cannot stand for others")
    cell = np.where(selected, 0, QUINTILES) + quintile - 1
    used = planned & answered
    open_ones = planned & ~answered & (np.zeros(len(pi), dtype=bool) if waiting is None else waiting)
    planned_per_cell, got, open_yet = (
        np.bincount(cell[mask], minlength=2 * QUINTILES) for mask in (planned, used, open_ones)
    )
    factor = planned_per_cell / np.maximum(got, 1)
    weight = np.where(used, factor[cell] / np.where(planned, probability, 1.0), 0.0)
    cells = [
        Cell(
            number < QUINTILES,
            number % QUINTILES + 1,
            int(planned_per_cell[number]),
            int(got[number]),
            int(open_yet[number]),
        )
        for number in np.flatnonzero(planned_per_cell).tolist()
    ]
    return SelectionWeights(order, weight, cells)


# disagreement probabilities at or below which no scale makes a second read likely
_NEVER = 1e-12


def graded_probabilities(disagreement_probs: FloatArray, scale: float, floor: float) -> FloatArray:
    """π = clip(c √φ, π_min, 1) of each case (n,)."""
    return np.clip(scale * np.sqrt(disagreement_probs), floor, 1.0)


def graded_scale(disagreement_probs: FloatArray, share: float, floor: float) -> float:
    """The c for which the mean of π is a share of the cases."""
    positive = disagreement_probs[disagreement_probs > _NEVER]
    if positive.size == 0:
        return 0.0
    from scipy.optimize import brentq  # slow to load

    most = 1 / float(np.sqrt(positive.min()))

    def spare(scale: float) -> float:
        return float(graded_probabilities(disagreement_probs, scale, floor).mean()) - share

    if spare(0.0) >= 0:
        return 0.0
    return most if spare(most) <= 0 else float(brentq(spare, 0.0, most, xtol=1e-12))


def threshold_probabilities(disagreement_probs: FloatArray, share: float, floor: float) -> FloatArray:
    """π (n,) of the all-or-audit design with the same share."""
    n_second_reads = (share - floor) / (1 - floor) * len(disagreement_probs) if floor < 1 else 0.0
    values, group, sizes = np.unique(disagreement_probs, return_inverse=True, return_counts=True)
    above = sizes[::-1].cumsum()[::-1] - sizes
    certain = np.clip((n_second_reads - above) / sizes, 0.0, 1.0) if values.size else values
    return np.asarray(floor + (1 - floor) * certain[group])


def disagreements_caught(pi: FloatArray, observed: FloatArray, sample: Sample) -> float:
    """Share of all disagreements in a design's second reads."""
    return float(sample.weight @ (pi * observed) / (sample.weight @ observed))


def interval_length(pi: FloatArray, loss: FloatArray, sample: Sample, n_cases: int) -> float:
    """Length of a mean loss's 95 % interval under a design."""
    weight = sample.weight
    total = float(weight.sum())
    rest = loss - weight @ loss / total
    pairs = sample.per_cluster(weight * rest) ** 2 - sample.per_cluster((weight * rest) ** 2)
    variance = float((weight * rest**2 / pi).sum() + pairs.sum()) / (total * n_cases)
    return 2 * 1.96 * float(np.sqrt(max(variance, 0.0)))
