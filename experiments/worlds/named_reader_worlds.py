"""Simulated laboratories whose annotators differ, for ``experiments.named_readers``; written before any fit was.

Five situations, each made in two ways: by the model's own mechanism (an annotator turns an opinion into an answer by a
matrix of confusions) and by another one (annotators whose log-odds are shifted and noisy, or who shift the borders of
ordered classes), so that a model of confusions cannot win by being the truth.

=========== ======================================== =======================================================
situation   by confusions                            otherwise
=========== ======================================== =======================================================
alike       everybody says what they think           everybody's log-odds are noisy in the same way
novice      one says something else in 40 % of cases  one has flattened and noisier log-odds
biased half half call classes 2 and 3 by the one below half see every border .8 higher (ordered classes)
copier      one repeats an earlier label half of the time the same, all annotators with log-odds of their own
drifting    one goes from sure to saying something else in half of the cases  one's borders move by 1.2
=========== ======================================== =======================================================
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax, softmax
from scipy.stats import norm

from ml.util.arrays import FloatArray, IntArray

N_CLASSES = 5
SITUATIONS = ("alike", "novice", "biased half", "copier", "drifting")
MECHANISMS = ("confusions", "otherwise")
READERS = (2, 5, 12)
#: Borders of the ordered classes on the line that a case's position lies on.
BORDERS = np.array([-np.inf, -1.2, -0.4, 0.4, 1.2, np.inf])
#: Share of cases with one, two and three labels.
LABELS_PER_CASE = (0.5, 0.35, 0.15)
COPIES = 0.5


@dataclass(frozen=True)
class World:
    """One draw of a laboratory.

    Attributes:
        logits: (N, K) what a network says, too sure by a factor of 1.5.
        answers: (N, R, K) probability of each answer of each annotator, at the time of the case.
        case: (M,) case of each label, rising.
        annotator: (M,) who gave it.
        label: (M,) its class.
        time: (N,) from 0 to 1.
    """

    logits: FloatArray
    answers: FloatArray
    case: IntArray
    annotator: IntArray
    label: IntArray
    time: FloatArray

    @property
    def population(self) -> FloatArray:
        """(N, K) what an annotator drawn at random answers: the truth that estimates are held against."""
        return np.asarray(self.answers.mean(axis=1))

    def some(self, rows: slice) -> "World":
        """Cases from one number up to another, renumbered."""
        start, stop, _ = rows.indices(len(self.logits))
        kept = (self.case >= start) & (self.case < stop)
        return World(
            self.logits[rows],
            self.answers[rows],
            self.case[kept] - start,
            self.annotator[kept],
            self.label[kept],
            self.time[rows],
        )


def world(situation: str, mechanism: str, n_readers: int, n_cases: int, seed: int) -> World:
    """Draw a laboratory.

    Args:
        situation: one of ``SITUATIONS``.
        mechanism: one of ``MECHANISMS``.
        n_readers: R.
        n_cases: N.
        seed: of everything in it.
    """
    numbers = SITUATIONS.index(situation), MECHANISMS.index(mechanism), n_readers, seed
    rng = np.random.default_rng(numbers)
    time = rng.uniform(size=n_cases)
    ordered = mechanism == "otherwise" and situation in {"biased half", "drifting"}
    logits, answers = (_ordered if ordered else _nominal)(situation, mechanism, n_readers, time, rng)
    case, annotator = _plan(n_cases, n_readers, rng)
    chances = answers[case, annotator].cumsum(axis=1)
    label = (rng.uniform(size=case.size)[:, None] > chances[:, :-1]).sum(axis=1)
    if situation == "copier":
        label = _copied(case, annotator, label, rng)
    return World(1.5 * logits, answers, case, annotator, label.astype(np.int64), time)


def _plan(n_cases: int, n_readers: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Who reads what: one to three annotators drawn at random for each case."""
    wanted = rng.choice((1, 2, 3), size=n_cases, p=LABELS_PER_CASE)
    per_case = np.minimum(wanted, n_readers)
    order = rng.uniform(size=(n_cases, n_readers)).argsort(axis=1)
    annotator = np.concatenate([order[i, :n] for i, n in enumerate(per_case)])
    return np.repeat(np.arange(n_cases), per_case), annotator.astype(np.int64)


