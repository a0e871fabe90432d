"""Laws of the sets for the next answer: exact in any sample, whatever the predictions, by patient and under triage."""

from itertools import permutations
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.conformal import answer_scores, answer_sets, calibrate, fewest_patients, judge_sets, patient_masses, scores
from ml.util.arrays import FloatArray

ONE = np.ones


def threshold(values: list[float], misses: float = 0.1) -> float | None:
    """Threshold of one cell each of n patients."""
    n = len(values)
    return calibrate(np.array(values), ONE(n), np.arange(n), misses=misses).at()


@pytest.mark.parametrize("misses", [0.05, 0.1, 0.2, 0.25, 1 / 3])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 10, 18, 19, 20, 99, 1000])
def test_the_threshold_is_the_order_statistic_of_the_textbooks(n: int, misses: float) -> None:
    place = ceil((n + 1) * (1 - misses) - 1e-9)
    assert threshold([float(i) for i in range(1, n + 1)], misses) == (None if place > n else place)
    assert (place > n) == (n < fewest_patients(misses))


@pytest.mark.parametrize("misses", [0.2, 0.25, 0.4])
def test_coverage_is_exact_over_all_orders_of_any_scores(misses: float) -> None:
    """Whichever of n + 1 comes last: at least 1 − α are covered, and with ties apart at most 1/(n + 1) more."""
    for n_patients in (4, 5, 6):
        values = [float(i) for i in range(n_patients)]
        covered = []
        for order in permutations(range(n_patients), n_patients):
            limit = threshold([values[i] for i in order[:-1]], misses)
            covered.append(limit is None or values[order[-1]] <= limit)
        share = float(np.mean(covered))
        assert 1 - misses - 1e-12 <= share <= 1 - misses + 1 / n_patients + 1e-12


def test_coverage_is_exact_over_all_patients_left_out_however_their_cells_hang_together() -> None:
    """The mean over who comes last of the share of their cells that is covered, by enumeration; sizes differ."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        sizes = rng.integers(1, 9, size=15)
        level = rng.normal(size=15)
        cells = [np.round(level[g] + 0.3 * rng.normal(size=sizes[g]), 2) for g in range(15)]
        covered = []
        for g in range(15):
            others = [h for h in range(15) if h != g]
            patients = np.repeat(others, sizes[others])
            limit = calibrate(np.concatenate([cells[h] for h in others]), patient_masses(patients), patients).at()
            covered.append(1.0 if limit is None else float((cells[g] <= limit).mean()))
        assert float(np.mean(covered)) >= 0.9 - 1e-12


def test_cells_of_a_patient_who_counts_once_each_would_mislead() -> None:
    """Every cell counted alike: patients with many cells speak for all, and the next patient is covered too rarely."""
    rng = np.random.default_rng(1)
    by_patient, by_cell = [], []
    for _ in range(1500):
        sizes = np.where(rng.random(21) < 0.1, 60, 1)
        level = np.where(sizes > 1, 0.0, 1.0) + rng.random(21)  # cells of the patients with many are easy ones
        patients = np.repeat(np.arange(20), sizes[:20])
        values = level[patients]
        grouped = calibrate(values, patient_masses(patients), patients).at()
        naive = calibrate(values, np.ones(values.size), np.arange(values.size)).at()
        by_patient.append(grouped is None or level[20] <= grouped)
        by_cell.append(naive is None or level[20] <= naive)
    error = np.sqrt(0.09 / 1500)
    assert float(np.mean(by_patient)) >= 0.9 - 3 * error
    assert float(np.mean(by_cell)) < 0.9 - 10 * error


def second_answers(rng: np.random.Generator, n_patients: int) -> tuple[FloatArray, ...]:
    """Cells of patients, scores of second answers, probabilities of asking for them, and whether they were asked."""
    sizes = rng.integers(1, 5, size=n_patients)
    patients = np.repeat(np.arange(n_patients), sizes)
    hard = rng.random(patients.size) < 0.4 + 0.2 * (rng.random(n_patients)[patients] - 0.5)
    pi = np.where(hard, 1.0, 0.2)
    values = rng.random(patients.size) + hard  # whoever is read twice is hard, and the answer far down
    return patients, values, pi, rng.random(patients.size) < pi


def test_sets_after_a_label_are_exact_though_triage_chose_who_is_read_twice() -> None:
    """The next patient's cell is drawn before the coin; without weights the hard cells would make every set large."""
    rng = np.random.default_rng(2)
    weighted, plain = [], []
    for _ in range(1500):
        patients, values, pi, asked = second_answers(rng, 61)
        known, new = patients < 60, np.flatnonzero(patients == 60)
        fitted = calibrate(values[known], patient_masses(patients[known], asked[known], pi[known]), patients[known])
        cell = int(rng.choice(new))
        others = new[new != cell]
        own = (1 / pi[cell] + (asked[others] / pi[others]).sum()) / new.size
        limit = fitted.at(float(own))
        weighted.append(limit is None or values[cell] <= limit)
        chosen = known & asked
        naive = calibrate(values[chosen], patient_masses(patients[chosen]), patients[chosen]).at()
        plain.append(naive is None or values[cell] <= naive)
    error = np.sqrt(0.09 / 1500)
    assert 0.9 - 3 * error <= float(np.mean(weighted)) <= 0.96
    assert float(np.mean(plain)) > float(np.mean(weighted)) + 0.02  # larger sets than were asked for


