"""Cases and readers drawn from populations whose truth is known: what an interval for new readers must cover.

Cases belong to patients, predictions are overconfident, and readers differ in five ways, of which two are how the
interval does not model them: a few novices among careful readers, and readers who are all alike. Written before the
estimators that they judge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ml.distributions.families import softmax_probs
from ml.metrics.losses import exact_metrics
from ml.util.arrays import FloatArray, IntArray

K = 3
#: Least probability of a second read, and the share of the cases that triage reads twice for certain.
AUDIT_RATE, TRIAGED = 0.1, 0.15

Design = Literal["crossed", "service"]
#: Habits of readers: (R, …) arrays drawn from their population.
Habits = FloatArray


@dataclass(frozen=True)
class World:
    """A population of readers.

    Attributes:
        name: what it is called in tables.
        draw: R readers' habits.
        answers: class probabilities (R, N, K) of readers' answers about cases of true probabilities (N, K).
        goal: whether the interval for new readers is asked to cover 93 to 97 % here.
    """

    name: str
    draw: Callable[[int, np.random.Generator], Habits]
    answers: Callable[[Habits, FloatArray], FloatArray]
    goal: bool


def _leaning(n: int, rng: np.random.Generator) -> Habits:
    """Class preferences and sharpness, normal on the logarithm."""
    return np.concatenate([rng.normal(0, 0.5, (n, K)), rng.normal(0, 0.3, (n, 1))], axis=1)


def _lean(habits: Habits, q: FloatArray) -> FloatArray:
    sharpness = np.exp(habits[:, None, K:])
    return softmax_probs(sharpness * np.log(np.maximum(q, 1e-12)) + habits[:, None, :K])


def _confusing(n: int, rng: np.random.Generator) -> Habits:
    """Confusion matrices: a share of each class goes to others, the share and the classes each reader's own."""
    share = rng.beta(2, 8, (n, K, 1))
    matrices = share * rng.dirichlet(np.ones(K), (n, K)) + (1 - share) * np.eye(K)
    return np.asarray(matrices.reshape(n, K * K))


def _confuse(habits: Habits, q: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("nk,rkl->rnl", q, habits.reshape(-1, K, K)))


def _grading(n: int, rng: np.random.Generator) -> Habits:
    """Readers who grade higher or lower than others: the share that they move by one grade, up or down."""
    return np.clip(rng.normal(0, 0.15, (n, 1)), -0.6, 0.6)


def _grade(habits: Habits, q: FloatArray) -> FloatArray:
    up, down = np.maximum(habits, 0)[:, :, None], np.maximum(-habits, 0)[:, :, None]
    higher = np.concatenate([np.zeros((len(q), 1)), q[:, :-2], q[:, -2:].sum(axis=1, keepdims=True)], axis=1)
    lower = np.concatenate([q[:, :2].sum(axis=1, keepdims=True), q[:, 2:], np.zeros((len(q), 1))], axis=1)
    return np.asarray((1 - up - down) * q + up * higher + down * lower)


def _novices(n: int, rng: np.random.Generator) -> Habits:
    """One in seven guesses in half of the cases, the others in one of twenty."""
    return np.where(rng.random((n, 1)) < 1 / 7, 0.5, 0.05)


def _guess(habits: Habits, q: FloatArray) -> FloatArray:
    share = habits[:, :, None]
    return np.asarray((1 - share) * q + share / K)


def worlds() -> list[World]:
    """Every population of readers."""
    return [
        World("leaning", _leaning, _lean, goal=True),
        World("confusing", _confusing, _confuse, goal=True),
        World("grading", _grading, _grade, goal=True),
        World("novices", _novices, _guess, goal=False),
        World("alike", lambda n, rng: np.zeros((n, 1)), _guess, goal=False),
    ]


def world_of(name: str) -> World:
    """The population of readers of that name."""
    return next(world for world in worlds() if world.name == name)


