"""Annotators who use the classes alike, a mix of classes that has changed, and who passes a qualification."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2_contingency

from ml.agreement import excess_disagreement_test, marginal_homogeneity_test, measure_agreement
from ml.agreement.one_annotator import agreement_with_others
from ml.agreement.qualification import (
    CLEAR_FROM,
    LEAST_SLIPS,
    LEVEL,
    balanced_choice,
    judge_answers,
    like_the_others,
    pass_rates,
    slip_rate,
)
from ml.audit.evaluate_findings import audit_findings, compute_tail_bins
from ml.audit.sentences import summary_sentences
from ml.metrics.homogeneity_test import DIFFERENT, ClassMixChange, mix_change_of_patients
from ml.tables import evaluate as evaluate_tables
from ml.tables.evaluate import EvaluationOptions
from ml.util.arrays import FloatArray, IntArray
from tests.support.tables import matrix_table, wide_table

Ints = npt.NDArray[np.int64]


def readings(seed: int, *, lean: float, moved: float = 0.0, patients: int = 24, cells: int = 15) -> tuple[Ints, Ints]:
    """Labels (N, 3) of two classes by three annotators, and the patient (N,) of each case.

    Args:
        seed: of the draw.
        lean: how much an annotator's chance of saying 1 varies between patients, alike for all annotators.
        moved: by how much the first annotator says 1 more often everywhere.
        patients: number of patients.
        cells: cases of each.
    """
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), cells)
    truth = rng.uniform(0.3, 0.7, patient.size)[:, None]
    leaning = rng.choice((-lean, lean), (patients, 3))[patient]
    chance = np.clip(truth + leaning + np.array([moved, 0, 0]), 0, 1)
    return (rng.random(chance.shape) < chance).astype(np.int64), patient


def long(labels: Ints, patient: Ints) -> dict[str, Ints]:
    """Labels (N, A), −1 where there is none, as one row each."""
    case, annotator = np.nonzero(labels >= 0)
    return {"case": case, "annotator": annotator, "label": labels[case, annotator], "cluster": patient[case]}


def rejected(runs: int, clustered: bool, **world: Any) -> int:
    """How often the test rejects at 5 %, flipping the signs of cases or of whole patients."""
    count = 0
    for seed in range(runs):
        labels, patient = readings(seed, **world)
        rows = long(labels, patient)
        if not clustered:
            del rows["cluster"]
        count += marginal_homogeneity_test(**rows, permutations=99, seed=seed).p_value <= 0.05
    return count


def test_the_level_holds_where_patients_are_read_with_a_lean() -> None:
    """Annotators who are alike, each leaning one way in one patient and the other way in the next."""
    assert rejected(40, clustered=True, lean=0.2) <= 7, "at level 0.05 more than 7 of 40 happen once in a thousand"
    assert rejected(40, clustered=False, lean=0.2) >= 15, "case by case they are called different"


@pytest.mark.slow
def test_the_level_and_the_power_over_many_worlds() -> None:
    assert 8 <= rejected(400, clustered=True, lean=0.2) <= 36  # 20 of 400 expected, ± 3.6 standard errors
    assert 8 <= rejected(400, clustered=True, lean=0.0) <= 36
    assert rejected(100, clustered=True, lean=0.2, moved=0.2) >= 70
    assert rejected(100, clustered=True, lean=0.0, moved=0.1) >= 70


def test_an_annotator_who_differs_is_found_with_patients_and_without() -> None:
    labels, patient = readings(0, lean=0.1, moved=0.25)
    rows = long(labels, patient)
    assert marginal_homogeneity_test(**rows).p_value <= 0.01
    assert marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"]).p_value <= 0.01


def by_permuting(labels: Ints, permutations: int) -> tuple[float, float]:
    """χ² and p value of labels (N, 3), two a case, by exchanging the two of each case at random."""
    rng, (case, place) = np.random.default_rng(1), np.nonzero(labels >= 0)
    pairs, people = labels[case, place].reshape(-1, 2), place.reshape(-1, 2)
    expected = np.zeros((3, 2))
    np.add.at(expected, (people, pairs), 0.5)
    np.add.at(expected, (people, pairs[:, ::-1]), 0.5)

    def statistic(given: Ints) -> float:
        table = np.zeros((3, 2))
        np.add.at(table, (people, given), 1)
        return float(((table - expected) ** 2 / expected).sum())

    observed = statistic(pairs)
    drawn = [statistic(np.where(rng.random((len(pairs), 1)) < 0.5, pairs, pairs[:, ::-1])) for _ in range(permutations)]
    return observed, (1 + sum(value >= observed - 1e-9 for value in drawn)) / (1 + permutations)


def test_the_statistic_is_that_of_the_table_and_two_annotators_are_permuted() -> None:
    """With two labels a case and no patients, flipping signs is permuting within cases: both find the same."""
    labels, patient = readings(3, lean=0.0, moved=0.1)
    labels[np.arange(len(labels)), np.random.default_rng(0).integers(0, 3, len(labels))] = -1
    rows = long(labels, patient)
    found = marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"], permutations=1999)
    statistic, p_value = by_permuting(labels, 1999)
    assert found.statistic == pytest.approx(statistic, rel=1e-9)
    assert found.p_value == pytest.approx(p_value, abs=0.05)
    assert found.n == len(labels)


def test_renaming_changes_nothing_and_lone_labels_count_for_nothing() -> None:
    labels, patient = readings(4, lean=0.1)
    rows = long(labels, patient)
    order = np.random.default_rng(0).permutation(rows["case"].size)
    shuffled = {name: values[order] for name, values in rows.items()}
    renamed = shuffled | {"case": 7 * shuffled["case"] + 3, "annotator": 5 - shuffled["annotator"]}
    assert marginal_homogeneity_test(**renamed).statistic == pytest.approx(
        marginal_homogeneity_test(**rows).statistic, rel=1e-9
    )
    lonely = {name: np.append(values, [9999, 1, 1, 9999][i]) for i, (name, values) in enumerate(rows.items())}
    assert marginal_homogeneity_test(**lonely) == marginal_homogeneity_test(**rows)
    alone = marginal_homogeneity_test(np.arange(5), np.zeros(5, int), np.ones(5, int))
    assert (alone.p_value, alone.n) == (1.0, 0)


@pytest.mark.parametrize("cluster", ["patient", None])
def test_the_order_of_the_rows_changes_no_p_value(cluster: str | None) -> None:
    rows = table(*readings(5, lean=0.1, moved=0.05))
    found = set()
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(len(rows["label"]))
        shuffled = {name: [values[row] for row in order] for name, values in rows.items()}
        test = measure_agreement(shuffled, cluster=cluster).rater_marginals
        found.add(None if test is None else test.p_value)
    assert len(found - {None}) == 1


def table(labels: Ints, patient: Ints) -> dict[str, list[str]]:
    """LABELS, long."""
    return matrix_table(labels, "ab") | {"patient": [f"p{number}" for number in long(labels, patient)["cluster"]]}


def halves(n: int) -> dict[str, Any]:
    """PREDICTIONS that know nothing."""
    return wide_table(np.full((n, 2), 0.5), "ab")


def test_an_evaluation_and_the_agreement_warn_where_annotators_differ_and_only_there() -> None:
    """Of annotators who are alike, a draw that permuting case by case calls different and turning patients does not."""

    def misleads(seed: int) -> bool:
        labels, patient = readings(seed, lean=0.2, patients=12)
        rows = long(labels, patient)
        by_case = marginal_homogeneity_test(rows["case"], rows["annotator"], rows["label"], permutations=99).p_value
        return by_case <= 0.01 and marginal_homogeneity_test(**rows, permutations=99).p_value > 0.1

    unlucky = next(seed for seed in range(100) if misleads(seed))
    for seed, lean, moved in ((unlucky, 0.2, 0.0), (0, 0.0, 0.3)):
        labels, patient = readings(seed, lean=lean, moved=moved, patients=12)
        given = table(labels, patient)
        said = evaluate_tables(given, halves(len(labels)), cluster="patient").warnings
        assert any("use the classes differently" in text for text in said) == (moved > 0)
        warnings = measure_agreement(given, cluster="patient").warnings
        assert any("use the classes differently" in text for text in warnings) == (moved > 0)


def test_one_limit_decides_wherever_annotators_are_called_different() -> None:
    """A draw that is beyond .05 and not beyond the limit is called different nowhere; the printed p is one, too."""
    different = "use the classes differently"
    for seed, moved, above in ((11, 0.12, False), (0, 0.3, True)):
        labels, patient = readings(seed, lean=0.0, moved=moved, patients=12, cells=6)
        assert (DIFFERENT < marginal_homogeneity_test(**long(labels, patient)).p_value < 0.05) == (not above)
        given = table(labels, patient)
        predictions = halves(len(labels))
        (answered,) = audit_findings(given, predictions, EvaluationOptions(cluster="patient"))
        agreement = measure_agreement(given, cluster="patient")
        places = {
            "evaluate": evaluate_tables(given, predictions, cluster="patient").warnings,
            "agreement": agreement.warnings,
            "audit": summary_sentences(answered, agreement, compute_tail_bins(answered.cases)),
        }
        said = {place: [text for text in texts if different in text] for place, texts in places.items()}
        assert {place: len(texts) for place, texts in said.items()} == dict.fromkeys(places, int(above))
        assert len({text.split("(p = ")[1].split(")")[0] for texts in said.values() for text in texts}) == above


def test_the_excess_of_disagreement_is_that_of_patients_and_of_weighted_cases() -> None:
    """Cases that stand ten times in one patient tell no more than once; a weight of two is to stand twice."""
    rng = np.random.default_rng(0)
    q = rng.dirichlet(np.ones(3), 60)
    counts, f = rng.multinomial(2, q), rng.dirichlet(np.full(3, 0.7), 60)
    alone = excess_disagreement_test(counts, f)
    often, patient = np.repeat(np.arange(60), 10), np.repeat(np.arange(60), 10)
    tenfold = excess_disagreement_test(counts[often], f[often], cluster=patient)
    assert tenfold.p_value == pytest.approx(alone.p_value, rel=1e-9)
    assert excess_disagreement_test(counts[often], f[often]).statistic > 3 * alone.statistic > 0
    twice = np.concatenate([np.arange(60), np.arange(30)])
    weighted = excess_disagreement_test(counts, f, sample_weight=np.repeat([2.0, 1.0], 30), cluster=np.arange(60))
    doubled = excess_disagreement_test(counts[twice], f[twice], cluster=twice)
    assert (weighted.statistic, weighted.p_value) == pytest.approx((doubled.statistic, doubled.p_value), rel=1e-9)


SHARE = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
N_REFERENCE = 2000


def change_of(frequencies: FloatArray, cluster: Any, share: FloatArray, n_reference: float) -> ClassMixChange:
    """The change of cases with label frequencies (N, K) of patients (N,)."""
    number = np.unique(cluster, return_inverse=True)[1]
    sums = np.stack([np.bincount(number, column) for column in frequencies.T], axis=1)
    return mix_change_of_patients(sums, share, n_reference)


def cells(rng: np.random.Generator, n: int, per_patient: int, share: FloatArray = SHARE) -> tuple[FloatArray, IntArray]:
    """One label per cell (N, K) of patients whose own mixes spread around a share."""
    patients = n // per_patient
    mixes = rng.dirichlet(4 * share, patients)
    cluster = np.repeat(np.arange(patients), per_patient)
    labels = (rng.random(n)[:, None] > mixes[cluster].cumsum(axis=1)[:, :-1]).sum(axis=1)
    return np.eye(len(share))[labels], cluster


def reference(rng: np.random.Generator) -> FloatArray:
    return np.asarray(cells(rng, N_REFERENCE, 5)[0].mean(axis=0))


def test_of_independent_cells_it_is_pearsons_test() -> None:
    """The two-sample χ² of the same counts, up to the estimate of the variance."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        counts = rng.multinomial(5000, SHARE)
        frequencies = np.repeat(np.eye(6), counts, axis=0)
        before = rng.multinomial(5000, SHARE)
        change = change_of(frequencies, np.arange(5000), before / 5000, 5000)
        expected = chi2_contingency(np.stack([counts, before]), correction=False).pvalue
        assert change.p_value == pytest.approx(expected, abs=0.01)
        assert change.distance == pytest.approx(np.abs(counts - before).sum() / 10_000)


