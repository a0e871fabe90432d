"""The stain drifts half way: the service says so, disagreement is no longer calibrated, recalibration mends it."""

from pathlib import Path

import pytest

from experiments.worlds.drifted_stain import live


@pytest.mark.heavy
def test_recalibration_restores_the_calibration_of_disagreement(tmp_path: Path) -> None:
    drift = live(tmp_path)
    assert not any("stain" in text for text in drift.then.warnings)
    assert any("stain" in text for text in drift.drifted.warnings)
    report = drift.report
    print(drift.rows(), report["gate"]["passed"], report["gate"]["reasons"])
    before, after = report["champion"], report["candidate"]
    assert report["parent"] == drift.release
    assert after["CE_D"]["value"] < before["CE_D"]["value"]
    assert after["L_D"]["value"] < before["L_D"]["value"]
    assert report["gate"]["L_D"]["high"] < 0
