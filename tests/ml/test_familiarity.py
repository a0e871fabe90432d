"""Images unlike those of a release: checks, distances, standard shifts, and what predictions say of them."""

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from safetensors.numpy import load, save

from ml.annotations import Annotations
from ml.charts.reliability import write_chart
from ml.charts.results import shift_chart
from ml.datasets.cells import AnnotatorPool, simulate_cell, simulate_cells
from ml.images.image_quality_features import CHECKS, compute_quality_features, feature_columns, optical_density
from ml.images.picture import difference_hash, hash_distance
from ml.images.preprocess import Pixels
from ml.images.standard_shifts import HUE, STANDARD_SHIFTS, StandardShift, shifted, shifts_for, turned_hue
from ml.metrics import evaluate
from ml.release.adapting import add_ood_check
from ml.release.artifact import FAMILIARITY_FILE, Release, ReleaseError, read_release
from ml.release.card import readme_text
from ml.release.ood_detector import (
    FEATURES,
    Check,
    DetectorInputs,
    FeatureDistance,
    OodDetector,
    fit_feature_distance,
    fit_ood_detector,
)
from ml.release.predictor import Predictor, prediction_of, quality_features_for_release
from ml.release.score import predict_files
from ml.scoring.table import ScoreRequest, score_images
from ml.tables.files import read_predictions
from ml.tables.reading import read_table
from ml.training.export import export_run
from ml.training.release_checks import OTHER, UNSHIFTED, ShiftTrial, shift_suite, stain_and_labels
from ml.training.run_folder import CachedOutputs, RunFolder
from ml.util.arrays import FloatArray
from tests.support.command import run_here
from tests.support.images import encode
from tests.support.tiny_release import with_familiarity, without_check

COLUMNS = {"place": slice(0, 2), "stain": slice(2, 6)}