def test_order_of_classes_and_names_of_patients_change_nothing() -> None:
    rng = np.random.default_rng(4)
    frequencies, cluster = cells(rng, 300, 5)
    first = change_of(frequencies, cluster, SHARE, 500)
    order, rows = rng.permutation(6), rng.permutation(300)
    names = np.array([f"patient {number}" for number in cluster])
    again = change_of(frequencies[rows][:, order], names[rows], SHARE[order], 500)
    assert (again.distance, again.p_value) == pytest.approx((first.distance, first.p_value))


def test_patients_who_differ_are_no_drift_and_a_shift_is() -> None:
    rng = np.random.default_rng(5)
    found = [change_of(*cells(rng, 1000, 5), reference(rng), N_REFERENCE) for _ in range(400)]
    chances = np.array([change.p_value for change in found], dtype=np.float64)
    assert 0.03 < (chances < 0.05).mean() < 0.08
    assert np.mean([change.design_effect for change in found]) == pytest.approx(1.8, abs=0.1)  # 1 + 4 · ICC, ICC 1/5
    moved = SHARE + np.array([-0.1, 0.1, 0, 0, 0, 0])
    assert np.mean([change_of(*cells(rng, 1000, 1, moved), SHARE, 1e9).p_value < 3e-4 for _ in range(100)]) > 0.9


