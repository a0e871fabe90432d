"""What designs of second reads cost, catch and tell, as the policy page shows it."""

import numpy as np
import pytest

from app.metrics.cohort import CohortQuery, build_cohort
from app.metrics.secondary_statistics import simulate_designs
from experiments.worlds.laboratory import AUDIT_RATE, columns_of, open_laboratory, planned


def test_designs_are_compared_at_one_budget() -> None:
    lab = open_laboratory(3, 4_000)
    pi, reads = planned(lab)
    columns = columns_of(lab, pi, reads)
    now, highest, graded, random = simulate_designs(build_cohort(columns, CohortQuery(), 0.0), AUDIT_RATE)
    for row in (now, highest, graded, random):
        assert row.share == pytest.approx(pi.mean(), abs=1e-9)
    # the design in force is the all-or-audit rule, with thresholds of earlier days
    assert highest.catch == pytest.approx(now.catch, abs=0.03)
    assert random.catch == pytest.approx(random.share, abs=1e-9)
    assert random.catch < graded.catch <= highest.catch + 0.03
    assert highest.width["EL"] == pytest.approx(now.width["EL"], rel=0.1)
    assert graded.width["EL"] < 0.95 * highest.width["EL"]
    assert np.isfinite([width for row in (now, highest, graded, random) for width in row.width.values()]).all()


def test_before_two_annotators_differ_there_is_nothing_to_compare() -> None:
    lab = open_laboratory(4, 200)
    nobody = columns_of(lab, np.full(200, 0.1), np.ones(200, dtype=np.int64))
    assert simulate_designs(build_cohort(nobody, CohortQuery(), 0.0), AUDIT_RATE) == []
    assert simulate_designs(build_cohort(nobody, CohortQuery(weighting="none"), 0.0), AUDIT_RATE) == []
