"""Weights that correct for the selection of labelled cases and for nonresponse.

Every case has a known probability π of two planned labels: 1 where triage selected it, the audit rate ε elsewhere.
An estimate that needs two labels weights by 1/π (statistics: Horvitz and Thompson 1952), so that what is measured
on the cases read twice is true for all cases. Where planned reads were not answered, the weights of those that were
are raised within cells of selection and DPE quintile (weighting-class adjustment, Oh and Scheuren 1983).
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ml.messages import Message
from ml.util.arrays import FloatArray, IntArray

QUINTILES = 5
#: Share of planned reads without an answer above which estimates are warned about.
NON_RESPONSE_LIMIT = 0.02


class CellDocument(TypedDict):
    """A ``Cell`` as JSON values; ``arm`` is triage where triage selected its cases, else audit."""

    arm: str
    quintile: int
    planned: int
    answered: int
    waiting: int


@dataclass(frozen=True)
class Cell:
    """Planned and answered cases of one cell.

    Attributes:
        selected: whether triage selected its cases.
        quintile: of the DPE, 1 to 5 over all cases.
        planned: cases planned to get the labels that the order needs.
        answered: those of them that got them.
        waiting: those that may still get them in time.
    """

    selected: bool
    quintile: int
    planned: int
    answered: int
    waiting: int = 0

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
    """Weights of one order.

    Attributes:
        order: labels that the estimates need, 1 or 2.
        weight: (N,), 0 for a case that has fewer.
        cells: planned and answered, cell by cell.
    """

    order: int
    weight: FloatArray
    cells: list[Cell]

    @property
    def non_response(self) -> float:
        """Share of planned cases without the labels, those that wait for them not counted."""
        planned = sum(cell.planned - cell.waiting for cell in self.cells)
        return 1 - sum(cell.answered for cell in self.cells) / planned if planned else 0.0

    def warnings(self) -> list[str]:
        """Warnings about the weights."""
        texts: list[str] = []
        if self.non_response > NON_RESPONSE_LIMIT:
            texts.append(
                Message(
                    "{non_response:.1%} of the cases planned for {order} label{plural} did not get them; "
                    "adjusted by arm and disagreement",
                    non_response=self.non_response,
                    order=self.order,
                    plural="" if self.order == 1 else "s",
                )
            )
        lost = sum(cell.planned - cell.waiting for cell in self.cells if cell.answered == 0)
        if lost:
            texts.append(
                Message(
                    "{lost} planned cases lie in cells where nobody answered: no weight can stand in for them",
                    lost=lost,
                )
            )
        return texts


def quintiles(values: FloatArray) -> IntArray:
    """Quintile 1 to 5 (N,) of each value among all of them; ties fall together.

    >>> quintiles(np.array([0.1, 0.2, 0.3, 0.4, 0.5])).tolist()
    [1, 2, 3, 4, 5]
    """
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
    """Weights for estimates that need ``order`` planned labels per case.

    w_i = 1/π_i · (planned in i's cell) / (answered in i's cell), where the order-1 probability is 1 for every case.
    Planned cases that wait are among those that the answered ones stand for.

    Args:
        order: 1 or 2.
        n_planned: (N,) planned labels of closed cases.
        n_labels: (N,) planned labels that came.
        pi: (N,) probability of a second planned label.
        selected: (N,) whether triage selected the case.
        quintile: (N,) of the DPE, 1 to 5.
        waiting: (N,) whether a planned read is open and not due yet; None: of no case.

    Raises:
        ValueError: another order, or a planned case with probability 0.
    """
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
