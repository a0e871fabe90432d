"""Reproductions: quick variants say what the full ones say."""

import json
from pathlib import Path

import pytest

from ml.reproduce import debias
from ml.reproduce.report import reproduce


def test_debias_quick_writes_table_figure_and_json_and_shows_the_point(tmp_path: Path) -> None:
    document = reproduce("debias", tmp_path, quick=True)
    assert {path.name for path in tmp_path.iterdir()} == {"debias.md", "debias.json", "debias.svg"}
    assert json.loads((tmp_path / "debias.json").read_text()) == document
    assert (tmp_path / "debias.md").read_text().count("\n| ") == 11
    assert "<svg" in (tmp_path / "debias.svg").read_text()
    for row in document["rows"]:
        off = abs(row["mean"]) / row["se"]
        assert off > 10 if "plug-in" in row["estimator"] else off < 4, row


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert debias.run(3, quick=True)[:5] == debias.run(3, quick=True)[:5]


def test_an_unknown_reproduction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="debias"):
        reproduce("nonsense", tmp_path)


@pytest.mark.heavy
def test_debias_full_means_are_zero() -> None:
    """Thirty debiased means: the largest of as many true zeros exceeds 3.2 once in fifty times."""
    rows = [row for row in debias.run(0) if "plug-in" not in row.estimator]
    assert max(abs(row.mean) / row.se for row in rows) < 3.2
