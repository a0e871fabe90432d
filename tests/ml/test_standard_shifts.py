"""Standard shifts: pure, nothing at strength 0, each doing what its name says."""

import numpy as np
import pytest

from ml.datasets.cells import simulate_cell
from ml.images.image_quality_features import optical_density
from ml.images.preprocess import Pixels
from ml.images.standard_shifts import HUE, STANDARD_SHIFTS, StandardShift, shifted, shifts_for, turned_hue

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
