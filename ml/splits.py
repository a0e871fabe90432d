"""Splits by group, so that cells of one patient never fall on both sides."""

import numpy as np
import numpy.typing as npt


def split_partitions(
    groups: list[str], shares: dict[str, float], seed: int, strata: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.str_]:
    """Split cases by group (patient), so that no group falls into two partitions.

    Args:
        groups: group of each case (N,).
        shares: partition → share of the groups; they sum to one.
        seed: of the shuffle.
        strata: (N,) split each stratum alike; a group must lie in one stratum.

    Returns:
        Partition of each case (N,).
    """
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
