"""Shares of specimens: the laws of their own mix, and brute force for variances, decisions and the worth of reads."""

from dataclasses import replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import scipy.stats
from scipy.special import betaincinv, expit, gammaln, logit

from ml.annotations import Annotations
from ml.annotators.confusions import ReaderModel
from ml.calibration.calibrators import calibration_mix
from ml.distributions.families import (
    DirichletCpe,
    DirichletMixtureCpe,
    EnsembleCpe,
    PointCpe,
    PredictiveDistribution,
    members_of,
    softmax_probs,
)
from ml.specimens.cells import Group, Members, NamedReads, Specimen, Threshold, seeded
from ml.specimens.laboratory import (
    GroupKnowledge,
    Laboratory,
    LogitShare,
    annotator_tilt,
    coverage_by_band,
    fit_kappa,
    fit_shift,
    half_cell_logit,
)
from ml.specimens.own_mix import MOST_SWEEPS, sample_own_mix, sum_expert_shares
from ml.specimens.reads import choose_reads, reads_are_settled, value_for_decision, value_per_read, value_reads
from ml.specimens.shares import SpecimenShares, measure_specimen
from ml.util.arrays import FloatArray, IntArray

CLASSES = ("blast", "band", "segmented", "lymphocyte")
MIX = np.array([0.1, 0.2, 0.4, 0.3])
BLASTS = Group("blasts", ("blast",), (Threshold(0.05), Threshold(0.2, 5.0)))
GROUPS = [BLASTS, Group("neutrophils", ("segmented", "band"))]


def certain_cells(counts: list[int]) -> PointCpe:
    """Cells whose class is certain, so many of each."""
    return PointCpe(np.eye(len(counts))[np.repeat(np.arange(len(counts)), counts)])


