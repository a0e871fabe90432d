"""Splits by patient that are alike in each class."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ml.util.splits import split_partitions, stratified_partitions

SHARES = {"train": 0.6, "valid": 0.1, "calibration": 0.1, "test": 0.2}


@st.composite
def cells(draw: st.DrawFn) -> tuple[list[str], np.ndarray]:
    n_groups, n_classes = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    groups = draw(st.lists(st.integers(0, n_groups - 1), min_size=1, max_size=80))
    counts = draw(
        st.lists(
            st.lists(st.integers(0, 3), min_size=n_classes, max_size=n_classes),
            min_size=len(groups),
            max_size=len(groups),
        )
    )
    return [f"p{group}" for group in groups], np.array(counts).reshape(len(groups), n_classes)


@settings(deadline=None, max_examples=50)
@given(cells(), st.integers(0, 3))
def test_no_patient_is_split_and_no_partition_is_empty(data: tuple[list[str], np.ndarray], seed: int) -> None:
    groups, counts = data
    parts = stratified_partitions(groups, counts, SHARES, seed)
    assert set(parts.tolist()) <= set(SHARES)
    assert len(set(zip(groups, parts.tolist(), strict=True))) == len(set(groups))
    if len(set(groups)) >= len(SHARES):
        assert set(parts.tolist()) == set(SHARES)
    assert (parts == stratified_partitions(groups, counts, SHARES, seed)).all()


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=80))
def test_a_partition_is_over_its_share_by_less_than_the_largest_patient(numbers: list[int]) -> None:
    groups = [f"p{number}" for number in numbers]
    parts = stratified_partitions(groups, np.ones((len(groups), 1)), SHARES, 0)
    largest = max(groups.count(group) for group in groups)
    for name, share in SHARES.items():
        assert (parts == name).sum() <= share * len(groups) + largest


def test_rare_classes_reach_every_partition_where_a_plain_split_loses_them() -> None:
    rng = np.random.default_rng(0)
    missed = {"plain": 0, "stratified": 0}
    for seed in range(40):
        groups = [f"p{number // 4}" for number in range(240)]
        classes = rng.choice(4, size=240, p=[0.7, 0.2, 0.06, 0.04])
        counts = np.eye(4, dtype=int)[classes]
        for kind, parts in (
            ("plain", split_partitions(groups, SHARES, seed)),
            ("stratified", stratified_partitions(groups, counts, SHARES, seed)),
        ):
            missed[kind] += sum(counts[parts == name].sum(axis=0)[k] == 0 for name in SHARES for k in (2, 3))
    assert missed["stratified"] < missed["plain"] / 4
    assert missed["plain"] > 20


def test_shares_are_kept() -> None:
    groups = [f"p{number // 3}" for number in range(3000)]
    counts = np.eye(6, dtype=int)[np.random.default_rng(1).integers(0, 6, 3000)]
    parts = stratified_partitions(groups, counts, SHARES, 2)
    for name, share in SHARES.items():
        assert (parts == name).mean() == pytest.approx(share, abs=0.01)
        np.testing.assert_allclose(counts[parts == name].mean(axis=0), counts.mean(axis=0), atol=0.03)
