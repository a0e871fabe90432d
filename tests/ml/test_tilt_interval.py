"""Limits of how far annotators differ: they hold the truth, and they need three annotators."""

import numpy as np
import pytest
from scipy.special import expit

from ml.annotations import Annotations
from ml.specimens.laboratory import annotator_tilt, annotator_tilt_interval


def tilted_readers(rng: np.random.Generator, n: int, sd: float) -> Annotations:
    """Labels of 300 cells by annotators with a tilt each."""
    tilts = rng.normal(0, sd, n)
    return Annotations.of_matrix((rng.random((300, n)) < expit(tilts - 1.5)).astype(np.int64), 2)


@pytest.mark.parametrize(("n", "sd", "least"), [(12, 0.3, 0.9), (5, 0.3, 0.9), (12, 0.0, 0.97)])
def test_the_interval_of_the_tilt_holds_the_true_one(n: int, sd: float, least: float) -> None:
    rng = np.random.default_rng(3)
    found = [annotator_tilt_interval(tilted_readers(rng, n, sd), [1]) for _ in range(200)]
    assert np.mean([limits is not None and limits[0] <= sd <= limits[1] for limits in found]) >= least


def test_the_interval_of_the_tilt_needs_three_annotators_who_share_cells_with_others() -> None:
    rng = np.random.default_rng(4)
    three = tilted_readers(rng, 3, 0.5)
    limits, tilt = annotator_tilt_interval(three, [1]), annotator_tilt(three, [1])
    assert limits is not None
    assert tilt is not None
    assert limits[0] <= tilt <= limits[1]
    assert annotator_tilt_interval(tilted_readers(rng, 2, 0.5), [1]) is None
    matrix = rng.integers(0, 2, (300, 4))
    matrix[:, 3] = -1  # one shares no cell with another
    assert annotator_tilt_interval(Annotations.of_matrix(matrix, 2), [1]) is not None
    matrix[:150, 1] = matrix[150:, 2] = -1  # all pairs have the first annotator
    assert annotator_tilt_interval(Annotations.of_matrix(matrix, 2), [1]) is None


def test_annotators_with_the_same_labels_have_no_tilt() -> None:
    same = np.repeat(np.arange(300)[:, None] % 3 == 0, 4, axis=1).astype(np.int64)
    assert annotator_tilt_interval(Annotations.of_matrix(same, 2), [1]) == (0.0, 0.0)
    few = annotator_tilt_interval(tilted_readers(np.random.default_rng(5), 12, 0.0), [1])
    assert few is not None
    assert few[0] == 0.0
    assert few[1] < 0.4
