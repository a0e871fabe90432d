"""What is measured under triage, weighted, equals what complete labelling would have measured."""

import numpy as np
import pytest

from tests.simulation.laboratory import QUANTITIES, Outcome, live


def table(outcomes: list[Outcome]) -> dict[str, dict[str, float]]:
    """Means, Monte-Carlo errors of the differences and coverage, one row a quantity."""
    rows = {}
    for name in QUANTITIES:
        complete, weighted, unweighted = (
            np.array([getattr(outcome, kind)[name] for outcome in outcomes])
            for kind in ("complete", "weighted", "unweighted")
        )
        root = np.sqrt(len(outcomes))
        truth = complete.mean()
        covered = np.mean([low <= truth <= high for low, high in (outcome.intervals[name] for outcome in outcomes)])
        rows[name] = {
            "complete": truth,
            "weighted": weighted.mean(),
            "weighted_z": (weighted - complete).mean() / ((weighted - complete).std(ddof=1) / root),
            "unweighted": unweighted.mean(),
            "unweighted_z": (unweighted - complete).mean() / ((unweighted - complete).std(ddof=1) / root),
            "coverage": covered,
        }
    return rows


def show(rows: dict[str, dict[str, float]]) -> None:
    for name, row in rows.items():
        print(name, {key: round(float(value), 4) for key, value in row.items()})


@pytest.mark.slow
def test_weighting_undoes_triage_and_without_it_the_mean_is_off() -> None:
    outcomes = [live(seed, 4000) for seed in range(1000, 1200)]
    rows = table(outcomes)
    show(rows)
    for row in rows.values():
        assert abs(row["weighted_z"]) < 3
        assert 0.91 <= row["coverage"] <= 0.98
        assert abs(row["unweighted_z"]) > 10
    assert np.mean([outcome.share_read_twice for outcome in outcomes]) == pytest.approx(0.2, abs=0.02)