def noisy_cells(n: int, alpha: float, seed: int, sharpness: float = 3.0, pi: FloatArray | None = None) -> DirichletCpe:
    """Predictions as a calibrated network gives them: the posterior of the kind under the mix m."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(len(MIX), n, p=rng.dirichlet(2 * MIX) if pi is None else pi)
    evidence = rng.normal(0, np.sqrt(sharpness), (n, len(MIX)))
    evidence[np.arange(n), kind] += sharpness
    probs = MIX * np.exp(evidence)
    return DirichletCpe(probs / probs.sum(axis=1, keepdims=True), np.full(n, np.log(alpha)))


def taught(**known: float) -> Laboratory:
    """A laboratory that knows as much of each group."""
    return Laboratory(groups={group.name: GroupKnowledge(**known) for group in GROUPS})


def specimen(prior: PredictiveDistribution, **fields: object) -> Specimen:
    n = len(prior.class_probs)
    return Specimen("S-1 of release 2", tuple(f"{row:04d}" for row in range(n)), CLASSES, prior, MIX, **fields)


def permuted(one: Specimen, rows: IntArray, columns: IntArray) -> Specimen:
    """The same specimen with cells and classes in another order."""
    probs, a, logs = members_of(one.prior)
    prior = DirichletMixtureCpe(probs[:, rows][..., columns], a[:, rows], logs[:, rows])
    named = one.named
    if named is not None:
        labels = replace(named.labels, label=np.argsort(columns)[named.labels.label])
        matrices = named.matrices[:, :, columns][..., columns]
        population = named.population[np.ix_(columns, columns)]
        moved = labels.renumbered(np.argsort(rows), len(rows)).by_case()
        named = replace(named, labels=moved, matrices=matrices, population=population)
    counts = None if one.label_counts is None else one.label_counts[rows][:, columns]
    cells, classes = tuple(one.cells[row] for row in rows), tuple(one.classes[k] for k in columns)
    return replace(
        one, cells=cells, classes=classes, prior=prior, mix=one.mix[columns], label_counts=counts, named=named
    )


def labels_by_name(n: int, readers: int, seed: int) -> Annotations:
    """Two labels of each third cell."""
    rng = np.random.default_rng(seed)
    matrix = np.full((n, readers), -1)
    for cell in range(0, n, 3):
        matrix[cell, rng.choice(readers, 2, replace=False)] = rng.choice(len(MIX), 2, p=MIX)
    return Annotations.of_matrix(matrix, len(MIX))


def enumerated_means(members: Members, mix: FloatArray, kappa: float) -> FloatArray:
    """E[q] (n, K) by all kinds of all cells, whose probability is Π f_z/m_z times the Dirichlet-multinomial."""
    probs, alpha, weights = members.class_probs[0], members.concentration[0], members.weights[0]
    n, k = probs.shape[1:]
    mean = np.einsum("sn,snk->nk", weights, probs)
    given_kind = np.zeros((n, k, k))
    for s, kind in product(range(len(probs)), range(k)):
        share = weights[s] * probs[s, :, kind] / mean[:, kind]
        tilted = (alpha[s][:, None] * probs[s] + np.eye(k)[kind]) / (alpha[s][:, None] + 1)
        given_kind[:, kind] += share[:, None] * tilted
    total, sums = 0.0, np.zeros((n, k))
    for kinds in product(range(k), repeat=n):
        shapes = kappa * mix + np.bincount(kinds, minlength=k)
        chance = np.exp((gammaln(shapes) - gammaln(kappa * mix)).sum())
        chance *= np.prod([mean[i, z] / mix[z] for i, z in enumerate(kinds)])
        total += chance
        sums += chance * np.array([given_kind[i, z] for i, z in enumerate(kinds)])
    return sums / total


@pytest.mark.parametrize("kind", ["counts", "names", "ensemble"])
def test_the_order_of_cells_and_of_classes_changes_no_number(kind: str) -> None:
    prior: PredictiveDistribution = noisy_cells(30, 3.0, 0)
    fields: dict[str, object] = {}
    if kind == "counts":
        fields = {"label_counts": labels_by_name(30, 3, 1).counts(), "n_annotators": 3}
    if kind == "names":
        matrices = 0.8 * np.eye(4) + 0.2 * np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4))
        fields = {"named": NamedReads(labels_by_name(30, 3, 1), matrices, 0.9 * np.eye(4) + 0.025)}
    if kind == "ensemble":
        prior = EnsembleCpe(np.stack([noisy_cells(30, 3.0, seed).class_probs for seed in range(3)]))
    one = specimen(prior, **fields)
    rng = np.random.default_rng(2)
    rows, columns = rng.permutation(30), rng.permutation(4)
    laboratory = taught(tilt=0.2, shift=0.5)
    first = measure_specimen(one, GROUPS, laboratory)
    second = measure_specimen(permuted(one, rows, columns), GROUPS, laboratory)
    assert first == measure_specimen(one, GROUPS, laboratory)
    for before, after in zip(first.groups, second.groups, strict=True):
        assert before.count == after.count
        assert before.patient.share == pytest.approx(after.patient.share, rel=1e-9)
        assert before.slide.high == pytest.approx(after.slide.high, rel=1e-9)
        assert before.read_values[rows] == pytest.approx(after.read_values, rel=1e-6)
        assert before.decision_values[rows] == pytest.approx(after.decision_values, abs=1e-9)
    assert first.class_probs[rows][:, columns] == pytest.approx(second.class_probs, rel=1e-9)
    assert measure_specimen(replace(one, key="another"), GROUPS, laboratory) != first


@pytest.mark.parametrize("alpha", [0.3, 4.0])
def test_a_specimen_like_its_laboratory_or_experts_who_are_certain_have_the_mean_of_the_posteriors(
    alpha: float,
) -> None:
    prior = noisy_cells(60, alpha, 1)
    mean = prior.class_probs[:, 0].mean()
    like = measure_specimen(specimen(prior), [BLASTS], Laboratory(kappa=1e7)).groups[0].slide
    assert like.share == pytest.approx(mean, abs=0.004)
    points = measure_specimen(specimen(PointCpe(prior.class_probs)), [BLASTS]).groups[0].slide
    assert (points.share, points.low) == pytest.approx((mean, mean), abs=1e-6)


def test_without_evidence_the_posterior_of_the_mix_is_its_prior() -> None:
    draws = sample_own_mix(np.tile(MIX, (1, 25, 1)), MIX, 2.0, seeded("a"), chains=2000, sweeps=25)
    for k, mean in enumerate(MIX):
        mix = draws.ratios[-1, :, k] * mean
        assert mix.mean() == pytest.approx(mean, abs=0.015)
        assert scipy.stats.kstest(mix, scipy.stats.beta(2 * mean, 2 * (1 - mean)).cdf).pvalue > 1e-3


def test_certain_cells_have_one_share_and_a_mix_of_counts() -> None:
    counts = [3, 17, 60, 20]
    one = specimen(certain_cells(counts), target="label")
    share = measure_specimen(one, [BLASTS]).groups[0]
    assert (share.slide.share, share.slide.low, share.slide.high) == pytest.approx((0.03, 0.03, 0.03))
    shapes = 2 * MIX[0] + 3, 2 * (1 - MIX[0]) + 97
    assert share.patient.share == pytest.approx(shapes[0] / sum(shapes), abs=0.001)
    assert share.components.total == pytest.approx(scipy.stats.beta(*shapes).var(), rel=1e-6)
    order = one.order[1]
    draws = sample_own_mix(one.members().mean, MIX[order], 2.0, seeded("a"), chains=2000)
    expected = (2 * MIX + counts) / 102
    assert (draws.ratios * MIX[order]).mean(axis=(0, 1)) == pytest.approx(expected[order], abs=0.002)


@pytest.mark.slow
@pytest.mark.ci
def test_the_mix_is_that_of_expectation_maximisation_with_a_weak_prior() -> None:
    from quapy.method.aggregative import EMQ  # takes seconds

    pi = np.array([0.02, 0.3, 0.08, 0.6])
    prior = noisy_cells(1500, 1.0, 3, pi=pi)
    order = np.argsort(CLASSES)
    probs, mix = prior.class_probs[:, order], MIX[order]
    expected, _ = EMQ.EM(mix, probs, epsilon=1e-7)
    draws = sample_own_mix(probs[None], mix, 0.5, seeded("em"))
    assert (draws.ratios * mix).mean(axis=(0, 1)) == pytest.approx(expected, abs=0.004)


def test_where_predictions_average_to_the_mix_it_is_a_fixed_point() -> None:
    probs = noisy_cells(400, 1.0, 3).class_probs
    mix = probs.mean(axis=0)
    draws = sample_own_mix(probs[None], mix, 2.0, seeded("em"))
    assert (draws.ratios * mix).mean(axis=(0, 1)) == pytest.approx(mix, abs=0.02)


@pytest.mark.slow
@pytest.mark.ci
def test_averaged_over_mixes_of_the_prior_it_is_the_mean_of_posteriors() -> None:
    differences = []
    for seed in range(80):
        prior = noisy_cells(40, 1e-9, seed)
        share = measure_specimen(specimen(prior, target="label"), [BLASTS]).groups[0].slide.share
        differences.append(share - prior.class_probs[:, 0].mean())
    assert abs(np.mean(differences)) < 3.5 * np.std(differences) / np.sqrt(80)


@pytest.mark.parametrize("members", [1, 3])
def test_means_agree_with_all_kinds_enumerated(members: int) -> None:
    rng = np.random.default_rng(members)
    probs, a = rng.dirichlet(np.ones(3), (members, 5)), rng.normal(0, 1.5, (members, 5))
    mix = np.array([0.2, 0.5, 0.3])
    counts = np.zeros((5, 3), dtype=np.int64)
    counts[0, 1], counts[3] = 1, (1, 0, 2)
    one = Specimen("e", tuple("vwxyz"), ("a", "b", "c"), DirichletMixtureCpe(probs, a), mix, counts)
    drawn = one.members()
    exact = enumerated_means(drawn, mix, 1.5)
    draws = sample_own_mix(drawn.mean, mix, 1.5, rng, chains=2000)
    sums = sum_expert_shares(drawn, draws, np.arange(3), mix, 1.5, rng)
    assert sums.total.mean(axis=(1, 2)) == pytest.approx(exact.sum(axis=0), abs=0.03)
    values, means = value_reads(drawn, draws, np.arange(3), 3)
    assert means == pytest.approx(exact, abs=0.01)
    for cell in range(5):  # brute force: the posterior after each possible label
        moved = np.zeros(3)
        for label in range(3):
            after = replace(
                one, label_counts=counts + np.eye(5, dtype=np.int64)[:, [cell]] * np.eye(3, dtype=int)[label]
            )
            shift = (enumerated_means(after.members(), mix, 1.5) - exact).mean(axis=0)
            moved += exact[cell, label] * shift**2
        assert values[cell] == pytest.approx(moved, rel=0.12, abs=1e-6)


def test_annotators_who_answer_what_they_think_are_as_annotators_without_names() -> None:
    prior, labels = noisy_cells(30, 3.0, 0), labels_by_name(30, 3, 1)
    named = NamedReads(labels, np.tile(np.eye(4), (1, 3, 1, 1)), np.eye(4))
    by_name = measure_specimen(specimen(prior, named=named), GROUPS)
    alike = measure_specimen(specimen(prior, label_counts=labels.counts(), n_annotators=3), GROUPS)
    for one, other in zip(by_name.groups, alike.groups, strict=True):
        assert one.patient.share == pytest.approx(other.patient.share, rel=1e-9)
        assert one.components.total == pytest.approx(other.components.total, rel=1e-9)
    assert alike.assumes[0] == "annotator variance unknown"
    assert "annotator variance unknown" not in by_name.assumes


def test_matrices_that_are_not_certain_add_variance_of_annotators() -> None:
    rng = np.random.default_rng(0)
    answers = rng.choice(4, 60, p=MIX)
    labels = Annotations.of_matrix(np.stack([answers, np.full(60, -1)], axis=1), 4)
    model = ReaderModel(("r", "s"), np.array([60, 60]), np.tile(0.85 * np.eye(4) + 0.0375, (2, 1, 1)), np.eye(4))
    draws = NamedReads.of(model, labels, ["r", "s"], MIX, 10)
    assert draws == NamedReads.of(model, labels, ["r", "s"], MIX, 10)
    assert draws.matrices.mean(axis=(0, 1)) == pytest.approx(model.confusions[0], abs=0.06)
    prior = noisy_cells(60, 1.0, 2)
    drawn = measure_specimen(specimen(prior, named=draws), GROUPS).groups[1]
    known = NamedReads(labels, np.tile(model.confusions, (10, 1, 1, 1)), np.eye(4))
    fixed = measure_specimen(specimen(prior, named=known), GROUPS).groups[1]
    assert drawn.components.annotators > 5 * fixed.components.annotators
    width = drawn.patient.high - drawn.patient.low
    assert drawn.components.total == pytest.approx((width / 3.92) ** 2, rel=0.25)


def test_components_are_the_nested_variances_in_their_order() -> None:
    n, kappa, sd = 15, 2.0, 0.8
    prior = noisy_cells(n, 0.5, 5)
    counts = np.eye(4, dtype=np.int64)[np.random.default_rng(5).choice(4, n)]
    one = specimen(prior, label_counts=counts, n_annotators=1)
    result = measure_specimen(one, [GROUPS[1]], taught(tilt=1.5 * sd))  # a label is two thirds of what is known
    assert result.mix == "training"
    after = prior.posterior(counts)
    inside = after.class_probs[:, 1:3].sum(axis=1)
    alpha, rng = np.exp(after.log_concentration), np.random.default_rng(0)
    tilts, size = scipy.stats.norm.ppf((np.arange(400) + 0.5) / 400, 0, sd), n + kappa
    q = rng.beta(alpha * inside, alpha * (1 - inside), (400, 400, n))
    share = q.mean(axis=2, keepdims=True)
    target = expit(logit(share) + tilts[:, None, None])
    q = np.where(target < share, q * target / share, 1 - (1 - q) * (1 - target) / (1 - share))
    c = (q.sum(axis=2) + kappa * MIX[1:3].sum()) / size
    weights = rng.dirichlet([kappa, *[1.0] * n], (400, 400))
    elsewhere = rng.beta(kappa * 0.6, kappa * 0.4, (400, 400))
    theta = weights[..., 0] * elsewhere + (weights[..., 1:] * q).sum(axis=2)
    found = result.groups[0].components
    assert found.sampling == pytest.approx((theta - c).var(), rel=0.03)
    assert found.cells == pytest.approx(c.var(axis=1).mean(), rel=0.12)  # of 1,000 draws
    assert found.annotators == pytest.approx(c.mean(axis=1).var(), rel=0.2)
    assert found.total == pytest.approx(theta.var(), rel=0.08)
    assert result.groups[0].patient.low == pytest.approx(np.quantile(theta, 0.025), abs=0.03)


def patient_limits(x: IntArray, n: int, prior: float, others: float) -> FloatArray:
    """Limits (2, X) of the patient's share for certain cells."""
    low = betaincinv(np.minimum(prior, 0.25) + x, max(others, 0.75) + n - x, 0.025)
    return np.array([low, betaincinv(max(prior, 0.75) + x, np.minimum(others, 0.25) + n - x, 0.975)])