def test_few_patients_give_no_chance() -> None:
    change = change_of(np.eye(6)[[0, 1, 1]], np.zeros(3), SHARE, 100)
    assert (change.p_value, change.n_clusters) == (None, 1)


K, N = 4, 40


def balanced(seed: int = 0, n: int = N) -> FloatArray:
    """Posteriors of balanced cells, one fifth of them borderline."""
    rng = np.random.default_rng(seed)
    many = rng.dirichlet(np.full(K, 0.15), size=3000) * 0.97 + 0.03 / K
    return many[balanced_choice(many, n, 0.2, rng)]


def drawn(rng: np.random.Generator, probs: FloatArray) -> IntArray:
    return np.array([rng.choice(K, p=row) for row in probs])


def passes(seed: int, habit: FloatArray, runs: int = 60) -> float:
    rng = np.random.default_rng(seed)
    found = []
    for run in range(runs):
        posterior = balanced(1000 * seed + run)
        answers = drawn(rng, like_the_others(posterior, LEAST_SLIPS) @ habit)
        found.append(judge_answers(posterior, answers, LEAST_SLIPS).passed)
    return float(np.mean(found))


def test_somebody_like_the_others_passes_and_somebody_who_guesses_does_not() -> None:
    assert passes(11, np.eye(K), 120) >= 0.95
    assert passes(2, np.full((K, K), 1 / K)) <= 0.10


