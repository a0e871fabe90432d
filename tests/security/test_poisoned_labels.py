"""T18: one annotator whose labels bend the calibration is named by the gate; annotators who are alike are not."""

import numpy as np
import pytest

from app.recalibration.gate_decision import AnnotatorStability
from experiments.worlds.gate_worlds import N_ANNOTATORS, Partition, Predictor, World, draw_partition, worlds
from ml.metrics.paired_difference import Change, paired_change, shifts_of
from ml.util.arrays import FloatArray


def change_of(world: World, candidate: Predictor, judging: Partition, without: int | None = None) -> Change:
    counts = judging.counts(without)
    pair = [predictor.predict(judging.logits) for predictor in (world.champion, candidate)]
    return paired_change(
        counts,
        *((prediction.class_probs, prediction.disagreement_probs) for prediction in pair),
        sample_weight=(np.ones(len(counts)), 1 / judging.pi),
        cluster=judging.patient,
    )


def named(world: World, seed: int) -> set[int]:
    """Annotators on whom the gate says that the candidate leans."""
    rng = np.random.default_rng(seed)
    fitting, judging = draw_partition(world, rng), draw_partition(world, rng)
    whole = change_of(world, world.fit(fitting, None), judging)
    stability = AnnotatorStability(whole, judging.patient, N_ANNOTATORS)
    without = {r: change_of(world, world.fit(fitting, r), judging, r) for r in range(N_ANNOTATORS)}
    return {r for r, change in without.items() if stability.reasons(f"r{r}", change)}


@pytest.mark.slow
def test_who_moves_half_of_their_labels_is_named_and_nobody_else_is() -> None:
    by_name = {world.name: world for world in worlds()}
    bad = [named(by_name["lives on one annotator"], seed) for seed in range(20)]
    assert sum(4 in found for found in bad) >= 19  # 20 of 20
    assert sum(bool(found - {4}) for found in bad) <= 3
    good = [named(by_name["better by .047 in both"], seed) for seed in range(40)]
    assert sum(bool(found) for found in good) <= 4  # 1 of 40


def test_the_error_of_a_shift_is_that_of_the_difference_of_two_means() -> None:
    """By hand: cluster totals of what each case adds to one weighted mean less what it adds to the other."""
    rng = np.random.default_rng(0)
    n, cluster = 60, np.repeat(np.arange(20), 3)
    before, after = (rng.dirichlet(np.ones(3), n) for _ in range(2))
    labels = rng.integers(3, size=(n, 2))
    all_counts = np.eye(3, dtype=np.int64)[labels].sum(axis=1)
    some_counts = np.where((np.arange(n) % 4 == 0)[:, None], 0, all_counts)
    weight = rng.uniform(1, 4, n)

    def change(counts: FloatArray) -> Change:
        phi = [1 - (probs**2).sum(axis=1) for probs in (before, after)]
        return paired_change(counts, (before, phi[0]), (after, phi[1]), sample_weight=weight, cluster=cluster)

    some, everything = change(some_counts), change(all_counts)
    terms = (
        ((np.eye(3)[labels] - after[:, None]) ** 2 - (np.eye(3)[labels] - before[:, None]) ** 2)
        .sum(axis=2)
        .mean(axis=1)
    )
    parts = np.zeros(n)
    for counts, sign in ((some_counts, 1), (all_counts, -1)):
        used = np.where(counts.sum(axis=1) > 0, weight, 0.0)
        parts += sign * used * (terms - used @ terms / used.sum()) / used.sum()
    totals = np.bincount(cluster, parts)
    shift = shifts_of(some, everything, cluster)["L"]
    assert shift.value == pytest.approx(some.loss.value - everything.loss.value)
    assert shift.se == pytest.approx(np.sqrt(20 / 19 * (totals**2).sum()))
    assert shifts_of(everything, everything, cluster)["L"].se == 0
    with pytest.raises(ValueError, match="same cases"):
        shifts_of(some, everything, cluster[:10])
