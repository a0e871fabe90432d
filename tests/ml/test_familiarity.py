"""Several checks of familiarity as one: a stated false alarm rate, reasons, and nothing that depends on the batch."""

import math

import numpy as np
import pytest

from ml.datasets.cells import simulate_cells
from ml.images.image_quality_features import CHECKS, compute_quality_features, feature_columns
from ml.images.standard_shifts import STANDARD_SHIFTS
from ml.release.ood_detector import FEATURES, Check, DetectorInputs, OodDetector, fit_ood_detector

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