def seen(n: int, seed: int, moved: float = 0.0) -> DetectorInputs:
    """Images whose statistics depend on their class, which the logits name; ``moved`` shifts the stain."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, n)
    logits = 5.0 * np.eye(3)[kind] + rng.normal(size=(n, 3))
    features = rng.normal(size=(n, 10)) + 3 * kind[:, None]
    pixels = rng.standard_t(6, size=(n, 6)) * (1 + kind[:, None]) + kind[:, None]
    pixels[:, 2:6] += moved
    return DetectorInputs(*(array.astype(np.float32) for array in (features, logits, pixels)))


def judged(found: OodDetector, images: DetectorInputs) -> np.ndarray:
    return found.judge(images.features, images.named, images.appearance, COLUMNS).flagged


@pytest.mark.parametrize("n", [30, 99, 150, 1000])
def test_the_limit_is_the_order_statistic_that_keeps_the_false_alarm_rate(n: int) -> None:
    found = fit_ood_detector(seen(400, 1), seen(n, 2), COLUMNS)
    assert found is not None
    assert found.false_alarm_rate <= max(0.01, 1 / (n + 1)) + 1e-12
    above = int((found.held_out > found.limit).sum())
    assert above == n - min(math.ceil((n + 1) * 0.99), n)
    assert judged(found, seen(n, 2)).sum() == above


def test_false_alarms_on_new_images_are_as_stated_over_many_draws() -> None:
    rates = []
    for draw in range(25):
        found = fit_ood_detector(seen(300, 3 * draw), seen(300, 3 * draw + 1), COLUMNS)
        assert found is not None
        rates.append(judged(found, seen(2000, 3 * draw + 2)).mean())
    spread = np.std(rates, ddof=1) / np.sqrt(len(rates))
    assert np.mean(rates) == pytest.approx(found.false_alarm_rate, abs=4 * spread)


def test_a_moved_stain_is_flagged_for_its_stain_and_more_so_the_further_it_moved() -> None:
    found = fit_ood_detector(seen(400, 1), seen(1000, 2), COLUMNS)
    assert found is not None
    near, far = (found.judge(s.features, s.named, s.appearance, COLUMNS) for s in (seen(200, 9), seen(200, 9, 60.0)))
    assert far.flagged.all()
    assert all(reasons[0] == "stain" for reasons in far.reasons)
    assert (far.distance > np.maximum(near.distance, 1)).all()
    assert (far.percentile == 100).all()
    assert near.percentile.mean() == pytest.approx(50, abs=6)
    for answer in (near, far):
        np.testing.assert_array_equal(answer.flagged, answer.distance > 1)
        assert [bool(reasons) for reasons in answer.reasons] == answer.flagged.tolist()


def test_an_image_is_judged_alike_alone_and_in_company_and_after_reading_back() -> None:
    found = fit_ood_detector(seen(400, 1), seen(300, 2), COLUMNS)
    assert found is not None
    again, images = OodDetector.from_bytes(found.to_bytes()), seen(50, 4, 3.0)
    together = again.judge(images.features, images.named, images.appearance, COLUMNS)
    for row in range(50):
        one = slice(row, row + 1)
        alone = found.judge(images.features[one], images.named[one], images.appearance[one], COLUMNS)
        assert alone.flagged[0] == together.flagged[row]
        assert alone.distance[0] == pytest.approx(together.distance[row], rel=1e-9, abs=1e-12)
        assert alone.reasons[0] == together.reasons[row]


def test_without_pixels_features_alone_judge_and_what_is_not_finite_is_flagged() -> None:
    found = fit_ood_detector(seen(400, 1), seen(300, 2), COLUMNS)
    assert found is not None
    images = seen(40, 5, 80.0)
    unknown = np.full_like(images.appearance, np.nan)
    for given in (None, unknown):
        blind = found.judge(images.features, images.named, given, COLUMNS)
        assert blind.flagged.mean() < 0.2
        assert all(reasons in ([], [FEATURES]) for reasons in blind.reasons)
    broken = np.full_like(images.features, np.inf)
    assert found.judge(broken, images.named, unknown, COLUMNS).flagged.all()


def test_a_class_that_never_occurs_a_statistic_that_never_varies_and_too_few_images() -> None:
    known, held_out = seen(60, 1), seen(60, 2)
    flat = known.appearance.copy()
    flat[:, 2] = 1.0
    found = fit_ood_detector(DetectorInputs(known.features, known.logits - [0, 0, 99], flat), held_out, COLUMNS)
    assert found is not None
    assert np.isfinite(found.held_out).all()
    assert fit_ood_detector(seen(19, 1), held_out, COLUMNS) is None
    assert fit_ood_detector(known, seen(19, 1), COLUMNS) is None


def test_what_is_no_such_file_is_refused() -> None:
    found = fit_ood_detector(seen(60, 1), seen(60, 2), COLUMNS)
    assert found is not None
    with pytest.raises(ValueError, match="not a record"):
        OodDetector.from_bytes(b"x")
    with pytest.raises(ValueError, match="misshapen"):
        Check(np.zeros((2, 3)), np.zeros((2, 2, 3)), np.zeros(2))
    with pytest.raises(ValueError, match="statistics must be"):
        found.checks["place"](np.zeros((1, 3)), np.zeros(1, dtype=np.int64))


@pytest.mark.parametrize("channels", [1, 3])
def test_statistics_of_pixels_do_not_depend_on_which_way_up_a_cell_lies(channels: int) -> None:
    pixels = np.stack([cell.pixels[..., :channels] for cell in simulate_cells(6, seed=3, size=32)])
    plain = compute_quality_features(pixels)
    for turned in (pixels[:, ::-1], pixels[:, :, ::-1], pixels.swapaxes(1, 2)):
        np.testing.assert_allclose(compute_quality_features(np.ascontiguousarray(turned)), plain, rtol=1e-4, atol=1e-4)
    columns = feature_columns(32, channels)
    assert list(columns) == list(CHECKS)
    assert columns["stain"].stop == plain.shape[1]
    np.testing.assert_array_equal(compute_quality_features(pixels[2:3])[0], plain[2])


@pytest.mark.parametrize(
    ("kind", "check"), [("off centre", "place"), ("defocus", "focus"), ("hue", "stain"), ("half magnification", "size")]
)
def test_each_check_notices_what_it_is_for(kind: str, check: str) -> None:
    pixels = np.stack([cell.pixels for cell in simulate_cells(25, seed=4, size=32)])
    shift = next(shift for shift in STANDARD_SHIFTS if shift.name == kind)
    moved = np.stack([shift(image, 1.0, row) for row, image in enumerate(pixels)])
    where = feature_columns(32, 3)[check]
    before, after = compute_quality_features(pixels)[:, where], compute_quality_features(moved)[:, where]
    change = np.abs(after - before).mean(axis=0) / before.std(axis=0)
    assert change.max() > 1


@pytest.mark.parametrize(("n", "d"), [(400, 8), (60, 128)])
def test_familiar_cells_are_within_and_strange_ones_beyond(n: int, d: int) -> None:
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(d, d)) / np.sqrt(d)
    known, held_out, new = (rng.normal(size=(m, d)) @ mix + 3 for m in (n, 2000, 2000))
    found = fit_feature_distance(known, held_out)
    assert found is not None
    detector = found.as_detector(2)

    def flagged(features: FloatArray) -> npt.NDArray[np.bool_]:
        named = np.arange(len(features)) % 2
        scores = detector.judge(features, named, None, {})
        np.testing.assert_array_equal(scores.distance > 1, scores.flagged)
        assert np.isnan(scores.percentile).all()
        return scores.flagged

    np.testing.assert_array_equal(flagged(new), found(new) > found.threshold)
    assert flagged(held_out).mean() == pytest.approx(0.005, abs=0.001)
    assert flagged(new).mean() < 0.012
    assert flagged(new + 6 * mix[0]).mean() > flagged(new).mean()
    assert flagged(np.full((1, d), np.nan)).all()
    again = FeatureDistance.from_bytes(found.to_bytes())
    np.testing.assert_array_equal(again(new), found(new))


def test_a_feature_that_never_varies_does_no_harm() -> None:
    rng = np.random.default_rng(1)
    known = np.concatenate([rng.normal(size=(50, 3)), np.zeros((50, 1))], axis=1)
    found = fit_feature_distance(known, known)
    assert found is not None
    assert np.isfinite(found(known)).all()


def test_too_few_cells_give_none_and_bad_bytes_an_error() -> None:
    assert fit_feature_distance(np.ones((5, 2)), np.ones((50, 2))) is None
    with pytest.raises(ValueError, match="not a feature distance"):
        FeatureDistance.from_bytes(b"x")
    with pytest.raises(ValueError, match="misshapen"):
        FeatureDistance(np.zeros(2), np.zeros((3, 3)), 1.0)
    with pytest.raises(ValueError, match="must be"):
        FeatureDistance(np.zeros(2), np.eye(2), 1.0)(np.zeros((1, 3)))


def test_near_duplicates_have_near_hashes_and_other_cells_do_not() -> None:
    cells = [Image.fromarray(simulate_cell(i, seed=9, size=96).pixels) for i in range(12)]
    hashes = [difference_hash(cell) for cell in cells]
    for cell, own in zip(cells, hashes, strict=True):
        brighter = Image.fromarray(np.clip(np.asarray(cell).astype(int) + 8, 0, 255).astype(np.uint8))
        smaller = cell.resize((90, 90))
        assert hash_distance(own, difference_hash(brighter)) <= 4
        assert hash_distance(own, difference_hash(smaller)) <= 4
        assert -(2**63) <= own < 2**63
    apart = [hash_distance(a, b) for i, a in enumerate(hashes) for b in hashes[:i]]
    assert min(apart) > 4
    assert difference_hash(Image.new("RGB", (50, 50), "white")) == 0


def test_optical_density_is_that_of_the_colour() -> None:
    assert optical_density(np.full((4, 4, 3), 255, dtype=np.uint8)) == (0.0, 0.0, 0.0)
    red = np.zeros((2, 2, 3), dtype=np.uint8)
    red[..., 0] = 255
    assert optical_density(red) == pytest.approx((0.0, np.log10(256), np.log10(256)))
    assert optical_density(np.full((2, 2, 1), 25, dtype=np.uint8)) == pytest.approx((np.log10(256 / 26),) * 3)


BY_NAME = {shift.name: shift for shift in STANDARD_SHIFTS}


def disc(side: int = 48, radius: float = 8.0, at: tuple[float, float] = (23.5, 23.5)) -> Pixels:
    """A dark disc on a light ground."""
    y, x = np.mgrid[:side, :side]
    inside = (y - at[0]) ** 2 + (x - at[1]) ** 2 <= radius**2
    return np.where(inside[..., None], np.array([90, 40, 120]), np.array([235, 225, 230])).astype(np.uint8)


def area(pixels: Pixels) -> int:
    return int((pixels[..., 1] < 130).sum())


def centre(pixels: Pixels) -> np.ndarray:
    return np.argwhere(pixels[..., 1] < 130).mean(axis=0)


@pytest.mark.parametrize("shift", STANDARD_SHIFTS, ids=lambda shift: shift.name)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_shift_is_a_pure_function_and_strength_0_changes_nothing(shift: StandardShift, channels: int) -> None:
    cell = simulate_cell(3, seed=9, size=40).pixels[:37, :, :channels]
    if shift.colour and channels == 1:
        assert shift not in shifts_for(channels)
        return
    before = cell.copy()
    np.testing.assert_array_equal(shift(cell, 0.0, 1), cell)
    first, again = shift(cell, 0.7, 5), shift(cell, 0.7, 5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(cell, before)
    assert first.shape == cell.shape
    assert first.dtype == np.uint8
    assert (first != cell).any()


@pytest.mark.parametrize("shift", STANDARD_SHIFTS, ids=lambda shift: shift.name)
def test_a_stronger_shift_changes_more(shift: StandardShift) -> None:
    cell = simulate_cell(5, seed=9, size=48).pixels
    change = [np.abs(shift(cell, s, 2).astype(int) - cell).mean() for s in (0.1, 0.4, 1.0)]
    assert change[0] < change[1] < change[2]
    with pytest.raises(ValueError, match="negative"):
        shift(cell, -0.1, 0)


def test_magnification_scales_areas_and_shows_no_second_cell() -> None:
    cell = disc()
    for strength in (0.5, 1.0):
        smaller, larger = (BY_NAME[f"{word} magnification"](cell, strength, 0) for word in ("half", "double"))
        assert area(smaller) == pytest.approx(area(cell) * 4**-strength, rel=0.12)
        assert area(larger) == pytest.approx(area(cell) * 4**strength, rel=0.12)
        assert centre(smaller) == pytest.approx(centre(cell), abs=0.6)


def test_off_centre_moves_the_cell_and_nothing_else() -> None:
    cell = disc(side=64, at=(31.5, 31.5))
    for seed in range(6):
        moved = BY_NAME["off centre"](cell, 1.0, seed)
        assert np.linalg.norm(centre(moved) - centre(cell)) == pytest.approx(16, abs=1)
        assert area(moved) == area(cell)


def test_the_hue_turns_back_and_forth_and_leaves_value_and_chroma() -> None:
    cell = simulate_cell(1, seed=9, size=48).pixels
    turned = turned_hue(cell, HUE)
    np.testing.assert_allclose(turned.max(axis=-1), cell.max(axis=-1), atol=1)
    np.testing.assert_allclose(np.ptp(turned, axis=-1), np.ptp(cell, axis=-1), atol=1)
    np.testing.assert_allclose(turned_hue(turned, -HUE).astype(int), cell, atol=2)
    np.testing.assert_allclose(turned_hue(cell, 1.0), cell, atol=1)
    np.testing.assert_array_equal(turned_hue(cell, 1 / 3), cell[..., [2, 0, 1]])


def test_density_brightness_focus_and_noise_do_what_they_say() -> None:
    cell = simulate_cell(2, seed=9, size=48).pixels
    density = np.array(optical_density(cell))
    ratios = {round(optical_density(BY_NAME["stain density"](cell, 1.0, seed))[1] / density[1], 1) for seed in range(9)}
    assert ratios == {0.8, 1.2}
    brighter = {BY_NAME["brightness"](cell, 1.0, seed).mean() > cell.mean() for seed in range(9)}
    assert brighter == {True, False}
    blurred, noisy = (BY_NAME[name](cell, 1.0, 0).astype(float) for name in ("defocus", "noise"))
    steps = [np.abs(np.diff(image, axis=0)).mean() for image in (blurred, cell.astype(float), noisy)]
    assert steps[0] < 0.7 * steps[1] < steps[1] < steps[2]
    assert blurred.mean() == pytest.approx(cell.mean(), rel=0.02)


def test_strengths_are_drawn_between_the_two_and_belong_to_the_position() -> None:
    cells = np.stack([simulate_cell(i, seed=9, size=24).pixels for i in range(30)])
    images, strengths = shifted(cells, BY_NAME["defocus"], (0.2, 0.9), seed=4)
    assert ((strengths >= 0.2) & (strengths <= 0.9)).all()
    assert np.ptp(strengths) > 0.4
    some, first = shifted(cells[:7], BY_NAME["defocus"], (0.2, 0.9), seed=4)
    np.testing.assert_array_equal(some, images[:7])
    np.testing.assert_array_equal(first, strengths[:7])


CELLS = simulate_cells(24, seed=31, size=32)


@pytest.fixture(scope="module")
def predictor(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """Of the tiny release with checks of familiarity."""
    return Predictor(read_release(with_familiarity(tiny_release, tmp_path_factory.mktemp("suite") / "release")))


def test_the_suite_tells_what_the_release_says_of_each_shift(predictor: Predictor, tmp_path: Path) -> None:
    pixels = np.stack(predictor.pixels([Image.fromarray(cell.pixels) for cell in CELLS]))
    _, labels = AnnotatorPool().read(np.stack([cell.true_probs for cell in CELLS]), 3, np.random.default_rng(0))
    counts = Annotations.of_matrix(labels, len(predictor.release.classes)).counts()
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


def test_the_class_mix_of_held_out_labels_counts_each_cell_once() -> None:
    counts = np.array([[6, 0], [1, 1], [0, 1], [0, 1], [0, 0], [9, 0]])
    part, none = np.array(["test"] * 5 + ["calibration"]), np.zeros((6, 1), dtype=np.float32)
    outputs = CachedOutputs(none, none, none, counts, part, part, part)
    seen = stain_and_labels(np.zeros((2, 4, 4, 3), dtype=np.uint8), outputs)
    assert (seen["label_share"], seen["n_labels"]) == ([0.375, 0.625], 4)


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
    assert score_images(ScoreRequest(checked, images), out).n_predictions == 9
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


@pytest.fixture(scope="module")
def unchecked(tiny_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny release with no check at all."""
    return without_check(tiny_release, tmp_path_factory.mktemp("unchecked") / "release")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_release_without_a_check_does_not_claim_that_an_image_is_familiar(
    unchecked: Path, images: Path, kind: str
) -> None:
    rows = predict_files(unchecked, sorted(images.iterdir()))
    assert {(row["out_of_distribution"], row["distance"], len(row["reasons"])) for row in rows} == {(None, None, 0)}
    assert [row["disagreement_prob"] for row in rows] == [row["disagreement_prob_raw"] for row in rows]
    assert '"out_of_distribution": null' in run_here("predict", unchecked, images / "strange.png", "--json").stdout
    assert "not checked" in run_here("predict", unchecked, images / "strange.png").stdout
    out = images.parent / f"predictions.{kind}"
    score_images(ScoreRequest(unchecked, images), out)
    table = read_table(out)
    assert set(table.column("out_of_distribution").to_pylist()) <= {None, ""}
    assert None not in table.column("disagreement_prob").to_pylist()


