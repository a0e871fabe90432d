"""What is measured under triage, weighted, equals what complete labelling would have measured."""

import numpy as np
import pytest

from experiments.worlds.laboratory import live, table


@pytest.mark.slow
def test_weighting_undoes_triage_and_without_it_the_mean_is_off() -> None:
    outcomes = [live(seed, 4000) for seed in range(1000, 1200)]
    rows = table(outcomes)
    print(rows)
    for row in rows.values():
        assert abs(row["weighted_z"]) < 3
        assert 0.91 <= row["coverage"] <= 0.98
        assert abs(row["unweighted_z"]) > 10
    assert np.mean([outcome.share_read_twice for outcome in outcomes]) == pytest.approx(0.2, abs=0.02)