def _copied(case: IntArray, annotator: IntArray, label: IntArray, rng: np.random.Generator) -> IntArray:
    """Annotator 1 repeats the label before theirs, half of the time."""
    later = np.flatnonzero((annotator == 1) & (np.concatenate([[-1], case[:-1]]) == case))
    copies = later[rng.uniform(size=later.size) < COPIES]
    result = label.copy()
    result[copies] = label[copies - 1]
    return result


def _opinions(n_cases: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Logits (N, K), and the shares (N, K) of opinions: Dirichlet around their softmax, α0 = 6 or 1.5."""
    logits = rng.normal(scale=1.6, size=(n_cases, N_CLASSES))
    concentration = np.where(rng.uniform(size=n_cases) < 0.5, 6.0, 1.5)
    shapes = concentration[:, None] * softmax(logits, axis=1)
    gammas = rng.standard_gamma(np.maximum(shapes, 1e-3)) + 1e-12
    return logits, gammas / gammas.sum(axis=1, keepdims=True)


def _spread(share: FloatArray) -> FloatArray:
    """Confusions (..., K, K) that say another class, each alike, in a share (...) of the cases."""
    other = (1 - np.eye(N_CLASSES)) / (N_CLASSES - 1)
    return np.eye(N_CLASSES) * (1 - share)[..., None, None] + other * share[..., None, None]


def _confusions(situation: str, n_readers: int, time: FloatArray) -> FloatArray:
    """(N, R, K, K)."""
    result = np.tile(np.eye(N_CLASSES), (len(time), n_readers, 1, 1))
    if situation == "novice":
        result[:, 0] = _spread(np.full(len(time), 0.4))
    elif situation == "drifting":
        result[:, 0] = _spread(0.5 * time)
    elif situation == "biased half":
        for reader in range(n_readers // 2):
            result[:, reader, 2, [2, 1]] = 0.55, 0.45
            result[:, reader, 3, [3, 2]] = 0.75, 0.25
    return result


def _nominal(
    situation: str, mechanism: str, n_readers: int, time: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Logits (N, K) and answers (N, R, K) where classes have no order."""
    logits, opinions = _opinions(len(time), rng)
    if mechanism == "confusions":
        confusions = _confusions(situation, n_readers, time)
        return logits, np.einsum("nk,nrkl->nrl", opinions, confusions)
    shift = rng.normal(scale=0.7 if situation == "copier" else 0.0, size=(n_readers, N_CLASSES))
    sharpness, noise = np.ones(n_readers), np.full(n_readers, 0.5)
    if situation == "novice":
        sharpness[0], noise[0] = 0.35, 1.2
    own = rng.normal(size=(len(time), n_readers, N_CLASSES)) * noise[:, None]
    odds = sharpness[:, None] * log_softmax(np.log(opinions), axis=1)[:, None] + shift + own
    return logits, softmax(odds, axis=2)


def _ordered(
    situation: str, mechanism: str, n_readers: int, time: FloatArray, rng: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Logits (N, K) and answers (N, R, K) where classes are ordered and annotators shift their borders."""
    position = rng.normal(scale=1.2, size=len(time))
    width = np.where(rng.uniform(size=len(time)) < 0.5, 0.15, 0.5)
    seen_at = position + rng.normal(scale=0.3, size=len(time))
    shift = np.zeros((len(time), n_readers))
    if situation == "biased half":
        shift[:, : n_readers // 2] = 0.8
    else:
        shift[:, 0] = 1.2 * time
    logits = np.log(np.maximum(_between(seen_at, np.hypot(width, 0.3)), 1e-6))
    answers = _between((position[:, None] - shift).ravel(), np.repeat(width, n_readers))
    return logits, answers.reshape(len(time), n_readers, N_CLASSES)


def _between(position: FloatArray, width: FloatArray) -> FloatArray:
    """Probability (N, K) of each class for a position that is seen with a normal error."""
    below: Callable[[FloatArray], FloatArray] = norm.cdf
    return np.diff(below((BORDERS - position[:, None]) / width[:, None]), axis=1)
