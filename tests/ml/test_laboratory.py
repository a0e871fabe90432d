"""Training images as other laboratories would have taken them: within stated bounds, and half left alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ml.datasets.cells import simulate_cells
from ml.images.preprocess import Preprocessing, fit_normalisation
from ml.images.standard_shifts import turned_hue
from ml.training.augmentation import (
    DENSITY,
    _hue_matrix,
    augment_stain_and_optics,
    blur_images,
    reframe_images,
    restain_images,
)
from ml.training.run_folder import TrainConfig

SIDE = 32
PIXELS = np.stack([cell.pixels for cell in simulate_cells(64, seed=8, size=SIDE)])
PREPROCESSING = Preprocessing(3, None, SIDE, *fit_normalisation(PIXELS))
IMAGES = torch.from_numpy(PREPROCESSING.normalise(PIXELS))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def light(images: Tensor) -> Tensor:
    """Pixels in [0, 1]."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (PREPROCESSING.mean, PREPROCESSING.std))
    return images * std + mean


@pytest.mark.parametrize("orientation", ["any", "upright", "fixed"])
def test_a_seed_gives_the_same_images_and_about_half_stay_as_they_are(orientation: str) -> None:
    before = IMAGES.clone()
    first, again = (augment_stain_and_optics(IMAGES, PREPROCESSING, orientation, seeded(3)) for _ in range(2))  # type: ignore[arg-type]
    assert torch.equal(first, again)
    assert torch.equal(IMAGES, before)
    alone = (first == IMAGES).flatten(1).all(1).float().mean()
    steps = {"any": 3, "upright": 2, "fixed": 0}[orientation]
    assert alone == pytest.approx(0.5 + 0.5 * (1 / 3) ** steps, abs=0.2)
    assert torch.isfinite(first).all()


def test_of_those_that_vary_each_change_reaches_about_two_thirds() -> None:
    ways = (reframe_images, blur_images, lambda images, generator: restain_images(images, PREPROCESSING, generator))
    changed = [
        (way(IMAGES, seeded(seed)) != IMAGES).flatten(1).any(1).float().mean() for way in ways for seed in range(5)
    ]
    assert sum(changed) / len(changed) == pytest.approx(2 / 3, abs=0.06)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_last_batch_of_few_images_is_varied_too(count: int) -> None:
    few = [augment_stain_and_optics(IMAGES[:count], PREPROCESSING, "any", seeded(seed)) for seed in range(20)]
    assert {images.shape for images in few} == {IMAGES[:count].shape}
    assert any(not torch.equal(images, IMAGES[:count]) for images in few)
    assert any(torch.equal(images, IMAGES[:count]) for images in few)


def test_grey_images_keep_their_stain() -> None:
    grey = Preprocessing(1, None, SIDE, PREPROCESSING.mean[:1], PREPROCESSING.std[:1])
    varied = augment_stain_and_optics(IMAGES[:, :1], grey, "any", seeded(1))
    assert varied.shape == IMAGES[:, :1].shape
    assert not torch.equal(varied, IMAGES[:, :1])


def test_blur_lowers_contrast_between_neighbours_and_keeps_the_mean() -> None:
    blurred = blur_images(IMAGES, seeded(2))
    changed = (blurred != IMAGES).flatten(1).any(1)
    rough, smooth = (images[changed].diff(dim=2).abs().mean((1, 2, 3)) for images in (IMAGES, blurred))
    assert (smooth <= rough + 1e-6).all()
    torch.testing.assert_close(blurred.mean((2, 3)), IMAGES.mean((2, 3)), atol=0.05, rtol=0)


def test_density_lies_within_its_bounds_and_nothing_leaves_the_range_of_pixels() -> None:
    varied = light(restain_images(IMAGES, PREPROCESSING, seeded(4)))
    assert varied.min() >= -1e-5
    assert varied.max() <= 1 + 1e-5
    ratio = (varied.clamp(1 / 256).log().mean((1, 2, 3)) / light(IMAGES).clamp(1 / 256).log().mean((1, 2, 3))).numpy()
    assert ratio.min() < 1 / 1.1
    assert ratio.max() > 1.1
    assert (np.abs(np.log(ratio)) < np.log(DENSITY) + 0.3).all()


def test_turns_of_the_hue_are_rotations_and_go_the_way_of_hsv() -> None:
    angles = torch.tensor([0.0, 0.3, 2 * torch.pi / 3])
    matrices = _hue_matrix(angles)
    torch.testing.assert_close(matrices @ matrices.mT, torch.eye(3).expand(3, 3, 3), atol=1e-6, rtol=0)
    torch.testing.assert_close(matrices.sum(2), torch.ones(3, 3), atol=1e-6, rtol=0)  # grey stays grey
    red = matrices @ torch.tensor([1.0, 0.0, 0.0])
    torch.testing.assert_close(red[2], torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    np.testing.assert_array_equal(turned_hue(np.array([[[255, 0, 0]]], dtype=np.uint8), 1 / 3)[0, 0], [0, 255, 0])


def test_framing_moves_and_scales_but_shows_the_cell() -> None:
    framed = reframe_images(IMAGES, seeded(5))
    assert 0.2 < (framed != IMAGES).flatten(1).any(1).float().mean() < 0.8
    middle = slice(SIDE // 4, 3 * SIDE // 4)
    before, after = (light(images)[:, :, middle, middle].mean() for images in (IMAGES, framed))
    assert after == pytest.approx(float(before), abs=0.05)


def test_a_word_that_means_no_augmentation_is_refused() -> None:
    plain = {"network": "compact", "epochs": 1, "batch_size": 2, "learning_rate": 1e-3, "warmup_epochs": 0}
    rest = {"decay_epochs": (), "patience": 1, "seed": 0, "precision": "float32", "compiled": False}
    with pytest.raises(ValueError, match="light or wide"):
        TrainConfig(data="cells", data_options={}, backbone_weights=None, augmentation="x", **plain, **rest)  # type: ignore[arg-type]
