"""Metrics with jackknife intervals from sums over groups of patients (``ml.metrics.group_sums``).

The delete-a-group jackknife: each group in turn is left out. With G groups drawn by chance its standard error is that
of the delete-one jackknife up to the chance of how patients fell into groups, a share of about 1/√(2(G − 1)), for
which Student's t with G − 1 degrees of freedom makes up (Kott 2001, J. Off. Statist. 17:521).
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from ml.metrics.binning import BinSums, Debias, sums_by_slot
from ml.metrics.cluster_bin_sums import ClusterBinSums
from ml.metrics.diagnostics import evaluation_warnings
from ml.metrics.document import FIRST_ORDER
from ml.metrics.group_sums import GroupSums
from ml.metrics.intervals import SHARE, SQUARED_LOSS
from ml.metrics.jackknife import Estimate, Replicates, Sample, ratio_replicates, root, to_estimate
from ml.metrics.reliability import Binned
from ml.metrics.skill import frequency_loss, skill_replicates
from ml.util.arrays import FloatArray

#: Groups with cases below which an interval is said not to hold.
FEW_GROUPS = 10

_BOUNDS = {"agreement": SHARE, "L": SQUARED_LOSS, "EL_plugin": SQUARED_LOSS, "L_D": SHARE, "accuracy": SHARE}


@dataclass(frozen=True)
class _Groups(Sample):
    """Groups in the place of the cases of a ``Sample``."""

    n: int
    # effective number of those
    cases_ess: float

    @property
    def ess(self) -> float:
        """Effective number of cases."""
        return self.cases_ess

    @property
    def effective_clusters(self) -> float:
        """Effective number of cases where each is its own cluster, else of groups."""
        return self.cases_ess if self.cluster is None else super().effective_clusters


@dataclass(frozen=True, kw_only=True)
class _GroupCells(ClusterBinSums):
    """Group sums per slot where each case is its own cluster and may pair with any other."""

    members: FloatArray
    members_weight_sq: FloatArray
    members_diff_sq: FloatArray

    @property
    def cells(self) -> FloatArray:  # type: ignore[override]
        """Cases, each a cell of its own."""
        return self.members

    @property
    def cell_weight_sq(self) -> FloatArray:
        """Σw² of each."""
        return self.members_weight_sq

    @property
    def cell_diff_sq(self) -> FloatArray:
        """Σ(wd)² of each."""
        return self.members_diff_sq

    def merged(self, target: npt.NDArray[np.intp], *, alone: bool) -> "_GroupCells":
        """Cells of slots that go to others; what a group has in slots that are joined becomes one."""
        keys, cell = np.unique(self.cluster.astype(np.int64) * target.size + target[self.slot], return_inverse=True)
        rest = (f.name for f in fields(self) if f.name not in {"slot", "cluster"})
        sums = {name: sums_by_slot(cell, getattr(self, name), keys.size) for name in rest}
        slot, cluster = (keys % target.size).astype(np.int32), (keys // target.size).astype(np.int32)
        return _GroupCells(slot, cluster, sums.pop("cases").astype(np.int32), **sums)

    def sums(self, n_slots: int) -> BinSums:
        """Sums over the cells of each slot (n_slots,)."""
        cells = sums_by_slot(self.slot.astype(np.intp), self.members, n_slots).astype(np.int64)
        return replace(super().sums(n_slots), cells=cells)


class _Jackknife:
    """Replicates of one ``GroupSums``, a group left out of each."""

    def __init__(self, sums: GroupSums, debias: Debias) -> None:
        self.sums, self.debias = sums, debias
        self.present = {order: np.flatnonzero(used) for order, used in sums.used.items()}
        self.samples = {order: self._sample(order) for order in sums.used}

    def _sample(self, order: int) -> _Groups:
        """Groups that have a case with enough labels."""
        here, sums = self.present[order], self.sums
        weight, square = sums.weight[order][here], float(sums.weight_sq[order].sum())
        n, ess = int(sums.used[order].sum()), float(weight.sum()) ** 2 / square if square > 0 else 0.0
        rows = np.arange(here.size)
        return _Groups(
            rows, weight, rows if sums.by_patient else None, here.size, sums.n_cases - n, whole=True, n=n, cases_ess=ess
        )

    def mean(self, name: str, order: int) -> Replicates:
        removed = self.sums.sums[name][self.present[order]]
        return ratio_replicates(float(removed.sum()), removed, self.samples[order])

    def binned(self, order: int, *tables: str) -> Binned:
        """A table, or the sum of two, as the groups' cells."""
        sums, slots, sample = self.sums, self.sums.slots[tables[0]], self.samples[order]
        table = sums.tables[tables[0]]
        for name in tables[1:]:
            table = table + sums.tables[name]
        grid = {f.name: getattr(table, f.name).reshape(sums.n_groups, -1)[self.present[order]] for f in fields(table)}
        group, slot = np.nonzero(grid["cases"])
        column = {name: values[group, slot] for name, values in grid.items()}
        cells = ClusterBinSums(
            slot.astype(np.int32),
            group.astype(np.int32),
            column["cases"].astype(np.int32),
            *(column[name] for name in ("weight", "freq", "diff", "weight_sq", "freq_sq")),
        )
        if not sums.by_patient:
            cells = _GroupCells(
                **{f.name: getattr(cells, f.name) for f in fields(cells)},
                members=column["cells"].astype(np.float64),
                members_weight_sq=column["cell_weight_sq"],
                members_diff_sq=column["cell_diff_sq"],
            )
        even = sample.ess >= sample.n * (1 - 1e-12)
        return Binned(
            sample, slots, self.debias, cells.sums(len(slots)), [cells] if slot.size else [], joining=not even
        )

    def estimate(self, replicates: Replicates, order: int, name: str = "", lonely: float = 0.0) -> Estimate:
        return to_estimate(replicates, self.samples[order], lonely, bounds=_BOUNDS.get(name))

    def first(self) -> dict[str, Estimate]:
        """Metrics of cases with one label or more."""
        sample, binned, loss = self.samples[1], self.binned(1, "single", "several"), self.mean("L", 1)
        constant = frequency_loss(binned.frequency_totals(), binned.frequency_sums(), sample)
        calibration = binned.estimate(self.debias)
        return {
            "agreement": self.estimate(self.mean("agreement", 1), 1, "agreement"),
            "L": self.estimate(loss, 1, "L"),
            "skill": self.estimate(skill_replicates(loss, constant), 1),
            "CL": calibration,
            "CL_plugin": binned.estimate("none"),
            "CE": root(calibration),
        }

    def second(self) -> dict[str, Estimate]:
        """Metrics of cases with two labels or more, and the accuracy of those with three."""
        binned, debias = self.binned(2, "several"), self.debias
        plugin, plain = self.mean("EL_plugin", 2), binned.replicates("none")
        epistemic, calibration = (
            (self.mean("EL", 2), binned.replicates(debias)) if debias != "none" else (plugin, plain)
        )
        lonely = binned.singleton_mass(debias)
        return {
            "EL": self.estimate(epistemic, 2),
            "EL_plugin": self.estimate(plugin, 2, "EL_plugin"),
            "CL_paired": self.estimate(calibration, 2, lonely=lonely),
            "DL": self.estimate(epistemic - calibration, 2, lonely=lonely),
            "DL_plugin": self.estimate(plugin - plain, 2),
            **self._disagreement(),
            "accuracy": self.estimate(self.mean("accuracy", 3), 3, "accuracy"),
        }

    def _disagreement(self) -> dict[str, Estimate]:
        sample, binned, loss = self.samples[2], self.binned(2, "disagreement"), self.mean("L_D", 2)
        observed = self._group_sums(binned)
        rate = ratio_replicates(float(observed.sum()), observed, sample)
        constant = Replicates(rate.value * (1 - rate.value), rate.without * (1 - rate.without))
        debiased = binned.estimate(self.debias)
        rules = {name: self.estimate(self.mean(name, 2), 2) for name in ("L_D_minus_max", "L_D_minus_gini")}
        return {
            "L_D": self.estimate(loss, 2, "L_D"),
            "skill_D": self.estimate(skill_replicates(loss, constant), 2),
            "CL_D": debiased,
            "CL_D_plugin": binned.estimate("none"),
            "CE_D": root(debiased),
            **rules,
        }

    def _group_sums(self, binned: Binned) -> FloatArray:
        """Σw φ̂ of each group."""
        sums = np.zeros(binned.sample.n_clusters)
        for cells in binned.cells:
            sums += np.bincount(cells.cluster, cells.freq, sums.size)
        return sums


