"""The tables of what many cells would cost say what was measured of one."""

import pytest

from experiments import RESULTS
from experiments.reading_rooms import newest
from experiments.scale import CELLS, per_cell, shown, tables
from tools.document_numbers import ROOT


def test_the_document_has_the_tables_of_the_newest_figures() -> None:
    page = (ROOT / "docs" / "scale.md").read_text()
    assert max(RESULTS.glob("*_scale.md")).read_text() == tables()
    assert [row for row in tables().splitlines() if row and row not in page] == []


def test_a_result_that_is_missing_is_named() -> None:
    with pytest.raises(SystemExit, match=r"run `python -m benchmarks\.no_such --save` first"):
        newest("no_such")


def test_a_cell_costs_what_its_case_and_its_labels_do() -> None:
    costs = newest("unit_costs")["figures"]
    costs["store a case"] |= {"api_seconds": 0.02, "wal_bytes": 9_000.0}
    costs["lease and label"] |= {"api_seconds": 0.05, "wal_bytes": 10_000.0}
    found = {what: value for what, value, _ in per_cell(costs)}
    assert found["API, 1.2 leases and labels: core time"] == pytest.approx(0.06)
    assert found["WAL"] == pytest.approx(9_000 + 1.2 * 10_000)
    assert shown(CELLS[0] * found["WAL"], "B") == "21 MB"


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (25.6, "s", "26 s"),
        (25_600, "s", "7.1 h"),
        (2.5e7, "s", "290 days"),
        (5.3e12, "B", "5.3 TB"),
        (1e6, "", "1,000,000"),
    ],
)
def test_quantities_have_two_digits(value: float, unit: str, said: str) -> None:
    assert shown(value, unit) == said