@pytest.mark.parametrize("k", range(K))
def test_somebody_who_takes_one_class_for_another_half_of_the_time_does_not(k: int) -> None:
    habit = np.eye(K)
    habit[k, k] = habit[k, (k + 1) % K] = 0.5
    assert passes(3 + k, habit) <= 0.10


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_small_set_brands_nobody(n: int) -> None:
    rng, failed = np.random.default_rng(n), []
    for seed in range(150):
        posterior = balanced(seed, n)
        failed.append(not judge_answers(posterior, drawn(rng, like_the_others(posterior, 0.05)), 0.05).passed)
    assert np.mean(failed) <= LEVEL + 3 * np.sqrt(LEVEL / 150)


def test_one_slip_decides_nothing() -> None:
    sure = np.full((N, K), 0.001) + np.eye(K)[np.arange(N) % K] * 0.996
    answers = np.arange(N) % K
    answers[0] = 1
    assert judge_answers(sure, answers, LEAST_SLIPS).passed


def test_permuting_classes_and_cells_changes_no_verdict() -> None:
    posterior = balanced()
    answers = drawn(np.random.default_rng(5), posterior)
    order, classes = np.random.default_rng(6).permutation(N), np.array([2, 0, 3, 1])
    place = np.argsort(classes)
    one = judge_answers(posterior, answers, 0.05)
    other = judge_answers(posterior[order][:, classes], place[answers[order]], 0.05)
    assert other.mean == pytest.approx(one.mean)
    assert other.of_pool == pytest.approx(one.of_pool)
    assert (other.low, other.high) == pytest.approx((one.low, one.high))
    assert other.p == pytest.approx(one.p, abs=0.06)  # other draws
    assert judge_answers(posterior, answers, 0.05) == judge_answers(posterior, answers, 0.05)


