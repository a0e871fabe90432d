"""Two threads say what one says, to the last bit, and lose nothing of what goes wrong."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ml import at_once as module
from ml.at_once import at_once
from ml.metrics import Readings, evaluate
from ml.metrics.jackknife import select
from ml.metrics.reliability import Binned, PairCounts

K = 3


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many cores there are, where anything is worth a thread."""
    monkeypatch.setattr(module, "WORTH_A_THREAD", 0)

    def cores(n: int) -> None:
        monkeypatch.setattr(module, "cores", lambda: n)

    return cores


def laboratory(n: int = 400) -> dict[str, Any]:
    """Cases of patients, some read twice by two of five annotators, with weights of both orders."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(K, 0.5), n)
    labels = np.stack([(rng.random(n)[:, None] > probs.cumsum(axis=1)[:, :-1]).sum(axis=1) for _ in range(2)], axis=1)
    twice = rng.random(n) < 0.4
    first = np.eye(K, dtype=np.int64)[labels[:, 0]]
    counts = first + twice[:, None] * np.eye(K, dtype=np.int64)[labels[:, 1]]
    readers = np.stack([rng.integers(0, 3, n), rng.integers(3, 5, n)], axis=1)
    case, place = np.nonzero(np.stack([np.ones(n, dtype=bool), twice], axis=1))
    return {
        "label_counts": counts,
        "class_probs": probs,
        "disagreement_probs": rng.uniform(0, 1, n),
        "first_label_counts": first,
        "readings": Readings(case, readers[case, place], labels[case, place], place == 0),
        "weights": np.ones(n),
        "weights2": np.where(twice, 2.5, 0.0),
        "cluster": rng.integers(0, n // 3, n),
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_an_evaluation_is_the_same_with_one_core_and_with_two(weighted: bool, threads: Callable[[int], None]) -> None:
    given = laboratory()
    if not weighted:
        for name in ("first_label_counts", "readings", "weights", "weights2"):
            del given[name]
    threads(1)
    alone = evaluate(**given).to_dict()
    threads(2)
    assert evaluate(**given).to_dict() == alone


def test_of_both_calls_results_errors_and_settings_come_through(threads: Callable[[int], None]) -> None:
    threads(2)

    def fails() -> float:
        raise ValueError("second")

    with pytest.raises(ValueError, match="second"):
        at_once(lambda: 1, fails, 1)
    with pytest.raises(ValueError, match="second"):
        at_once(fails, lambda: 1, 1)
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert at_once(lambda: 1, lambda: float(np.ones(1) @ (np.ones(1) / np.zeros(1))), 1) == (1, float("inf"))


@pytest.mark.parametrize("clustered", [False, True])
def test_pairs_are_counted_from_cells_as_from_cases(clustered: bool) -> None:
    given = laboratory()
    everyone = select(np.ones(400, dtype=bool), given["weights2"], given["cluster"] if clustered else None)
    probs = everyone.take(given["class_probs"])
    binned = Binned.of(everyone.take(given["first_label_counts"]) * 1.0, probs, everyone, 7, "uniform", "pair")
    found, expected = PairCounts.of_binned(binned), PairCounts.of(probs, everyone, 7)
    assert found.n_cases == expected.n_cases
    np.testing.assert_array_equal(found.cases, expected.cases)
    np.testing.assert_array_equal(found.pairs, expected.pairs)
