"""Fresh rows of changed cases in the place of their old ones."""

import uuid
from dataclasses import replace

import numpy as np
import pytest

from app.metrics.dataset import EvaluationDataset, merge_changed_cases, overwrite_changed_cases, pack_dataset_ids


def cases(patients: dict[str, int], pi: float) -> EvaluationDataset:
    """One case per letter, of these patients, told apart from other rows of the same case by ``pi``."""
    ids = np.array([[0] * 15 + [ord(letter)] for letter in patients], dtype=np.uint8).reshape(-1, 16)
    columns = EvaluationDataset.empty(["a", "b"], len(patients))
    return replace(columns, case_id=ids, cluster=np.array(list(patients.values()), dtype=np.int64), pi=columns.pi + pi)


def case(letter: str) -> uuid.UUID:
    return uuid.UUID(bytes=bytes([0] * 15 + [ord(letter)]))


def told(columns: EvaluationDataset) -> list[tuple[str, int, float]]:
    letters = [chr(row[-1]) for row in columns.case_id]
    return list(zip(letters, columns.cluster.tolist(), columns.pi.tolist(), strict=True))


def by_id(columns: EvaluationDataset) -> np.ndarray:
    return np.argsort(pack_dataset_ids(columns), kind="stable")


def test_the_example_of_the_docstring() -> None:
    old = cases({"A": 1, "B": 4, "C": 4, "D": 9}, 0.25)
    fresh = cases({"B": 9, "E": 4}, 0.5)
    result = merge_changed_cases(old, by_id(old), [case(letter) for letter in "BDE"], fresh)
    assert told(result) == [("A", 1, 0.25), ("E", 4, 0.5), ("C", 4, 0.25), ("B", 9, 0.5)]


@pytest.mark.parametrize("seed", range(20))
def test_any_change_gives_the_rows_that_a_dictionary_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    letters = [chr(65 + k) for k in range(12)]
    there = {letter: int(rng.integers(5)) for letter in letters if rng.random() < 0.6}
    old = cases(dict(sorted(there.items(), key=lambda item: (item[1], rng.random()))), 0.25)
    changed = [letter for letter in letters if rng.random() < 0.5]
    now = {letter: int(rng.integers(5)) for letter in changed if rng.random() < 0.7}
    result = merge_changed_cases(old, by_id(old), [case(letter) for letter in changed], cases(now, 0.5))
    expected = {letter: (patient, 0.25) for letter, patient in there.items() if letter not in changed}
    expected |= {letter: (patient, 0.5) for letter, patient in now.items()}
    assert {letter: (patient, pi) for letter, patient, pi in told(result)} == expected
    assert len(result) == len(expected)
    assert (np.diff(result.cluster) >= 0).all()


def test_labels_are_written_in_place() -> None:
    old = cases({"A": 1, "B": 4, "C": 4, "D": 9}, 0.25)
    result = overwrite_changed_cases(old, by_id(old), [case(letter) for letter in "DB"], cases({"D": 9, "B": 4}, 0.5))
    assert result is not None
    assert told(result) == [("A", 1, 0.25), ("B", 4, 0.5), ("C", 4, 0.25), ("D", 9, 0.5)]
    assert result.pi is old.pi


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ("BE", {"B": 4, "E": 4}),  # a new case
        ("BD", {"B": 4}),  # one that is gone
        ("BE", {"E": 4}),  # both
        ("BD", {"B": 9, "D": 9}),  # another patient
    ],
)
def test_where_cases_come_go_or_move_nothing_is_written(changed: str, now: dict[str, int]) -> None:
    there = {"A": 1, "B": 4, "C": 4, "D": 9}
    old = cases(there, 0.25)
    assert overwrite_changed_cases(old, by_id(old), [case(letter) for letter in changed], cases(now, 0.5)) is None
    assert told(old) == told(cases(there, 0.25))