@dataclass(frozen=True)
class GroupEvaluation:
    """Evaluation from sums over groups.

    Attributes:
        metrics: estimates by the names of ``evaluate``.
        warnings: what a reader of the estimates must know.
    """

    metrics: dict[str, Estimate]
    warnings: tuple[str, ...]


def evaluate_groups(first: GroupSums, second: GroupSums, debias: Debias = "pair") -> GroupEvaluation:
    """Every metric of ``evaluate`` with its 95 % interval.

    Args:
        first: sums with the weights (and the labels) of estimators that need one label.
        second: sums with those of estimators that need two; the same object where they do not differ.
        debias: form of CL.

    Returns:
        Values as those of ``evaluate``: to rounding where cases stand for themselves, and where they have patients as
        with the groups for clusters, intervals too. Standard errors are None where fewer than two groups have a case.
    """
    by_first, by_second = _Jackknife(first, debias), _Jackknife(second, debias)
    metrics = by_first.first() | by_second.second()

    def counted(name: str, estimate: Estimate) -> Estimate:
        order = 3 if name == "accuracy" else 2
        sample = by_first.samples[1] if name in FIRST_ORDER else by_second.samples[order]
        return replace(estimate, n=sample.n, dropped=sample.dropped, ess=sample.ess)

    counted_metrics = {name: counted(name, estimate) for name, estimate in metrics.items()}
    return GroupEvaluation(
        counted_metrics,
        (*_few_groups(by_first, by_second), *evaluation_warnings(counted_metrics, by_second.samples[2])),
    )


def _few_groups(first: _Jackknife, second: _Jackknife) -> list[str]:
    """Sentences about cases that are missing, or too few patients for an error."""
    texts = []
    for sample, labels, lost in (
        (first.samples[1], "a label", "every metric is"),
        (second.samples[2], "two labels", "EL, DL and every disagreement metric are"),
    ):
        if sample.n == 0:
            texts.append(f"no case has {labels}: {lost} empty")
        elif sample.n_clusters < FEW_GROUPS:
            fallen = f"{sample.n_clusters} of {first.sums.n_groups} groups that are left out in turn"
            texts.append(f"cases with {labels} fall into {fallen}: too few for intervals that hold")
    return texts
