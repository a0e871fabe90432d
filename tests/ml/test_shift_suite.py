"""The suite of standard shifts: its first row is what the release says unshifted, and numbers are of the images."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from ml.charts.reliability import write_chart
from ml.charts.results import shift_chart
from ml.datasets.annotators import AnnotatorPool, count_labels
from ml.datasets.cells import simulate_cells
from ml.images.standard_shifts import STANDARD_SHIFTS, shifted
from ml.metrics import evaluate
from ml.release.artifact import read_release
from ml.release.card import readme_text
from ml.release.predictor import Predictor
from ml.training.export import export_run
from ml.training.release_checks import OTHER, UNSHIFTED, ShiftTrial, shift_suite
from ml.training.run_folder import RunFolder
from tests.support.tiny_release import with_familiarity

CELLS = simulate_cells(24, seed=31, size=32)


@pytest.fixture(scope="module")
def predictor(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Of the tiny release with checks of familiarity."""
    return Predictor(read_release(with_familiarity(tiny_release, tmp_path_factory.mktemp("suite") / "release")))


def test_the_suite_tells_what_the_release_says_of_each_shift(predictor: Predictor, tmp_path: Path) -> None:
    pixels = np.stack(predictor.pixels([Image.fromarray(cell.pixels) for cell in CELLS]))
    _, labels = AnnotatorPool().read(np.stack([cell.true_probs for cell in CELLS]), 3, np.random.default_rng(0))
    counts = count_labels(labels, len(predictor.release.classes))
    counts[0] = 0  # a case that nobody has labelled
    steps: list[tuple[int, int]] = []
    rows = shift_suite(predictor, pixels, counts, pixels[:5], lambda done, total: steps.append((done, total)))
    assert [row["kind"] for row in rows] == [
        UNSHIFTED,
        *(shift.name for shift in STANDARD_SHIFTS for _ in range(2)),
        OTHER,
    ]
    assert steps == [(done, len(rows)) for done in range(1, len(rows) + 1)]
    by_name = {(row["kind"], row["strength"]): row for row in rows}
    plain = by_name[UNSHIFTED, "none"]
    noisy, _ = shifted(pixels, STANDARD_SHIFTS[-1], (1.0, 1.0), seed=len(STANDARD_SHIFTS) - 1)
    for row, images in ((plain, pixels), (by_name["noise", "standard"], noisy)):
        prediction = predictor.predict(list(images))
        distribution = prediction.distribution
        metrics = evaluate(counts, distribution.class_probs, distribution.disagreement_probs).to_dict()["metrics"]
        assert row["agreement"] == pytest.approx(metrics["agreement"]["value"])
        assert row["loss"] == pytest.approx(metrics["L"]["value"])
        assert row["flagged"] == prediction.out_of_distribution.mean()
        assert row["mean_disagreement"] == pytest.approx(distribution.disagreement_probs.mean())
    assert by_name["noise", "standard"]["agreement_change"] == pytest.approx(
        (by_name["noise", "standard"]["agreement"] or 0) - (plain["agreement"] or 0)
    )
    assert by_name[OTHER, "none"]["n"] == 5
    assert by_name[OTHER, "none"]["agreement"] is None
    readme = readme_text({**predictor.release.card, "shifts": rows})
    assert readme.split("## Under shift")[1].count("\n| ") == len(rows) + 1
    assert "## Under shift" not in readme_text({**predictor.release.card, "shifts": []})
    write_chart(shift_chart(rows), tmp_path / "shifts.svg")
    drawn = "".join(ElementTree.parse(tmp_path / "shifts.svg").getroot().itertext())
    assert all(shift.name in drawn for shift in STANDARD_SHIFTS)


@pytest.mark.slow
def test_an_export_tries_shifts_out_and_its_card_tells_them(trained_run: Path, tmp_path: Path) -> None:
    done: list[int] = []
    folder = RunFolder(trained_run)
    other = np.full((4, 50, 60, 3), 128, dtype=np.uint8)
    trial = ShiftTrial(other, lambda count, total: done.append(total - count))
    release = export_run(folder, tmp_path / "release", shifts=trial)
    rows = release.card["shifts"]
    assert done[-1] == 0
    held_out = folder.read_held_out()
    assert held_out is not None
    assert {row["n"] for row in rows} == {len(held_out.pixels), 4}
    assert rows[0]["flagged"] <= 0.05
    assert rows[-1]["flagged"] == 1
    readme = (release.path / "README.md").read_text()
    assert "## Under shift" in readme
    assert "defocus" in readme
    test = folder.read_outputs().take(held_out.rows)
    assert (test.partition == "test").all()
    again = Predictor(release).predict(list(held_out.pixels))
    np.testing.assert_allclose(again.logits, test.logits, atol=1e-3)
    assert export_run(folder, tmp_path / "plain").card.get("shifts") is None
