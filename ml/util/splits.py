"""Partitions by group that never split a patient."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray

# rounds of moving groups at most; moves that gain less than rounding are none
_ROUNDS, _TINY = 20, 1e-12


def split_partitions(
    groups: Sequence[str], shares: dict[str, float], seed: int, strata: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.str_]:
    """Split cases by group (patient), so that no group falls into two partitions."""
    rng = np.random.default_rng(seed)
    names, first, number = np.unique(np.array(groups), return_index=True, return_inverse=True)
    stratum = np.zeros(len(names), dtype=np.int64) if strata is None else strata[first]
    chosen = np.empty(len(names), dtype="U12")
    bounds = np.cumsum(list(shares.values()))
    for value in np.unique(stratum):
        members = rng.permutation(np.flatnonzero(stratum == value))
        position = (np.arange(len(members)) + 0.5) / len(members)
        index = np.minimum(np.searchsorted(bounds, position), len(shares) - 1)
        chosen[members] = np.array(list(shares))[index]
    return chosen[number]


def split_folds(groups: Sequence[str], seed: int, n_folds: int = 5) -> npt.NDArray[np.int64]:
    """Number (N,) of the fold of each case; no group (N,) falls into two folds."""
    shares = {str(k): 1 / n_folds for k in range(n_folds)}
    return split_partitions(groups, shares, seed).astype(np.int64)


def held_out_folds(fold: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Masks (N,) of fitted and held-out cases by fold."""
    for k in np.unique(fold):
        yield fold != k, fold == k


def stratified_partitions(
    groups: Sequence[str], label_counts: npt.ArrayLike, shares: dict[str, float], seed: int
) -> npt.NDArray[np.str_]:
    """Split cases by group, stratified by class as far as groups allow."""
    # Iterative stratification (Sechidis, Tsoumakas and Vlahavas 2011) of groups, rarest class first.
    names, number = np.unique(np.array(groups), return_inverse=True)
    counts = np.asarray(label_counts, dtype=np.float64)
    labels = counts.sum(axis=1, keepdims=True)
    by_class = np.divide(counts, labels, out=np.zeros_like(counts), where=labels > 0)
    amounts = np.zeros((len(names), counts.shape[1] + 2))  # last: unlabelled and all cases
    np.add.at(amounts, number, np.hstack([by_class, labels == 0, np.ones_like(labels)]))
    total = amounts.sum(axis=0)
    amounts /= np.where(total > 0, total, 1)
    order = np.random.default_rng(seed).permutation(len(names))
    lacking = np.array(list(shares.values()))[:, None] * amounts.sum(axis=0)
    chosen = np.full(len(names), -1)
    for k in np.argsort(total, kind="stable"):
        members = order[(amounts[order, k] > 0) & (chosen[order] < 0)]
        for group in members[np.argsort(-amounts[members, k], kind="stable")]:
            part = int(np.lexsort((lacking[:, -1], lacking[:, k]))[-1])
            chosen[group], lacking[part] = part, lacking[part] - amounts[group]
    for part in range(len(shares)):
        sizes = np.bincount(chosen, minlength=len(shares))
        if sizes[part] == 0 and sizes.max() > 1:  # it gets a smallest group of the largest part
            spare = np.flatnonzero(chosen == sizes.argmax())
            chosen[spare[np.argmin(amounts[spare, -1])]] = part
    _level(chosen, amounts, np.array(list(shares.values())), order)
    return np.asarray(np.array(list(shares), dtype="U12")[chosen][number])


def _level(
    chosen: npt.NDArray[np.int64], amounts: npt.NDArray[np.float64], shares: FloatArray, order: npt.NDArray[np.intp]
) -> None:
    """Move groups while that lessens the squared shortage."""
    lacking = shares[:, None] * amounts.sum(axis=0)
    np.subtract.at(lacking, chosen, amounts)
    sizes = np.bincount(chosen, minlength=len(shares))
    for _ in range(_ROUNDS):
        before = chosen.copy()
        for group in order:
            here, amount = chosen[group], amounts[group]
            gain = lacking @ amount
            there = int(np.argmax(gain))
            if sizes[here] > 1 and gain[there] - gain[here] > amount @ amount + _TINY:
                lacking[here] += amount
                lacking[there] -= amount
                sizes[here], sizes[there], chosen[group] = sizes[here] - 1, sizes[there] + 1, there
        if (before == chosen).all():
            return
