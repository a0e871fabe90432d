"""Sums per (cluster, bin) cell for the clustered pair form of CL; memory grows with occupied cells."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import BinSums, sums_by_slot
from ml.metrics.cluster_bin_sums import ClusterBinSums
from ml.util.arrays import FloatArray, IntArray


class ClusterCells:
    """Σw and Σwd of every (cluster, slot) cell, slot being a bin of a class.

    Args:
        n_slots: number of slots.
    """

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self.numbers: dict[str, int] = {}
        self._parts: list[tuple[IntArray, FloatArray, FloatArray]] = []

    def add(self, names: npt.NDArray[Any], cells: ClusterBinSums) -> None:
        """Add cells.

        Args:
            names: (G,) of the clusters that the cells' numbers stand for.
            cells: of a batch.
        """
        occurs = np.bincount(cells.cluster, minlength=len(names)) > 0
        numbers = np.zeros(len(names), dtype=np.int64)
        numbers[occurs] = self._number(names[occurs].tolist())
        keys = numbers[cells.cluster] * self.n_slots + cells.slot
        self._parts.append((keys, cells.weight, cells.diff))
        if sum(len(part[0]) for part in self._parts[1:]) > len(self._parts[0][0]):  # amortised: doubles at least
            self._compact()

    def _number(self, names: list[Any]) -> IntArray:
        return np.array([self.numbers.setdefault(str(name), len(self.numbers)) for name in names], dtype=np.int64)

    def _compact(self) -> tuple[IntArray, FloatArray, FloatArray]:
        if not self._parts:
            return np.empty(0, dtype=np.int64), np.empty(0), np.empty(0)
        if len(self._parts) > 1:
            keys, weight, diff = (np.concatenate(column) for column in zip(*self._parts, strict=True))
            self._parts = [_gathered(keys, weight, diff)]
        return self._parts[0]

    def merge(self, other: "ClusterCells") -> None:
        """Add another's sums; clusters of the same name are one."""
        keys, weight, diff = other._compact()
        ours = self._number(list(other.numbers))
        moved = ours[keys // other.n_slots] * self.n_slots + keys % other.n_slots if keys.size else keys
        self._parts.append(_gathered(moved, weight, diff))

    def per_slot(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Number of cells, Σ (Σw)² and Σ (Σwd)² over the cells of each slot (n_slots,)."""
        keys, weight, diff = self._compact()
        slot = keys % self.n_slots
        cells = np.asarray(np.bincount(slot, minlength=self.n_slots), dtype=np.int64)
        return cells, sums_by_slot(slot, weight**2, self.n_slots), sums_by_slot(slot, diff**2, self.n_slots)

    def within(self, sums: BinSums) -> BinSums:
        """Sums of slots with what follows from these cells."""
        number, weight_sq, diff_sq = self.per_slot()
        return replace(sums, cells=number, cell_weight_sq=weight_sq, cell_diff_sq=diff_sq)

    def owners(self) -> npt.NDArray[np.intp]:
        """A cluster (n_slots,) that weighs something in each slot, −1 where there is none."""
        keys, weight, _ = self._compact()
        owner = np.full(self.n_slots, -1)
        here = keys[weight > 0]
        owner[here % self.n_slots] = here // self.n_slots
        return owner

    def merged(self, target: npt.NDArray[np.intp]) -> "ClusterCells":
        """The same cells where slots go to others (n_slots,); not for adding to."""
        keys, weight, diff = self._compact()
        cells = ClusterCells(self.n_slots)
        cells._parts = [_gathered(keys // self.n_slots * self.n_slots + target[keys % self.n_slots], weight, diff)]
        return cells

    def to_dict(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        keys, weight, diff = self._compact()
        return {
            "clusters": list(self.numbers),
            "keys": keys.tolist(),
            "weight": weight.tolist(),
            "diff": diff.tolist(),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any], n_slots: int) -> "ClusterCells":
        """Read back what ``to_dict`` wrote.

        Raises:
            ValueError: fields of different lengths.
        """
        cells = cls(n_slots)
        cells._number(document["clusters"])
        keys = np.array(document["keys"], dtype=np.int64)
        weight, diff = (np.array(document[name], dtype=np.float64) for name in ("weight", "diff"))
        if not keys.shape == weight.shape == diff.shape or (keys.size and keys.max() >= len(cells.numbers) * n_slots):
            raise ValueError("cluster sums do not fit each other")
        cells._parts.append((keys, weight, diff))
        return cells


def _gathered(keys: IntArray, weight: FloatArray, diff: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
    """Sums by distinct key, keys rising."""
    if keys.size == 0:
        return keys, weight, diff
    order = np.argsort(keys, kind="stable")  # quick where long runs are in order already
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    return ordered[starts], np.add.reduceat(weight[order], starts), np.add.reduceat(diff[order], starts)