def test_too_few_patients_give_no_threshold_and_a_heavier_one_needs_more() -> None:
    assert threshold([0.1] * 8) is None
    assert threshold([0.1] * 9) == 0.1
    rare = calibrate(np.zeros(50), ONE(50), np.arange(50))
    assert rare.at(5.0) == 0.0
    assert rare.at(6.0) is None
    assert calibrate(np.zeros(0), np.zeros(0), np.zeros(0)).at() is None


probabilities = st.lists(st.integers(0, 20), min_size=2, max_size=6).filter(lambda row: sum(row) > 0)


@given(probabilities, st.randoms(use_true_random=False), st.floats(0, 1))
@settings(deadline=None, max_examples=200)
def test_permuting_classes_permutes_sets_and_thresholds_nest_them(row: list[int], random: object, limit: float) -> None:
    probs = np.array([row]) / sum(row)
    order = np.random.default_rng(random.getrandbits(32)).permutation(len(row))  # type: ignore[attr-defined]
    assert (scores(probs[:, order]) == scores(probs)[:, order]).all()
    small, large = answer_sets(probs, limit / 2), answer_sets(probs, limit)
    assert (answer_sets(probs[:, order], limit) == large[:, order]).all()
    assert not (small & ~large).any()
    assert large[0, probs[0] == probs.max()].all()  # never empty, and never one of two equal leaders alone
    assert answer_sets(probs, 1.0).all()


def test_a_larger_share_of_misses_gives_a_lower_threshold() -> None:
    values = np.random.default_rng(3).random(200).tolist()
    limits = [threshold(values, misses) for misses in (0.02, 0.05, 0.1, 0.2, 0.5)]
    assert limits == sorted(limits, reverse=True)  # type: ignore[type-var]


def test_the_order_of_cells_does_not_matter() -> None:
    rng = np.random.default_rng(4)
    patients, values, pi, asked = second_answers(rng, 40)
    masses, order = patient_masses(patients, asked, pi), rng.permutation(patients.size)
    again = calibrate(values[order], masses[order], patients[order])
    once = calibrate(values, masses, patients)
    assert np.allclose(again.steps, once.steps)
    assert (again.n_patients, again.n_cells) == (once.n_patients, once.n_cells)


def test_scores_by_hand() -> None:
    assert scores([[0.25, 0.25, 0.5], [1 / 3, 1 / 3, 1 / 3]]).tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    assert answer_scores(np.array([[0.6, 0.4], [0.3, 0.7]]), np.array([1, 1])).tolist() == [0.6, 0.0]
    with pytest.raises(ValueError, match="classes from 0 to 1"):
        answer_scores(np.array([[0.6, 0.4]]), np.array([2]))


def test_masses_by_hand_and_what_is_refused() -> None:
    masses = patient_masses(["a", "a", "b"], np.array([True, False, True]), np.array([1.0, 0.1, 0.1]))
    assert masses.tolist() == [0.5, 0.0, 10.0]
    with pytest.raises(ValueError, match="probabilities"):
        patient_masses(["a"], np.array([True]), np.zeros(1))
    with pytest.raises(ValueError, match="misses"):
        calibrate(ONE(3), ONE(3), np.arange(3), misses=0.0)
    with pytest.raises(ValueError, match="shape"):
        calibrate(ONE(3), ONE(2), np.arange(3))
    with pytest.raises(ValueError, match="negative"):
        calibrate(ONE(3), -ONE(3), np.arange(3))


def test_all_classes_are_covered_always_and_no_success() -> None:
    answers, patients = np.array([0, 1, 2, 2]), np.array([0, 0, 1, 2])
    every = judge_sets(np.ones((4, 3), dtype=bool), answers, patient_masses(patients), patients)
    assert (every.coverage.value, every.mean_size.value, every.single.value) == (1.0, 3.0, 0.0)
    first = judge_sets(np.eye(3, dtype=bool)[[0, 0, 0, 0]], answers, patient_masses(patients), patients)
    assert first.coverage.value == pytest.approx(1 / 6)  # one of two cells of one of three patients
    assert (first.mean_size.value, first.single.value) == (1.0, 1.0)
    nobody = judge_sets(np.ones((2, 3), dtype=bool), np.array([-1, -1]), ONE(2), np.arange(2))
    assert np.isnan(nobody.coverage.value)
