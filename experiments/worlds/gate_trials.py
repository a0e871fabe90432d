"""The gate tried in its worlds: cases as the service's columns, weights by its cohorts, decided by its own code."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from app.metrics.cohort import Cohort, CohortQuery, build_cohort
from app.metrics.dataset import EvaluationDataset
from app.recalibration.evidence import measure_paired_change
from app.recalibration.gate_decision import GateDecision, GateEvidence, judge_annotator_dependence, judge_overall
from experiments.worlds.gate_worlds import CLASSES, N_ANNOTATORS, Partition, Predictor, World, draw_partition
from ml.distributions.families import PredictiveDistribution
from ml.metrics.paired_difference import Change, shifts_of

#: What the attempts of one run see: new labels each time, those and all earlier ones, or the same again.
Looks = Literal["new", "growing", "same"]
_CODES = [str(k) for k in range(CLASSES)]


def cohort(part: Partition, champion: PredictiveDistribution, without: int | None = None) -> Cohort:
    """Cases of a partition as the service weights them, without the labels of one annotator if he is named."""
    n = len(part.pi)
    twice = np.zeros(n, dtype=bool)
    twice[part.case[n:]] = True
    columns = EvaluationDataset.empty(_CODES, n)
    first = np.where(part.annotator[:n] == (-1 if without is None else without), -1, part.label[:n])
    columns = replace(
        columns,
        cluster=part.patient,
        evaluation=np.ones(n, dtype=bool),
        pi=part.pi,
        class_probs=champion.class_probs,
        disagreement_probs=champion.disagreement_probs,
        label_counts=part.counts(without),
        first_class=first,
        n_planned=1 + twice.astype(np.int64),
    )
    return build_cohort(columns, CohortQuery(), 0.0)


def change(part: Partition, champion: Predictor, candidate: Predictor, without: int | None = None) -> Change:
    """From champion to candidate, by a partition's labels."""
    before, after = (predictor.predict(part.logits) for predictor in (champion, candidate))
    return measure_paired_change(cohort(part, before, without), before, after)


@dataclass(frozen=True)
class Trial:
    """One attempt: the two partitions and the number of the attempt."""

    world: World
    fitting: Partition
    judging: Partition
    attempt: int

    def evidence(self) -> GateEvidence:
        """By all labels."""
        candidate = self.world.fit(self.fitting, None)
        return GateEvidence(change(self.judging, self.world.champion, candidate), self.judging.patient, N_ANNOTATORS)

    def without(self) -> dict[str, Change | str]:
        """Without each annotator in turn."""
        return {
            f"r{r}": change(self.judging, self.world.champion, self.world.fit(self.fitting, r), r)
            for r in range(N_ANNOTATORS)
        }

    def decide(self) -> GateDecision:
        """As the service decides; who is refused by all labels is not tried without each annotator."""
        evidence = self.evidence()
        found = judge_overall(evidence, self.attempt)
        return found if found.reasons else found + judge_annotator_dependence(replace(evidence, without=self.without()))


def trials(world: World, rng: np.random.Generator, looks: Looks = "new") -> Iterator[Trial]:
    """The attempts of one run on one champion."""
    fitting = judging = None
    for attempt in range(1, world.attempts + 1):
        if fitting is None or judging is None or looks == "new":
            fitting, judging = draw_partition(world, rng), draw_partition(world, rng)
        elif looks == "growing":
            fitting, judging = (joined(part, draw_partition(world, rng)) for part in (fitting, judging))
        yield Trial(world, fitting, judging, attempt)


def joined(part: Partition, more: Partition) -> Partition:
    """Cases of two partitions; the first labels of all of them come first."""
    n, m = len(part.pi), len(more.pi)
    labels = {
        name: np.concatenate([old[:n], new[:m], old[n:], new[m:]])
        for name, old, new in (
            ("case", part.case, more.case + n),
            ("annotator", part.annotator, more.annotator),
            ("label", part.label, more.label),
        )
    }
    return Partition(
        np.concatenate([part.true_probs, more.true_probs]),
        np.concatenate([part.logits, more.logits], axis=1),
        np.concatenate([part.patient, more.patient + part.patient.max() + 1]),
        np.concatenate([part.pi, more.pi]),
        **labels,
    )


def passes(world: World, seed: int, looks: Looks = "new") -> int:
    """Number of the attempt that passes in one run, 0 where none does."""
    rng = np.random.default_rng([seed, len(world.name)])
    for trial in trials(world, rng, looks):
        if not trial.decide().reasons:
            return trial.attempt
    return 0


@dataclass(frozen=True)
class Leaning:
    """How much worse a good or bad candidate is without the annotator who speaks most against it, one run.

    Attributes:
        shift: largest difference from the change by all labels, in its standard errors.
        turned: largest change itself, in the same standard errors.
    """

    shift: float
    turned: float


def leaning(world: World, seed: int) -> Leaning:
    """Both readings of the design's rule of stability, in the first attempt of one run."""
    trial = next(trials(world, np.random.default_rng([seed, len(world.name)])))
    evidence = trial.evidence()
    shifts, turned = [0.0], [-np.inf]
    for found in trial.without().values():
        assert not isinstance(found, str)
        values = {"L": found.loss.value, "L_D": found.disagreement_loss.value}
        for loss, shift in shifts_of(found, evidence.whole, evidence.cluster).items():
            if shift.se > 0:
                shifts.append(shift.value / shift.se)
                turned.append(values[loss] / shift.se)
    return Leaning(max(shifts), max(turned))
