"""Charts of the library: what they show, and what is missing if they cannot be drawn."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import secondread

RNG = np.random.default_rng(8)
PROBS = RNG.dirichlet([4, 2, 1], 80)
COUNTS = np.stack([RNG.multinomial(2, probs) for probs in PROBS])
CLASSES = ["blast", "mono", "neutro"]


def test_a_reliability_diagram_shows_the_bins_of_the_evaluation(tmp_path: Path) -> None:
    evaluation = secondread.evaluate(COUNTS, PROBS, classes=CLASSES)
    for of, bins in (
        ("all classes", evaluation.class_bins),
        ("mono", evaluation.classes[1].bins),
        ("disagreement", evaluation.disagreement_bins),
    ):
        chart = secondread.plot_reliability(evaluation, of)
        assert chart.to_dict()["vconcat"][1]["data"]["values"] == [row.to_dict() for row in bins]
        chart.save(str(tmp_path / "reliability.svg"))
        assert (tmp_path / "reliability.svg").read_text().startswith("<svg")
    with pytest.raises(
        ValueError, match="no reliability diagram of 'lymph'; there are all classes, disagreement, blast"
    ):
        secondread.plot_reliability(evaluation, "lymph")


def drawn(chart: Any) -> list[dict[str, Any]]:
    """Rows of a triage curve."""
    return list(chart.to_dict()["layer"][1]["data"]["values"])


def test_a_triage_curve_shows_the_recall_of_each_score() -> None:
    cases = [f"c{case}" for case in range(80)]
    labels = pd.DataFrame(COUNTS, columns=[f"count:{name}" for name in CLASSES]).assign(case_id=cases)
    predictions = pd.DataFrame(PROBS, columns=[f"prob:{name}" for name in CLASSES]).assign(case_id=cases)
    rows = drawn(secondread.plot_triage(labels, predictions.sample(frac=1.0, random_state=2)))
    for row, same in zip(rows, drawn(secondread.plot_triage(COUNTS, PROBS)), strict=True):
        assert row == pytest.approx(same)
    expected = secondread.metrics.triage_recall(COUNTS, 1 - (PROBS**2).sum(axis=1), [0.25])
    (row,) = (
        row for row in rows if row["score"] == "probability of disagreement" and abs(row["capacity"] - 0.25) < 1e-9
    )
    assert (row["value"], row["low"]) == pytest.approx((expected[0].value, expected[0].low))
    patients = [f"p{case // 2}" for case in range(80)]
    by_patient = drawn(secondread.plot_triage(labels.assign(patient=patients), predictions, cluster="patient"))
    assert by_patient == drawn(secondread.plot_triage(COUNTS, PROBS, cluster=patients))
    assert by_patient != rows


def test_without_the_extra_its_name_is_in_the_error() -> None:
    code = (
        "import sys; sys.modules['altair'] = None; import secondread\n"
        "try:\n    secondread.plot_triage([[1, 1], [0, 2]], [[0.5, 0.5], [0.1, 0.9]])\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "charts need the package altair: pip install 'secondread[charts]'"
