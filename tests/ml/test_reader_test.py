"""The test of whether annotators use the classes alike, where one patient's readings hang together."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ml.agreement.coefficients import rater_marginal_test
from ml.metrics.reader_test import reader_test

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
    """How often the test rejects at 5 %, permuting case by case or turning whole patients."""
    count = 0
    for seed in range(runs):
        labels, patient = readings(seed, **world)
        found: Any = (
            reader_test(**long(labels, patient), permutations=99, seed=seed)
            if clustered
            else rater_marginal_test(labels, 2, permutations=99, seed=seed)
        )
        count += found.p_value <= 0.05
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
    assert reader_test(**rows).p_value <= 0.01
    assert reader_test(rows["case"], rows["annotator"], rows["label"]).p_value <= 0.01


def test_the_statistic_is_that_of_the_table_and_two_annotators_are_permuted() -> None:
    """With two labels a case and no patients, turning signs is permuting within cases: both find the same."""
    labels, patient = readings(3, lean=0.0, moved=0.1)
    labels[np.arange(len(labels)), np.random.default_rng(0).integers(0, 3, len(labels))] = -1
    rows = long(labels, patient)
    found = reader_test(rows["case"], rows["annotator"], rows["label"], permutations=1999)
    permuted = rater_marginal_test(labels, 2, permutations=1999)
    assert found.statistic == pytest.approx(permuted.statistic, rel=1e-9)
    assert found.p_value == pytest.approx(permuted.p_value, abs=0.05)
    assert found.n == permuted.n == len(labels)


def test_renaming_changes_nothing_and_lone_labels_count_for_nothing() -> None:
    labels, patient = readings(4, lean=0.1)
    rows = long(labels, patient)
    order = np.random.default_rng(0).permutation(rows["case"].size)
    shuffled = {name: values[order] for name, values in rows.items()}
    renamed = shuffled | {"case": 7 * shuffled["case"] + 3, "annotator": 5 - shuffled["annotator"]}
    assert reader_test(**renamed).statistic == pytest.approx(reader_test(**rows).statistic, rel=1e-9)
    lonely = {name: np.append(values, [9999, 1, 1, 9999][i]) for i, (name, values) in enumerate(rows.items())}
    assert reader_test(**lonely) == reader_test(**rows)
    alone = reader_test(np.arange(5), np.zeros(5, int), np.ones(5, int))
    assert (alone.p_value, alone.n) == (1.0, 0)
