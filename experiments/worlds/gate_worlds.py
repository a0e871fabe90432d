"""Worlds in which the gate of a recalibration is tried: laboratories with known truth, and candidates of known worth.

Five annotators, 1,000 cases in each partition, patients of five; by the champion's disagreement probability a tenth of
the cases is read twice for certain, and a tenth of the others for audit. Written before the gate, so that the gate is
not made for them. ``worlds`` has each with the share of passes that is asked of it, ``true_change`` what is true of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from ml.calibration.scaling import fit_temperature
from ml.distributions.families import DirichletCpe, softmax_probs
from ml.util.arrays import FloatArray, IntArray

CLASSES, PER_PATIENT, N_ANNOTATORS, N_CASES = 4, 5, 5, 1_000
CERTAIN_SHARE, AUDIT_RATE = 0.1, 0.1
#: Cases by which what is true is computed.
LARGE = 50_000


@dataclass(frozen=True)
class Crowd:
    """Annotators: who reads how much, and what each makes of an opinion.

    Attributes:
        shares: (R,) of first labels.
        answers: (R, K, K) probability of answer l where the opinion is k.
    """

    shares: FloatArray
    answers: FloatArray

    def said(self, true_probs: FloatArray) -> FloatArray:
        """Probability (R, N, K) of each annotator's answers."""
        return np.asarray(np.einsum("nk,rkl->rnl", true_probs, self.answers))


def _next(probs: FloatArray) -> FloatArray:
    """Probabilities moved to the next class."""
    return np.roll(probs, 1, axis=-1)


ALIKE = Crowd(np.full(N_ANNOTATORS, 1 / N_ANNOTATORS), np.tile(np.eye(CLASSES), (N_ANNOTATORS, 1, 1)))
#: One annotator gives 30 % of the labels and moves half of them to the next class.
ONE_BAD = Crowd(
    np.array([0.175] * 4 + [0.3]),
    np.concatenate([ALIKE.answers[:4], (0.5 * np.eye(CLASSES) + 0.5 * _next(np.eye(CLASSES)))[None]]),
)


@dataclass(frozen=True)
class Predictor:
    """A network and its calibration.

    Attributes:
        sharpness: factor of the logits, 1 / temperature.
        log_concentration: of every case.
        network: 0, or 1 for the same network trained with another seed.
        moved: share of the probability that goes to the next class.
    """

    sharpness: float
    log_concentration: float
    network: int = 0
    moved: float = 0.0

    def predict(self, logits: FloatArray) -> DirichletCpe:
        """Predictions by the logits (2, N, K) of both networks."""
        probs = softmax_probs(self.sharpness * logits[self.network])
        mixed = (1 - self.moved) * probs + self.moved * _next(probs)
        return DirichletCpe(mixed, np.full(len(mixed), self.log_concentration))


@dataclass(frozen=True)
class Partition:
    """Cases of one partition and their labels.

    Attributes:
        true_probs: (N, K) opinions.
        logits: (2, N, K) of both networks.
        patient: (N,).
        pi: (N,) probability of a second planned read.
        case: (M,) of each label.
        annotator: (M,).
        label: (M,) class; the first N labels are the first of each case.
    """

    true_probs: FloatArray
    logits: FloatArray
    patient: IntArray
    pi: FloatArray
    case: IntArray
    annotator: IntArray
    label: IntArray

    def counts(self, without: int | None = None) -> IntArray:
        """Label histograms (N, K), without those of one annotator if he is named."""
        kept = np.ones(len(self.case), dtype=bool) if without is None else self.annotator != without
        counts = np.zeros(self.true_probs.shape, dtype=np.int64)
        np.add.at(counts, (self.case[kept], self.label[kept]), 1)
        return counts


#: A candidate, from the fitting partition's labels without those of one annotator.
Fit = Callable[[Partition, int | None], Predictor]