@pytest.mark.parametrize("blasts", [0.005, 0.177, 0.48])
def test_the_patients_limits_for_certain_cells_are_those_of_beta_distributions(blasts: float) -> None:
    mix = np.array([blasts, 0.2, 0.5 - blasts, 0.3])
    for x in (0, 1, 7, 60):
        one = replace(specimen(certain_cells([x, 20, 50 - x // 2, 30 - x + x // 2]), target="label"), mix=mix)
        share = measure_specimen(replace(one, key=str(x)), [BLASTS]).groups[0]
        exact = patient_limits(np.array([x]), 100, 2 * blasts, 2 - 2 * blasts)[:, 0]
        assert (share.patient.low, share.patient.high) == pytest.approx(exact, abs=0.008)
        assert share.patient.share == pytest.approx((2 * blasts + x) / 102, abs=0.002)


@pytest.mark.parametrize("n", [20, 50, 100, 400])
def test_the_patients_share_of_certain_cells_is_covered_whatever_the_prior(n: int) -> None:
    x = np.arange(n + 1)
    shares = np.concatenate([np.geomspace(1e-4, 0.05, 120), np.linspace(0.05, 0.95, 91)])
    chance = scipy.stats.binom.pmf(x, n, shares[:, None])
    for kappa, mix in product((0.5, 2.0, 5.0), (0.001, 0.02, 0.1, 0.3, 0.6, 0.95)):
        low, high = patient_limits(x, n, kappa * mix, kappa * (1 - mix))
        covered = (low <= shares[:, None]) & (shares[:, None] <= high)
        assert (chance * covered).sum(axis=1).min() > 0.93


def test_clopper_and_pearson_stand_beside_it_once_every_cell_is_read() -> None:
    counts = np.eye(4, dtype=np.int64)[np.repeat([0, 2], [5, 95])]
    one = specimen(noisy_cells(100, 2.0, 0), label_counts=counts, n_annotators=1)
    low, high = measure_specimen(one, [BLASTS]).groups[0].counted or (0, 0)
    assert (low, high) == pytest.approx(scipy.stats.binomtest(5, 100).proportion_ci(), rel=1e-6)
    counts[7] = 0
    assert measure_specimen(replace(one, label_counts=counts), [BLASTS]).groups[0].counted is None


def decisions(counts: list[int], cost: float = 1.0, at: float = 0.2) -> SpecimenShares:
    one = specimen(certain_cells(counts), target="label")
    return measure_specimen(one, [Group("g", ("blast",), (Threshold(at, cost),))])


def test_decisions_weigh_costs_and_need_fifty_cells_to_be_below() -> None:
    def decided(counts: list[int], cost: float = 1.0) -> str:
        return decisions(counts, cost).groups[0].thresholds[0].decision

    assert decided([60, 0, 40, 0]) == "above"
    assert decided([0, 30, 40, 10]) == "below"
    assert decided([20, 10, 60, 10]) == "open"
    assert decided([0, 9, 30, 10]) == "open"
    assert decided([0, 10, 30, 10]) == "below"
    assert decided([49, 0, 0, 0]) == "above"
    undecided = decisions([15, 10, 60, 15]).groups[0].thresholds[0]
    dear = decisions([15, 10, 60, 15], 200.0).groups[0].thresholds[0]
    assert undecided.decision == dear.decision == "open"
    assert undecided.expected_loss == pytest.approx(undecided.probability_above)
    assert dear.expected_loss == pytest.approx(1 - dear.probability_above)
    assert dear.settled  # the cells are certain: only more of them help
    assert decisions([3, 3, 10, 3]).mix == "training"
    assert decisions([3, 3, 10, 4]).mix == "own"


def test_chains_that_do_not_agree_leave_everything_open() -> None:
    flat = DirichletCpe(np.tile(MIX, (400, 1)), np.full(400, -40.0))
    result = measure_specimen(specimen(flat), [Group("blasts", ("blast",), (Threshold(0.9999),))])
    assert (result.resolved, result.sweeps) == (False, MOST_SWEEPS)
    assert result.groups[0].thresholds[0].decision == "open"
    assert result.groups[0].n_effective < 300


def test_the_worth_of_a_read_for_a_decision_is_the_expected_fall_of_its_loss() -> None:
    theta, threshold = np.random.default_rng(0).normal(0.2, 0.02, 20000), Threshold(0.21, 2.0)
    moved = np.array([0.0, 1e-6, 5e-5, 2e-4])
    worth = value_for_decision(theta, moved, threshold)

    for v, value in zip(moved, worth, strict=True):
        moves = np.array([-1, 1]) * np.sqrt(v)
        above = scipy.stats.norm.sf(threshold.at, 0.2 + moves, np.sqrt(4e-4 - v))
        now, after = (np.minimum(2.0 * p, 1 - p) for p in (above.mean(), above))
        assert value == pytest.approx(now - after.mean(), abs=0.01)
    assert worth[3] > worth[2] >= worth[1] >= worth[0] == 0
    assert value_for_decision(theta, moved, Threshold(0.9)).max() == 0


def test_a_batch_of_reads_is_worth_what_no_single_read_is() -> None:
    theta, threshold = np.random.default_rng(0).normal(0.2, 0.02, 20000), Threshold(0.21)
    moved = np.array([2e-6, 1e-6, 0.0, *[2e-6] * 40])
    assert value_for_decision(theta, moved, threshold).max() == 0
    worth = value_per_read(theta, moved, 1e-3, threshold)
    falls = []
    for m, variance in enumerate(np.cumsum(np.sort(moved)[::-1]), start=1):  # the mean is normal before the reads
        means = scipy.stats.norm.ppf((np.arange(2000) + 0.5) / 2000, 0.2, np.sqrt(variance))
        above = scipy.stats.norm.sf(threshold.at, means, np.sqrt(4e-4 - variance))
        falls.append((min(above.mean(), 1 - above.mean()) - np.minimum(above, 1 - above).mean()) / m)
    assert worth.max() == pytest.approx(max(falls), rel=0.4)
    assert worth[0] >= worth[1] >= worth[2] >= 0
    assert value_per_read(theta, moved, 0.0, threshold).max() == 0
    few = value_per_read(theta, np.array([3e-4, 1e-9]), 1.0, threshold)
    assert few[0] > 1.5 * few[1] > 0


def test_a_decision_is_settled_once_reads_cannot_move_the_mean_across() -> None:
    theta = np.random.default_rng(0).normal(0.2, 0.02, 20000)
    assert not reads_are_settled(theta, 2e-4, Threshold(0.21))
    assert reads_are_settled(theta, 2e-4, Threshold(0.24))
    assert reads_are_settled(theta, 1e-6, Threshold(0.21))
    assert not reads_are_settled(theta, 2e-4, Threshold(0.24), delta=1e-4)


def test_reads_worth_most_are_chosen_first_and_read_cells_never() -> None:
    assert choose_reads(np.array([0.1, 0.3, 0.1, 0.0]), 4, tuple("dcba")) == ["c", "b", "d"]
    assert choose_reads(np.array([0.0, 0.0, 1.0]), 2, tuple("abc"), ties=np.array([0.1, 0.2, 0.0])) == ["c", "b"]
    counts = np.zeros((40, 4), dtype=np.int64)
    counts[:10, 2] = 1
    one = specimen(noisy_cells(40, 1.0, 1), label_counts=counts, target="label")
    assert measure_specimen(one, [BLASTS]).groups[0].read_values[:10].max() < 1e-12


def test_a_shift_adds_its_variance_times_the_square_of_how_far_it_moves_the_share() -> None:
    one = specimen(PointCpe(noisy_cells(400, 1.0, 4).class_probs))
    raw, wide = (measure_specimen(one, [BLASTS], taught(shift=sd)).groups[0] for sd in (0.0, 0.4))
    assert raw.raw == wide.raw
    assert raw.raw.variance < 1e-9
    low, high = half_cell_logit([wide.slide.low, wide.slide.high], 400)
    assert (low - raw.raw.mean, high - raw.raw.mean) == pytest.approx(
        1.96 * 0.4 * raw.raw.sensitivity * np.array([-1, 1]), rel=0.01
    )
    assert wide.components.cells == pytest.approx(wide.components.total - wide.components.sampling)
    assert wide.components.cells > raw.components.cells
    certain = specimen(certain_cells([9, 20, 51, 0]))
    plain, same = (measure_specimen(certain, [BLASTS], taught(shift=sd)).groups[0].slide for sd in (0.0, 0.4))
    assert (plain.low, plain.high) == pytest.approx((same.low, same.high), abs=1e-6)


def test_the_sensitivity_is_the_slope_of_the_share_and_the_noise_that_of_labels() -> None:
    probs = noisy_cells(400, 1.0, 3).class_probs
    one = specimen(PointCpe(probs))  # of a release that is certain about the experts' distribution
    raw = measure_specimen(one, [BLASTS], Laboratory(kappa=1e9)).groups[0].raw
    shifted = expit(logit(probs[:, 0]) + np.array([[-0.01], [0.01]])).mean(axis=1)
    assert raw.sensitivity == pytest.approx(np.diff(half_cell_logit(shifted, 400))[0] / 0.02, rel=0.01)
    labels = (np.random.default_rng(0).random((4000, 400)) < probs[:, 0]).mean(axis=1)
    assert raw.label_noise == pytest.approx(half_cell_logit(labels, 400).var(), rel=0.1)


def test_what_was_learned_of_one_group_moves_that_group_alone() -> None:
    one = specimen(noisy_cells(80, 1.0, 4), label_counts=labels_by_name(80, 3, 1).counts(), n_annotators=3)
    known = GroupKnowledge(tilt=0.4, shift=0.5, n_specimens=20)
    plain, some, both = (
        measure_specimen(one, GROUPS, Laboratory(groups=dict.fromkeys(names, known)))
        for names in ((), ("blasts",), ("blasts", "neutrophils"))
    )
    assert some.groups[0] == both.groups[0] != plain.groups[0]
    assert some.groups[1] == plain.groups[1] != both.groups[1]
    assert some.assumes == plain.assumes == ("annotator variance unknown", "cells independent within the specimen")
    assert both.assumes == ()


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("count", [19, 20, 400])
def test_a_shift_that_cells_share_is_learned_from_complete_specimens(count: int, noise: float) -> None:
    fitted = []
    for seed in range(40):
        rng = np.random.default_rng([count, seed])
        a, variance, target = rng.uniform(0.2, 0.8, count), rng.uniform(0.01, 0.1, count), rng.normal(-1, 0.5, count)
        means = target + rng.normal(0, np.sqrt(variance + (0.9 * a) ** 2 + noise))
        shares = [LogitShare(10**6, *row, noise) for row in zip(means, variance, a, strict=True)]
        fitted.append(fit_shift(shares, expit(target), [share.label_noise for share in shares]))
    limits = np.array([found.sd for found in fitted])
    assert {found.n_specimens for found in fitted} == {count}
    if count == 19:
        assert {(found.sd, found.rho) for found in fitted} == {(0.0, 1.0)}
    else:
        assert 0.55 <= (limits > 0.9).mean() <= 0.95  # an upper limit at 75 %
        assert min(found.rho for found in fitted) >= 1
    if count == 400:
        assert limits.mean() == pytest.approx(0.93, abs=0.04 if noise == 0 else 0.12)


def test_coverage_is_counted_by_band_of_the_true_share() -> None:
    bands = coverage_by_band([[0.0, 0.1], [0.2, 0.3], [0.9, 1.0]], [0.04, 0.05, 1.0], (0, 0.05, 1))
    assert [(band.n_specimens, band.n_covered) for band in bands] == [(1, 1), (2, 1)]


def test_a_common_tilt_is_estimated_from_cells_that_several_read() -> None:
    rng = np.random.default_rng(1)
    tilts, cells = rng.normal(0, 0.7, 24), rng.normal(-0.5, 1.0, 600)
    matrix = (rng.random((600, 24)) < expit(cells[:, None] * 0 - 0.5 + tilts)).astype(np.int64)
    assert annotator_tilt(Annotations.of_matrix(matrix, 2), [1]) == pytest.approx(tilts.std(), rel=0.1)
    alike = (rng.random((600, 8)) < 0.3).astype(np.int64)
    assert annotator_tilt(Annotations.of_matrix(alike, 2), [1]) < 0.05
    alone = np.full((600, 2), -1)
    alone[:300, 0], alone[300:, 1] = alike[:300, 0], alike[300:, 1]
    assert annotator_tilt(Annotations.of_matrix(alone, 2), [1]) is None


def test_a_tilt_acts_on_the_log_odds_and_less_with_more_annotators() -> None:
    counts = np.eye(4, dtype=np.int64)[np.repeat([0, 2], [30, 70])]
    one = specimen(noisy_cells(100, 1.0, 0), label_counts=counts, n_annotators=1, target="label")
    for annotators in (1, 4):
        share = measure_specimen(replace(one, n_annotators=annotators), [BLASTS], taught(tilt=0.4)).groups[0]
        ends = expit(logit(0.3) + np.array([-1.96, 1.96]) * 0.4 / np.sqrt(annotators))
        assert (share.slide.low, share.slide.high) == pytest.approx(ends, abs=0.01)
    few = np.where(np.arange(100)[:, None] < 10, counts, 0)  # of the doubt about blasts, most is in cells not read
    part = replace(one, label_counts=few, n_annotators=1)
    widths = [
        np.ptp([share.low, share.high])
        for tilt in (0.0, 0.4)
        for share in [measure_specimen(part, [BLASTS], taught(tilt=tilt)).groups[0].slide]
    ]
    assert 1 <= widths[1] / widths[0] < 1.2
    unread = replace(one, label_counts=None)
    assert measure_specimen(unread, [BLASTS], taught(tilt=0.4)) == measure_specimen(unread, [BLASTS], taught(tilt=0.0))


def test_the_strength_of_the_shift_is_learned_within_its_range() -> None:
    rng = np.random.default_rng(0)
    assert fit_kappa([]) == 2.0
    fitted = []
    for kappa in (0.1, 1.0, 4.0):
        some = []
        for number in range(40):
            counts = rng.multinomial(50, rng.dirichlet(kappa * MIX))
            some.append(replace(specimen(certain_cells(counts.tolist()), target="label"), key=str(number)))
        fitted.append(fit_kappa(some))
    assert fitted[0] == pytest.approx(0.5)
    assert fitted[1] == pytest.approx(1.0, rel=0.35)
    assert fitted[2] == pytest.approx(4.0, rel=0.35)
    assert fit_kappa([specimen(certain_cells([5, 0, 0, 0]))]) == 2.0


def test_a_class_that_a_network_overstates_does_not_grow_in_a_specimen() -> None:
    """Its odds are four times too high in calibration cells and in specimens alike; the labels know nothing of it."""
    rng, mix = np.random.default_rng(0), np.array([0.01, 0.09, 0.3, 0.6])

    def overstated(classes: npt.NDArray[np.intp]) -> FloatArray:
        evidence = rng.normal(size=(len(classes), 4)) + 2 * np.eye(4)[classes]
        return softmax_probs(np.log(mix) + 2 * evidence + np.log([4, 1, 1, 1]))

    classes = rng.choice(4, 1_000, p=mix)
    mixes = [calibration_mix(overstated(classes), np.eye(4, dtype=np.int64)[classes]), mix]
    shares = []
    for number in range(4):
        prior = PointCpe(overstated(rng.choice(4, 200, p=[0.003, 0.097, 0.3, 0.6])))
        both = [replace(specimen(prior, target="label"), key=str(number), mix=one) for one in mixes]
        shares.append([measure_specimen(one, [BLASTS]).groups[0].patient.share for one in both])
    by_predictions, by_labels = np.mean(shares, axis=0)
    assert by_predictions < 0.005
    assert by_labels > 0.05


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        ([Group("g", ("monocyte",))], "has class 'monocyte', which the release lacks"),
        ([Group("g", ("blast",)), Group("h", ("band", "blast"))], "class 'blast' belongs to 'g' and 'h'"),
        ([Group("g", ())], "group 'g' has no class"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups: list[Group], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        measure_specimen(specimen(certain_cells([5, 5, 5, 5])), groups)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cells": ("a", "b", "a")}, "cells must differ, 'a' is named 2 times"),
        ({"cells": ("a", "b")}, "2 cells and 4 classes"),
        ({"mix": np.array([0.5, 0.5, 0.0, 0.0])}, "mix must lie in"),
        ({"mix": MIX / 2}, "mix must sum to 1"),
        ({"label_counts": np.zeros((2, 4), int)}, r"label_counts must have shape \(3, 4\)"),
        ({"named": NamedReads(labels_by_name(4, 2, 0), np.ones((1, 2, 4, 4)) / 4, np.eye(4))}, "named labels must be"),
    ],
)
def test_specimens_that_do_not_fit_are_refused(change: dict[str, object], error: str) -> None:
    one = Specimen("S", ("a", "b", "c"), CLASSES, certain_cells([1, 1, 1, 0]), MIX)
    with pytest.raises(ValueError, match=error):
        replace(one, **change)


@pytest.mark.parametrize(("at", "cost"), [(0.0, 1.0), (1.0, 1.0), (0.2, 0.0), (0.2, np.inf)])
def test_thresholds_that_do_not_fit_are_refused(at: float, cost: float) -> None:
    with pytest.raises(ValueError, match="a threshold lies in"):
        Threshold(at, cost)


@pytest.mark.heavy
@pytest.mark.parametrize("pi", [0.02, 0.5])
@pytest.mark.parametrize("alpha", [1.0, 3.0, 20.0])
def test_the_share_of_experts_who_disagree_is_covered(alpha: float, pi: float) -> None:
    """Kinds shift the sample, and experts disagree on a cell however it was sampled: q | z ~ Dir(α f + e_z)."""
    rng = np.random.default_rng([int(alpha), int(100 * pi)])
    covered = []
    for number in range(150):
        weights = np.array([pi, *(1 - pi) * MIX[1:] / MIX[1:].sum()])
        prior = noisy_cells(4000, alpha, int(rng.integers(2**31)), 1.5, MIX)
        ratio = (prior.class_probs * weights / MIX).sum(axis=1)
        rows = rng.choice(4000, 100, p=ratio / ratio.sum())
        probs = prior.class_probs[rows]
        tilted = probs * weights / MIX
        kinds = (rng.random((100, 1)) * tilted.sum(axis=1, keepdims=True) > tilted.cumsum(axis=1)).sum(axis=1)
        gammas = rng.standard_gamma(alpha * probs + np.eye(4)[kinds])
        share = (gammas[:, 0] / gammas.sum(axis=1)).mean()
        one = replace(specimen(DirichletCpe(probs, np.full(100, np.log(alpha)))), key=str(number))
        slide = measure_specimen(one, [BLASTS]).groups[0].slide
        covered.append(slide.low <= share <= slide.high)
    assert 0.89 <= np.mean(covered) <= 0.99
