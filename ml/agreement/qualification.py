"""Qualification test of an annotator against the labels of others.

The test asks whether a reader who guesses, or who confuses two
classes, explains the answers far better than one like the others.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from ml.agreement.one_annotator import agreement_with_others
from ml.util.arrays import FloatArray, IntArray

#: Chance of not passing for somebody who answers like the others.
LEVEL = 0.025
#: Share of answers that are taken for slips even where the pool makes none: one slip must not decide.
LEAST_SLIPS = 0.03
#: A cell is clear from this probability of its leading class on, else borderline.
CLEAR_FROM = 0.8
# draws of somebody like the others, by which the level is held
_DRAWS = 1000
# simulated readers of each kind
_RUNS = 200
# within which two sums of evidence are the same
_TIE = 1e-3
_SLIPS = np.arange(LEAST_SLIPS, 0.51, 0.01)


def slip_rate(left_out: FloatArray, answers: IntArray) -> float:
    """Share of random answers in the pool, from .03 to .5."""
    answer_probs, _ = agreement_with_others(left_out, answers)
    likelihood = np.log((1 - _SLIPS) * answer_probs[:, None] + _SLIPS / left_out.shape[1]).sum(axis=0)
    return float(_SLIPS[np.argmax(likelihood)])


def like_the_others(others: FloatArray, slips: float) -> FloatArray:
    """Answers (N, K) of a reader like the others: (1 − ε) π + ε/K."""
    return np.asarray((1 - slips) * others + slips / others.shape[1])


def _alternative_confusions(n_classes: int) -> FloatArray:
    """Alternatives (1 + K², K, K) of the test, answers last."""
    # half of the time: guessing, any other class for one, or a certain other class
    confusions = [0.5 * np.eye(n_classes) + 0.5 / n_classes]
    for k in range(n_classes):
        anything = np.eye(n_classes)
        anything[k] = 0.5 / (n_classes - 1)
        anything[k, k] = 0.5
        confusions.append(anything)
        for answer in (other for other in range(n_classes) if other != k):
            confused = np.eye(n_classes)
            confused[k, k] = confused[k, answer] = 0.5
            confusions.append(confused)
    return np.array(confusions)


def _evidence(others: FloatArray, slips: float) -> FloatArray:
    """Log-likelihood ratios (H, N, K) of habits by answers."""
    by_habit = np.einsum("nk,hky->hny", like_the_others(others, slips), _alternative_confusions(others.shape[1]))
    return np.asarray(np.log(by_habit / like_the_others(others, slips)))


def _largest_evidence(evidence: FloatArray, answers: IntArray) -> FloatArray:
    """Greatest evidence (R,) of any habit in answers (R, N)."""
    n_habits, n_cells, n_classes = evidence.shape
    one_hot = np.eye(n_classes, dtype=np.float32)[answers].reshape(*answers.shape[:-1], n_cells * n_classes)
    sums = one_hot @ evidence.reshape(n_habits, -1).T.astype(np.float32)
    return np.asarray(sums.max(axis=-1), dtype=np.float64)


def _draw(rng: np.random.Generator, probs: FloatArray, n: int) -> IntArray:
    edges = np.cumsum(probs, axis=1)
    points = rng.random((n, len(probs), 1)) * edges[:, -1:]
    return np.asarray(np.minimum((points > edges).sum(axis=-1), probs.shape[1] - 1))


@dataclass(frozen=True)
class QualificationVerdict:
    """Answers of a reader compared with those of the pool."""

    n: int
    mean: float
    of_pool: float
    difference: float
    low: float
    high: float
    p: float
    passed: bool


def judge_answers(others: FloatArray, answers: IntArray, slips: float) -> QualificationVerdict:
    """Judge a reader's answers to cells that others answered."""
    answer_probs, _ = agreement_with_others(others, answers)
    if len(answer_probs) < 2:
        raise ValueError(f"{len(answer_probs)} cells are too few for a test")
    evidence, like = _evidence(others, slips), like_the_others(others, slips)
    drawn = _largest_evidence(evidence, _draw(np.random.default_rng(0), like, _DRAWS))
    evidence_sum = float(_largest_evidence(evidence, answers))
    p = float((1 + (drawn >= evidence_sum - _TIE).sum()) / (1 + _DRAWS))
    expected = np.einsum("nk,nk->n", others, like)
    apart = answer_probs - expected
    half = float(stdtrit(len(answer_probs) - 1, 0.975) * apart.std(ddof=1) / np.sqrt(len(answer_probs)))
    mean, of_pool = float(answer_probs.mean()), float(expected.mean())
    return QualificationVerdict(
        len(answer_probs), mean, of_pool, mean - of_pool, mean - of_pool - half, mean - of_pool + half, p, p > LEVEL
    )


@dataclass(frozen=True)
class PassRates:
    """Simulated pass rates of three kinds of readers."""

    like_the_others: float
    guessing: float
    confusing: FloatArray


def pass_rates(others: FloatArray, slips: float) -> PassRates:
    """Simulate the pass rates of three kinds of readers."""
    if others.ndim != 2 or len(others) < 2:
        raise ValueError(f"cells of shape {others.shape} are too few for a test")
    rng, n_classes = np.random.default_rng(0), others.shape[1]
    evidence, like = _evidence(others, slips), like_the_others(others, slips)
    null = np.sort(_largest_evidence(evidence, _draw(rng, like, _DRAWS)))

    def share(probs: FloatArray) -> float:
        evidence_sums = _largest_evidence(evidence, _draw(rng, probs, _RUNS))
        above = _DRAWS - np.searchsorted(null, evidence_sums - _TIE)
        return float(np.mean((1 + above) / (1 + _DRAWS) > LEVEL))

    confusing = np.full(n_classes, np.nan)
    leading = others.argmax(axis=1)
    for k in np.unique(leading):
        beside = others[leading == k].sum(axis=0)
        beside[k] = -1.0
        habit = np.eye(n_classes)
        habit[k, k] = habit[k, beside.argmax()] = 0.5
        confusing[k] = share(like @ habit)
    return PassRates(share(like), share(np.full_like(others, 1 / n_classes)), confusing)


def balanced_choice(others: FloatArray, n: int, borderline: float, rng: np.random.Generator) -> IntArray:
    """Choose n cells at most, each leading class as often."""
    if not 0 <= borderline <= 1:
        raise ValueError(f"a share of {borderline}")
    clear = others.max(axis=1, initial=0.0) >= CLEAR_FROM
    n_borderline = min(int(np.sum(~clear)), round(borderline * n))
    leading = others.argmax(axis=1) if len(others) else np.zeros(0, dtype=np.int64)
    chosen = _in_turn(np.flatnonzero(~clear), leading, n_borderline, rng)
    chosen += _in_turn(np.flatnonzero(clear), leading, n - n_borderline, rng)
    return rng.permutation(np.array(chosen, dtype=np.int64))


def _in_turn(cells: IntArray, leading: IntArray, n: int, rng: np.random.Generator) -> list[int]:
    piles = [rng.permutation(cells[leading[cells] == k]).tolist() for k in np.unique(leading[cells])]
    rounds = max((len(pile) for pile in piles), default=0)
    return [pile[place] for place in range(rounds) for pile in piles if place < len(pile)][:n]