def test_a_check_is_fitted_to_images_and_travels_with_the_release(
    unchecked: Path, images: Path, tmp_path: Path
) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    for index in range(240):
        (cells / f"{index}.png").write_bytes(encode(simulate_cell(100 + index, seed=21, size=32).pixels))
    before = read_release(unchecked)
    fitted, again = (add_ood_check(before, cells, tmp_path / name) for name in ("one", "two"))
    assert fitted.card_sha256 == again.card_sha256
    assert set(fitted.card["files"]) - set(before.card["files"]) == {FAMILIARITY_FILE}
    assert fitted.detector is not None
    assert fitted.card["reference"]["false_alarm_rate"] == fitted.detector.false_alarm_rate
    assert "false_alarm_rate" not in before.card["reference"]
    assert fitted.network_sha256 == before.network_sha256
    assert "240 images" in fitted.card["limits_of_use"][-1]
    assert (fitted.path / "README.md").read_bytes() == (unchecked / "README.md").read_bytes()
    rows = predict_files(fitted.path, [*images.iterdir()])
    flags = {Path(row["image"]).stem: row["out_of_distribution"] for row in rows}
    assert flags.pop("strange") is True
    assert sum(map(bool, flags.values())) <= 1
    with pytest.raises(ReleaseError, match="already has an out-of-distribution check"):
        add_ood_check(fitted, cells, tmp_path / "three")
    with pytest.raises(ValueError, match="9 images; a check needs at least 40"):
        add_ood_check(before, images, tmp_path / "four")
    assert not (tmp_path / "four").exists()


def test_a_file_of_another_version_is_refused(checked: Path) -> None:
    tensors = load((checked / FAMILIARITY_FILE).read_bytes()) | {"version": np.array([99])}
    with pytest.raises(ValueError, match="version 99 is not 1"):
        OodDetector.from_bytes(save(tensors))
