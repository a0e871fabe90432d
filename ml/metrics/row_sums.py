"""The accumulator's sums in one pass over the cases, compiled where numba is installed (extra ``[fast]``).

The same sums as ``Accumulator`` takes with NumPy, for cases that come without clusters. Sums run over blocks of cases
and then over the blocks, so that rounding does not grow with the number of cases. Without numba the same functions run,
but slowly: this module is for tests then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from ml.arrays import ROW_SUM_TOLERANCE, FloatArray, IntArray
from ml.metrics.binning import BinSums

_F = TypeVar("_F", bound=Callable[..., Any])

#: Whether the functions here are compiled.
IS_COMPILED = find_spec("numba") is not None
# columns of a table of sums by slot
_CASES, _DIFF, _DIFF_SQ, _WEIGHT, _WEIGHT_SQ, _FREQ, _FREQ_SQ = range(7)
# what a sum has behind the means: weights and numbers of cases with one, two and three labels, and labels
_MEANS_END, _WEIGHTS_END, _USED_END = 8, 11, 14
_BLOCK = 4096


# short rows are added up by vectors; of what was looked at nothing is infinite or divides by zero
_ADDED, _LOOKED_AT = {"reassoc", "nnan", "nsz", "contract"}, {"reassoc"}


def _compiled(function: _F) -> _F:
    """A function of numbers that were looked at, compiled as part of whatever calls it."""
    return _compile(function, inline="always", fastmath=_ADDED)


def _compiled_for_any_number(function: _F) -> _F:
    """A function that may meet NaN: its comparisons assume nothing, whatever calls it."""
    return _compile(function, inline="never", fastmath=_LOOKED_AT)


def _compile(function: _F, inline: str, fastmath: set[str]) -> _F:
    """The function, compiled where numba is installed; what was compiled is kept beside the file or in the home."""
    if not IS_COMPILED:
        return function
    import numba

    njit: Any = numba.njit
    try:
        compiled: _F = njit(inline=inline, error_model="numpy", fastmath=fastmath, cache=True)(function)
    except RuntimeError:  # neither folder may be written to
        compiled = njit(inline=inline, error_model="numpy", fastmath=fastmath)(function)
    return compiled


@dataclass(frozen=True)
class RowSums:
    """Sums of cases.

    Attributes:
        tables: of the classes of cases with one label, of several, and of their disagreement.
        means: (8,) Σ of what the means are taken of, in the order of ``accumulator.MEANS``.
        weight: (3,) Σw of cases with one, two and three labels.
        used: (3,) numbers of such cases.
        n_labels: labels.
    """

    tables: tuple[BinSums, BinSums, BinSums]
    means: list[float]
    weight: list[float]
    used: list[int]
    n_labels: int


def row_sums(
    label_counts: IntArray,
    class_probs: FloatArray,
    disagreement_probs: FloatArray | None,
    weight: FloatArray | None,
    edges: FloatArray,
) -> RowSums | None:
    """Sums over cases; None where counts or probabilities are not what ``ml.arrays`` asks of them.

    To look at them here costs half of what it costs before: they come from memory once. No row is used before it was
    looked at, since a probability says where its sums lie.

    Args:
        label_counts: (N, K).
        class_probs: (N, K).
        disagreement_probs: (N,); 1 − Σf² where left out.
        weight: (N,); ones where left out.
        edges: (B + 1,) of bins of one width, those of every class.
    """
    n_slots, nothing = class_probs.shape[1] * (len(edges) - 1), np.empty(0)
    classes, disagreement = np.zeros((2, n_slots, 7)), np.zeros((len(edges) - 1, 7))
    sums = np.zeros(_USED_END + 1)
    sound = _add_rows(
        np.ascontiguousarray(label_counts),
        np.ascontiguousarray(class_probs),
        nothing if disagreement_probs is None else np.ascontiguousarray(disagreement_probs),
        nothing if weight is None else np.ascontiguousarray(weight),
        edges,
        ROW_SUM_TOLERANCE,  # given, as the next one: constants would be compiled in, and kept when they change
        _BLOCK,
        classes,
        disagreement,
        sums,
    )
    if not sound:
        return None
    single, several, apart = (_bin_sums(table, weight is None) for table in (*classes, disagreement))
    used = sums[_WEIGHTS_END:_USED_END].astype(np.int64).tolist()
    weights = used if weight is None else sums[_MEANS_END:_WEIGHTS_END].tolist()
    return RowSums(
        (single, several, apart), sums[:_MEANS_END].tolist(), [float(w) for w in weights], used, int(sums[_USED_END])
    )


def _bin_sums(table: FloatArray, unit: bool) -> BinSums:
    cases = table[:, _CASES].astype(np.int64)
    weight, weight_sq = (table[:, _CASES if unit else column].copy() for column in (_WEIGHT, _WEIGHT_SQ))
    freq, diff, freq_sq, diff_sq = (table[:, column].copy() for column in (_FREQ, _DIFF, _FREQ_SQ, _DIFF_SQ))
    return BinSums(cases, cases, weight, freq, freq - diff, diff, freq_sq, weight_sq, weight_sq, diff_sq)


@_compiled
def _add_rows(
    counts: IntArray,
    probs: FloatArray,
    dpe: FloatArray,
    weights: FloatArray,
    edges: FloatArray,
    tolerance: float,
    block: int,
    classes: FloatArray,
    disagreement: FloatArray,
    sums: FloatArray,
) -> bool:
    """Add cases to the tables (2, K · B, 7) and (B, 7) and to the sums; whether all of them are sound."""
    of_classes, of_disagreement, of_sums = np.zeros_like(classes), np.zeros_like(disagreement), np.zeros_like(sums)
    for start in range(0, len(counts), block):
        of_classes[:], of_disagreement[:], of_sums[:] = 0.0, 0.0, 0.0
        for row in range(start, min(start + block, len(counts))):
            total = _labels_if_sound(counts, probs, row, tolerance)
            if total < 0:
                return False
            if total > 0:
                weight = 1.0 if weights.size == 0 else weights[row]
                _add_classes(
                    counts, probs, row, 1.0 / total, weight, weights.size > 0, edges, of_classes[min(total, 2) - 1]
                )
                given = -1.0 if dpe.size == 0 else dpe[row]
                observed, stated = _add_terms(counts, probs, row, total, weight, given, of_sums)
                if total > 1:
                    _add_entry(
                        of_disagreement, _bin_of(stated, edges), weight, weights.size > 0, observed, observed - stated
                    )
        classes += of_classes
        disagreement += of_disagreement
        sums += of_sums
    return True


@_compiled_for_any_number
def _labels_if_sound(counts: IntArray, probs: FloatArray, row: int, tolerance: float) -> int:
    """Labels of a case, −1 where ``as_label_counts`` or ``as_class_probs`` would refuse it."""
    total, refused, mass = 0, 0, 0.0
    for k in range(probs.shape[1]):
        count, prob = counts[row, k], probs[row, k]
        total += count
        mass += prob
        # not "or", which is a branch; and NaN is not at least zero
        refused += (not prob >= 0.0) | (count < 0)
    return total if refused == 0 and abs(mass - 1.0) <= tolerance else -1


@_compiled
def _bin_of(prob: float, edges: FloatArray) -> int:
    """Bin [a, b) of a probability, as ``uniform_bin_index`` gives it; the last bin is closed."""
    n_bins = len(edges) - 1
    at = min(int(prob * n_bins), n_bins - 1)
    # the product rounds, so that a probability next to an edge may land one bin off
    if prob < edges[at]:
        at -= 1
    elif at + 1 < n_bins and prob >= edges[at + 1]:
        at += 1
    return at


@_compiled
def _add_entry(
    table: FloatArray, slot: int | np.uint64, weight: float, weighted: bool, freq: float, gap: float
) -> None:
    """Add one probability to its slot."""
    diff = weight * gap
    table[slot, _CASES] += 1.0
    table[slot, _DIFF] += diff
    table[slot, _DIFF_SQ] += diff * diff
    if weighted:
        table[slot, _WEIGHT] += weight
        table[slot, _WEIGHT_SQ] += weight * weight
    table[slot, _FREQ] += weight * freq
    table[slot, _FREQ_SQ] += weight * freq * freq


@_compiled
def _add_classes(
    counts: IntArray,
    probs: FloatArray,
    row: int,
    share: float,
    weight: float,
    weighted: bool,
    edges: FloatArray,
    table: FloatArray,
) -> None:
    """Add the classes of a case to a table; a label is the share of its labels."""
    n_bins = len(edges) - 1
    for k in range(probs.shape[1]):
        prob = probs[row, k]
        # as ``_bin_of``, which compiled takes twice as long when it is called here
        at = min(int(prob * n_bins), n_bins - 1)
        if prob < edges[at]:
            at -= 1
        elif at + 1 < n_bins and prob >= edges[at + 1]:
            at += 1
        freq = counts[row, k] * share
        # unsigned: nothing is asked of a place that cannot be counted from the end
        _add_entry(table, np.uint64(k * n_bins + at), weight, weighted, freq, freq - prob)


@_compiled
def _statistic(observed: float, predicted: float) -> float:
    """As ``statistic_terms``."""
    return (observed - predicted) ** 2 + observed * (1 - observed)


@_compiled
def _add_terms(
    counts: IntArray, probs: FloatArray, row: int, total: int, weight: float, given: float, sums: FloatArray
) -> tuple[float, float]:
    """Add the terms of a case to the sums; return its φ̂ and its DPE, 1 − Σf² where none was given (below zero)."""
    share = 1.0 / total
    plugin, frequencies, squares, largest, most = _squares(counts, probs, row, share)
    agreed, hit = _leaders(counts, probs, row, largest, most)
    spread = 1 - frequencies
    sums[_USED_END] += total
    sums[_MEANS_END] += weight
    sums[_WEIGHTS_END] += 1.0
    sums[0] += weight * (agreed * share)
    sums[1] += weight * (plugin + spread)
    if total == 1:
        return 0.0, 0.0
    sums[_MEANS_END + 1] += weight
    sums[_WEIGHTS_END + 1] += 1.0
    unbiased = spread / (total - 1)
    observed = unbiased * total
    stated = given if given >= 0 else _differ(probs, row, largest)
    loss = _statistic(observed, stated)
    sums[2] += weight * (plugin - unbiased)
    sums[3] += weight * plugin
    sums[4] += weight * loss
    sums[5] += weight * (loss - _statistic(observed, 1 - largest))
    sums[6] += weight * (loss - _statistic(observed, 1 - squares))
    if total >= 3:
        sums[7] += weight * hit
        sums[_MEANS_END + 2] += weight
        sums[_WEIGHTS_END + 2] += 1.0
    return observed, stated


@_compiled
def _squares(counts: IntArray, probs: FloatArray, row: int, share: float) -> tuple[float, float, float, float, int]:
    """Σ(μ̂ − z)², Σμ̂² and Σz² of a case, its largest probability, and most labels of a class."""
    plugin, frequencies, squares, largest, most = 0.0, 0.0, 0.0, probs[row, 0], counts[row, 0]
    for k in range(probs.shape[1]):
        prob, count = probs[row, k], counts[row, k]
        freq = count * share
        plugin += (freq - prob) ** 2
        frequencies += freq * freq
        squares += prob * prob
        largest, most = max(largest, prob), max(most, count)
    return plugin, frequencies, squares, largest, most


@_compiled
def _leaders(counts: IntArray, probs: FloatArray, row: int, largest: float, most: int) -> tuple[float, float]:
    """Labels of a case that name the most probable class, and whether that has most; equal leaders share."""
    leading, labels, frequent, both = 0, 0, 0, 0
    for k in range(probs.shape[1]):
        leads, is_frequent = probs[row, k] == largest, counts[row, k] == most
        leading += leads
        labels += counts[row, k] if leads else 0
        frequent += is_frequent
        both += leads & is_frequent
    return labels / leading, both / (leading * frequent)


@_compiled
def _differ(probs: FloatArray, row: int, largest: float) -> float:
    """1 − Σf², as ``gini`` computes it."""
    rest, terms, left_out = 0.0, 0.0, False
    for k in range(probs.shape[1]):
        if probs[row, k] == largest and not left_out:
            left_out = True
        else:
            rest += probs[row, k]
            terms += probs[row, k] * (1 - probs[row, k])
    return largest * rest + terms