def test_the_numbers_by_hand() -> None:
    posterior = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    verdict = judge_answers(posterior, np.array([0, 1, 0]), 0.0)
    _, expected = agreement_with_others(posterior, np.zeros(3, dtype=np.int64))
    assert verdict.mean == pytest.approx((0.9 + 0.8 + 0.5) / 3)
    assert verdict.of_pool == pytest.approx(expected.mean())
    assert verdict.low < verdict.difference < verdict.high


def test_the_difference_of_somebody_like_the_others_is_zero_on_average() -> None:
    posterior, rng = balanced(7), np.random.default_rng(7)
    like = like_the_others(posterior, 0.05)
    found = [judge_answers(posterior, drawn(rng, like), 0.05) for _ in range(100)]
    assert abs(np.mean([verdict.difference for verdict in found])) < 0.02
    inside = [verdict.low <= 0 <= verdict.high for verdict in found]
    assert np.mean(inside) >= 0.85


def test_slips_of_the_pool_are_found() -> None:
    rng = np.random.default_rng(8)
    posterior = np.concatenate([balanced(seed) for seed in range(60)])
    for slips in (0.05, 0.2):
        said = drawn(rng, like_the_others(posterior, slips))
        assert slip_rate(posterior, said) == pytest.approx(slips, abs=0.03)
    assert slip_rate(posterior, posterior.argmax(axis=1)) == LEAST_SLIPS


def test_pass_rates_say_what_a_set_can_tell() -> None:
    large, small = (pass_rates(balanced(9, n), LEAST_SLIPS) for n in (N, 8))
    assert min(large.like_the_others, small.like_the_others) >= 0.95
    assert large.guessing <= 0.10
    assert large.confusing.max() <= 0.15
    assert np.nanmax(small.confusing) > 0.3
    with pytest.raises(ValueError, match="too few"):
        pass_rates(balanced(9)[:1], LEAST_SLIPS)
    with pytest.raises(ValueError, match="too few"):
        judge_answers(balanced(9)[:1], np.array([0]), LEAST_SLIPS)


def test_a_choice_is_balanced_and_has_its_share_of_borderline_cells() -> None:
    rng = np.random.default_rng(10)
    many = rng.dirichlet(np.full(K, 0.3), size=2000)
    chosen = many[balanced_choice(many, 40, 0.25, rng)]
    assert (chosen.max(axis=1) < CLEAR_FROM).sum() == 10
    assert np.ptp(np.bincount(chosen.argmax(axis=1), minlength=K)) <= 2
    few = many[:10]
    rows = balanced_choice(few, 40, 0.5, rng)
    assert len(set(rows.tolist())) == len(rows) <= 10
    assert balanced_choice(np.zeros((0, K)), 5, 0.2, rng).size == 0
    with pytest.raises(ValueError, match="share"):
        balanced_choice(few, 4, 1.5, rng)
