"""Images unlike those of a release, in predictions of files and tables, and what old releases make of them."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load, save

from ml.datasets.cells import simulate_cell
from ml.release.artifact import FAMILIARITY_FILE, Release, read_release
from ml.release.ood_detector import FEATURES, OodDetector
from ml.release.predictor import Predictor, prediction_of, quality_features_for_release
from ml.release.score import predict_files
from ml.scoring.table import score_images
from ml.tables.files import read_predictions
from ml.tables.reading import read_table
from tests.support.images import encode
from tests.support.tiny_release import with_familiarity


@pytest.fixture(scope="module")
def checked(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny release with checks of familiarity."""
    return with_familiarity(tiny_release, tmp_path_factory.mktemp("checked") / "release")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Cells like those of the release, and one whose colours are inverted."""
    folder = tmp_path / "images"
    folder.mkdir()
    for index in range(8):
        (folder / f"cell {index}.png").write_bytes(encode(simulate_cell(index, seed=21, size=32).pixels))
    (folder / "strange.png").write_bytes(encode(255 - simulate_cell(0, seed=21, size=32).pixels))
    return folder


def predicted(release: Release, folder: Path) -> tuple[Predictor, list[Image.Image]]:
    return Predictor(release), [Image.open(path).convert("RGB") for path in sorted(folder.iterdir())]


def test_a_strange_image_is_flagged_with_reasons_and_its_disagreement_withheld(checked: Path, images: Path) -> None:
    rows = predict_files(checked, sorted(images.iterdir()))
    strange = rows[-1]
    assert strange["out_of_distribution"] is True
    assert strange["disagreement_prob"] is None
    assert 0 <= strange["disagreement_prob_raw"] <= 1
    assert strange["distance"] is not None
    assert strange["distance"] > 1
    assert strange["distance_percentile"] == 100
    assert set(strange["reasons"]) <= {"place", "size", "focus", "stain", FEATURES}
    familiar = [row for row in rows if not row["out_of_distribution"]]
    assert len(familiar) >= 6
    for row in familiar:
        assert row["disagreement_prob"] == row["disagreement_prob_raw"]
        assert row["reasons"] == []


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_leaves_the_cell_empty_and_is_judged_by_the_raw_one(checked: Path, images: Path, kind: str) -> None:
    out = images.parent / f"predictions.{kind}"
    assert score_images(checked, images, out).n_predictions == 9
    table, rows = read_table(out), predict_files(checked, sorted(images.iterdir()))
    flags = table.column("out_of_distribution").to_pylist()
    assert flags == [row["out_of_distribution"] for row in rows]
    written = table.column("disagreement_prob").to_pylist()
    assert [value in (None, "") for value in written] == flags
    found = read_predictions(out)
    np.testing.assert_allclose(found.disagreement_probs, [row["disagreement_prob_raw"] for row in rows], atol=1e-6)


def test_what_was_stored_gives_the_same_answer_and_without_pixels_the_features_judge(
    checked: Path, images: Path
) -> None:
    predictor, decoded = predicted(read_release(checked), images)
    direct = predictor.predict(decoded)
    pixels = np.stack(predictor.pixels(decoded))
    seen = quality_features_for_release(predictor.release, pixels)
    assert seen is not None
    again = prediction_of(predictor.release, direct.logits, direct.features, seen)
    np.testing.assert_array_equal(again.unlikeness.distance, direct.unlikeness.distance)
    assert again.unlikeness.reasons == direct.unlikeness.reasons
    blind = prediction_of(predictor.release, direct.logits, direct.features)
    assert all(reasons in ([], [FEATURES]) for reasons in blind.unlikeness.reasons)
    assert (blind.unlikeness.distance <= direct.unlikeness.distance).all()


def test_a_release_of_before_flags_by_the_distance_alone_as_it_did(tiny_release: Path, images: Path) -> None:
    predictor, decoded = predicted(read_release(tiny_release), images)
    found = predictor.predict(decoded)
    distance = predictor.release.distance
    assert distance is not None
    np.testing.assert_array_equal(found.out_of_distribution, distance(found.features) > distance.threshold)
    np.testing.assert_array_equal(found.unlikeness.distance > 1, found.out_of_distribution)
    assert np.isnan(found.unlikeness.percentile).all()
    assert quality_features_for_release(predictor.release, np.stack(predictor.pixels(decoded))) is None
    rows = predict_files(tiny_release, sorted(images.iterdir()))
    assert all(row["distance_percentile"] is None for row in rows)


def test_a_file_of_another_version_is_refused(checked: Path) -> None:
    tensors = load((checked / FAMILIARITY_FILE).read_bytes()) | {"version": np.array([99])}
    with pytest.raises(ValueError, match="version 99 is not 1"):
        OodDetector.from_bytes(save(tensors))