@dataclass(frozen=True)
class World:
    """A laboratory, its champion and how candidates come.

    Attributes:
        name: in words.
        crowd: annotators.
        champion: what is served.
        fit: makes the candidate.
        passes: least and largest share of passes asked of the gate.
        attempts: over how many attempts.
    """

    name: str
    crowd: Crowd
    champion: Predictor
    fit: Fit
    passes: tuple[float, float]
    attempts: int = 1


def _cases(rng: np.random.Generator, n: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """Opinions, logits of both networks, and patients."""
    patient = np.arange(n) // PER_PATIENT
    scores = rng.normal(size=(patient[-1] + 1, CLASSES))[patient] + 2.2 * rng.normal(size=(n, CLASSES))
    logits = scores + 0.8 * rng.normal(size=(2, n, CLASSES))
    return softmax_probs(1.3 * scores), logits, patient


def draw_partition(world: World, rng: np.random.Generator, n: int = N_CASES) -> Partition:
    """One partition, read once by somebody and by the champion's plan once more by somebody else."""
    true_probs, logits, patient = _cases(rng, n)
    dpe = world.champion.predict(logits).disagreement_probs
    pi = np.where(dpe > certain_above(world.champion), 1.0, AUDIT_RATE)
    twice = np.flatnonzero(rng.random(n) < pi)
    first, second = _two_readers(rng, world.crowd.shares, n)
    case = np.concatenate([np.arange(n), twice])
    annotator = np.concatenate([first, second[twice]])
    said = world.crowd.said(true_probs)[annotator, case]
    label = (rng.random((len(case), 1)) > said.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return Partition(true_probs, logits, patient, pi, case, annotator, label)


def _two_readers(rng: np.random.Generator, shares: FloatArray, n: int) -> tuple[IntArray, IntArray]:
    """Two different annotators for each case, drawn by their shares."""
    # the two largest of Gumbel draws are a sample without replacement
    ranked = np.argsort(-(np.log(shares) + rng.gumbel(size=(n, len(shares)))), axis=1)
    return ranked[:, 0], ranked[:, 1]


@cache
def certain_above(champion: Predictor) -> float:
    """Disagreement probability above which a champion's plan has every case read twice."""
    dpe = champion.predict(_large(ALIKE_KEY)[1]).disagreement_probs
    return float(np.quantile(dpe, 1 - CERTAIN_SHARE))


ALIKE_KEY, ONE_BAD_KEY = "alike", "one bad"
_CROWDS = {ALIKE_KEY: ALIKE, ONE_BAD_KEY: ONE_BAD}


@cache
def _large(crowd: str) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Opinions, logits, probabilities of a first label, and of two labels that differ, of many cases."""
    true_probs, logits, _ = _cases(np.random.default_rng(15), LARGE)
    shares, said = _CROWDS[crowd].shares, _CROWDS[crowd].said(true_probs)
    first = np.einsum("r,rnk->nk", shares, said)
    differ = np.zeros(LARGE)
    for r, share in enumerate(shares):
        for s in range(len(shares)):
            if r != s:
                agree = np.einsum("nk,nk->n", said[r], said[s])
                differ += share * shares[s] / (1 - share) * (1 - agree)
    return true_probs, logits, first, differ


def losses(predictor: Predictor, crowd: str = ALIKE_KEY) -> tuple[float, float]:
    """What is true: L of a predictor against one more annotator's label, and its L_φ against two."""
    _, logits, first, differ = _large(crowd)
    found = predictor.predict(logits)
    probs, dpe = found.class_probs, found.disagreement_probs
    squared = 1 - 2 * np.einsum("nk,nk->n", first, probs) + np.einsum("nk,nk->n", probs, probs)
    return float(squared.mean()), float((dpe**2 + differ * (1 - 2 * dpe)).mean())


def true_change(world: World, candidate: Predictor) -> tuple[float, float]:
    """ΔL and ΔL_φ of a candidate against the champion of its world; negative is better."""
    crowd = ONE_BAD_KEY if world.crowd is ONE_BAD else ALIKE_KEY
    before, after = losses(world.champion, crowd), losses(candidate, crowd)
    return after[0] - before[0], after[1] - before[1]


@cache
def best() -> Predictor:
    """The best calibration of the network."""
    sharpness = minimize_scalar(lambda s: losses(Predictor(s, 0.0))[0], bounds=(0.3, 3), method="bounded").x
    a = minimize_scalar(lambda a: losses(Predictor(sharpness, a))[1], bounds=(-5, 8), method="bounded").x
    return Predictor(float(sharpness), float(a))


def worse_by(predictor: Predictor, loss: float, disagreement_loss: float) -> Predictor:
    """A predictor too sharp and too sure that annotators agree, worse by so much in L and in L_φ.

    Raises:
        ValueError: there is none.
    """
    before = losses(predictor)
    sharpness = predictor.sharpness
    if loss:
        wanted = before[0] + loss
        sharpness = float(brentq(lambda s: losses(Predictor(s, 0.0))[0] - wanted, predictor.sharpness, 12.0))
    bottom = minimize_scalar(lambda a: losses(Predictor(sharpness, a))[1], bounds=(-5, 12), method="bounded").x
    target = before[1] + disagreement_loss
    a = float(brentq(lambda a: losses(Predictor(sharpness, a))[1] - target, -12.0, float(bottom)))
    return Predictor(sharpness, a)


@cache
def fair() -> Predictor:
    """A champion that is nearly right: classes as well as they can be, disagreement a little too rare."""
    return worse_by(best(), 0.0, 0.02)


def fixed(candidate: Predictor) -> Fit:
    """A candidate that was made elsewhere, whatever the labels say."""
    return lambda partition, without: candidate


def refit(partition: Partition, without: int | None) -> Predictor:
    """Temperature and one concentration by maximum likelihood, as a recalibration fits them."""
    counts = partition.counts(without)
    labelled = np.flatnonzero(counts.sum(axis=1))
    logits, seen = partition.logits[0][labelled], counts[labelled]
    log_temperature = fit_temperature(logits, seen)[0]
    probs = softmax_probs(logits * np.exp(-log_temperature))

    def misfit(a: float) -> float:
        return -float(DirichletCpe(probs, np.full(len(probs), a)).log_likelihood(seen).sum())

    a = minimize_scalar(misfit, bounds=(-6, 8), method="bounded").x
    return Predictor(float(np.exp(-log_temperature)), float(a))


def learn_moved(champion: Predictor) -> Fit:
    """A candidate that learns from the labels how much to move to the next class, and nothing else."""

    def fit(partition: Partition, without: int | None) -> Predictor:
        counts = partition.counts(without)

        def misfit(moved: float) -> float:
            probs = replace(champion, moved=moved).predict(partition.logits).class_probs
            return -float((counts * np.log(np.maximum(probs, 1e-12))).sum())

        return replace(champion, moved=float(minimize_scalar(misfit, bounds=(0, 0.5), method="bounded").x))

    return fit


@cache
def worlds() -> tuple[World, ...]:
    """The worlds of the gate's operating characteristics; found numerically, so made when first asked for."""
    optimum, nearly = best(), fair()
    equal = (0.0, 0.05)
    return (
        World("better by .047 in both", ALIKE, worse_by(optimum, 0.047, 0.047), fixed(optimum), (0.8, 1.0)),
        World("better by .03 in L", ALIKE, worse_by(nearly, 0.03, 0.0), fixed(nearly), (0.7, 1.0)),
        World("identical", ALIKE, nearly, fixed(nearly), equal, 10),
        World("refitted on the same labels", ALIKE, optimum, refit, equal, 10),
        World("another seed", ALIKE, nearly, fixed(replace(nearly, network=1)), equal, 10),
        World("worse by .01 in L", ALIKE, nearly, fixed(worse_by(nearly, 0.01, 0.0)), (0.0, 0.025)),
        World("worse by .01 in L_φ", ALIKE, nearly, fixed(worse_by(nearly, 0.0, 0.01)), (0.0, 0.025)),
        World("lives on one annotator", ONE_BAD, nearly, learn_moved(nearly), (0.0, 0.2)),
    )