@dataclass(frozen=True)
class Study:
    """Cases with predictions and readings.

    Attributes:
        patient: (N,).
        before: class probabilities (N, K) and disagreement probabilities (N,).
        after: those of another prediction of the same cases.
        case: (M,) of each reading.
        reader: (M,).
        label: (M,).
        first: (M,) whether a reading is its case's first.
        weights2: (N,) inverse probabilities of a second reading, None where all cases have all readings.
    """

    patient: IntArray
    before: tuple[FloatArray, FloatArray]
    after: tuple[FloatArray, FloatArray]
    case: IntArray
    reader: IntArray
    label: IntArray
    first: npt.NDArray[np.bool_]
    weights2: FloatArray | None

    def counts(self, *, first: bool = False) -> IntArray:
        """Label histograms (N, K), of all readings or of the first ones."""
        counts = np.zeros((len(self.patient), K), dtype=np.int64)
        used = self.first if first else slice(None)
        np.add.at(counts, (self.case[used], self.label[used]), 1)
        return counts


def _cases(n: int, per_patient: int, rng: np.random.Generator) -> tuple[IntArray, FloatArray, list[Any]]:
    """Patients (N,), true class probabilities (N, K) and two predictions."""
    seen = rng.normal(0, 1.5, (n, K))
    patient = np.arange(n) // per_patient
    hidden = rng.normal(0, 0.4, (n, K)) + rng.normal(0, 0.5, (patient[-1] + 1, K))[patient]
    predictions = []
    for sharpness, noise, spread in ((1.4, 0.0, 0.75), (1.1, 0.3, 0.9)):
        f = softmax_probs(sharpness * seen + noise * rng.normal(0, 1, seen.shape))
        predictions.append((f, spread * (1 - (f**2).sum(axis=1))))
    return patient, softmax_probs(seen + hidden), predictions


def _said(probs: FloatArray, rng: np.random.Generator) -> IntArray:
    """Classes drawn with probabilities (M, K)."""
    drawn: IntArray = (rng.random((len(probs), 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return drawn


def crossed(world: World, n_readers: int, rng: np.random.Generator, n: int = 300, per_patient: int = 5) -> Study:
    """Every reader reads every case."""
    patient, q, (before, after) = _cases(n, per_patient, rng)
    answers = world.answers(world.draw(n_readers, rng), q)
    reader, case = np.divmod(np.arange(n_readers * n), n)
    label = _said(answers.reshape(-1, K), rng)
    return Study(patient, before, after, case, reader, label, reader == 0, None)


def service(world: World, n_readers: int, rng: np.random.Generator, n: int = 2_000, per_patient: int = 10) -> Study:
    """Every case has a reader drawn at random, and some a second: those of high φ for certain, others for audit."""
    patient, q, (before, after) = _cases(n, per_patient, rng)
    habits = world.draw(n_readers, rng)
    pi = np.where(before[1] > np.quantile(before[1], 1 - TRIAGED), 1.0, AUDIT_RATE)
    twice = np.flatnonzero(rng.random(n) < pi)
    one = rng.integers(0, n_readers, n)
    other = (one[twice] + rng.integers(1, n_readers, twice.size)) % n_readers
    case, reader = np.concatenate([np.arange(n), twice]), np.concatenate([one, other])
    probs = np.empty((case.size, K))
    for number in range(n_readers):
        here = reader == number
        probs[here] = world.answers(habits[number : number + 1], q[case[here]])[0]
    weights2 = np.ones(n)
    weights2[twice] = 1 / pi[twice]
    first = np.arange(case.size) < n
    return Study(patient, before, after, case, reader, _said(probs, rng), first, weights2)


DESIGNS: dict[Design, Callable[[World, int, np.random.Generator], Study]] = {"crossed": crossed, "service": service}


def truths(world: World, seed: int = 0, blocks: int = 100, n: int = 500, n_readers: int = 2_000) -> dict[str, float]:
    """What new readers of new cases would give, by blocks of cases, each with readers of its own.

    Returns:
        By metric as ``ml.metrics.exact_metrics`` calls it; ``Δ`` stands before changes from the one prediction to the
        other. What readers say on average of a case is known but for its variance over 2,000 of them.
    """
    means, given = [], []
    for block in range(blocks):
        rng = np.random.default_rng([seed, block])
        _, q, predictions = _cases(n, 5, rng)
        means.append(world.answers(world.draw(n_readers, rng), q).mean(axis=0))
        given.append(predictions)
    mean = np.concatenate(means)
    before, after = (
        exact_metrics(mean, *(np.concatenate([block[side][part] for block in given]) for part in range(2)))
        for side in range(2)
    )
    values = {name: estimate.value for name, estimate in before.items()}
    return values | {f"Δ{name}": estimate.value - values[name] for name, estimate in after.items()}
