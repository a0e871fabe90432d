"""Augmentation on the device: flips, light, and wide with stain and optics.

The wide augmentation leaves about half of the images as they are. Random
numbers are drawn on the CPU, so that a seed means the same on every device.
"""

import math
from collections.abc import Callable

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ml.images.augmented_views import COLOUR_GAIN, COLOUR_OFFSET, UPRIGHT_SHIFT, UPRIGHT_TURN, UPRIGHT_ZOOM
from ml.images.preprocess import Orientation, Preprocessing


def augment(images: Tensor, orientation: Orientation, generator: Generator) -> Tensor:
    """Augment normalised images (N, C, H, W)."""
    if orientation == "fixed":
        return images
    count, channels = images.shape[:2]
    if orientation == "any":
        images = _turned(images, torch.randint(0, 8, (count,), generator=generator).to(images.device))
    else:
        matrix = _matrices(count, generator).to(images)
        grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
        images = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    if channels != 3:
        return images
    shape = (count, channels, 1, 1)
    gain = 1 + COLOUR_GAIN * torch.randn(shape, generator=generator)
    offset = COLOUR_OFFSET * torch.randn(shape, generator=generator)
    return images * gain.to(images) + offset.to(images)


def flip(images: Tensor, orientation: Orientation, generator: Generator) -> Tensor:
    """Mirror about half of the images left to right."""
    if orientation == "fixed":
        return images
    chosen = torch.rand((len(images), 1, 1, 1), generator=generator) < 0.5
    return torch.where(chosen.to(images.device), images.flip(3), images)


def shift(images: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Shift images (N, C, H, W) by whole pixels, repeating edges."""
    if pixels == 0:
        return images
    corner = torch.randint(0, 2 * pixels + 1, (2, len(images), 1), generator=generator)[..., 0].T.to(images.device)
    height, width = images.shape[2:]
    padded = functional.pad(images, (pixels,) * 4, mode="replicate").permute(0, 2, 3, 1)
    down = corner[:, :1] + torch.arange(height, device=images.device)
    right = corner[:, 1:] + torch.arange(width, device=images.device)
    number = torch.arange(len(images), device=images.device)
    return padded[number[:, None, None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def _turned(images: Tensor, turn: Tensor) -> Tensor:
    """One of the eight symmetries of the square for each image."""
    count, channels, side = images.shape[:3]
    number = torch.arange(side * side, device=images.device).view(side, side)
    quarters = [torch.rot90(number, quarter, (0, 1)) for quarter in range(4)]
    places = torch.stack([*quarters, *(quarter.flip(1) for quarter in quarters)]).view(8, -1)
    flat = images.permute(0, 2, 3, 1).reshape(count, side * side, channels)
    turned = flat[torch.arange(count, device=images.device)[:, None], places[turn]]
    return turned.view(count, side, side, channels).permute(0, 3, 1, 2)


def _matrices(count: int, generator: Generator) -> Tensor:
    """Random affine maps of upright images."""
    uniform = 2 * torch.rand((count, 5), generator=generator) - 1
    angle = uniform[:, 0] * math.radians(UPRIGHT_TURN)
    scale = 1 + uniform[:, 1] * UPRIGHT_ZOOM
    mirror = torch.where(uniform[:, 4] > 0, 1.0, -1.0)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    first = torch.stack([mirror * cos, -sin, 2 * UPRIGHT_SHIFT * uniform[:, 2]], dim=1)
    second = torch.stack([mirror * sin, cos, 2 * UPRIGHT_SHIFT * uniform[:, 3]], dim=1)
    return torch.stack([first, second], dim=1)


#: Largest factor of magnification, shift and defocus (shares of the side),
#: factor of density, turn of the hue (1 for all), σ of a channel's density.
MAGNIFICATION, FRAMING, FOCUS, DENSITY, HUE, CHANNEL = 1.3, 0.12, 1 / 40, 1.3, 0.09, 0.05
#: Share of images that vary at all, and of those the share in which each way does.
_VARIED, _EACH = 0.5, 2 / 3
_REACH = 3


def augment_stain_and_optics(
    images: Tensor, preprocessing: Preprocessing, orientation: Orientation, generator: Generator
) -> Tensor:
    """Augment stain and optics of normalised images (N, C, H, W)."""
    if orientation == "fixed":
        return images

    def changed(chosen: Tensor) -> Tensor:
        if orientation == "any":
            chosen = reframe_images(chosen, generator)
        chosen = blur_images(chosen, generator)
        return restain_images(chosen, preprocessing, generator) if images.shape[1] == 3 else chosen

    return _change_some_images(images, _VARIED, generator, changed)


def augment_for_training(
    images: Tensor, preprocessing: Preprocessing, orientation: Orientation, kind: str, pixels: int, generator: Generator
) -> Tensor:
    """Augment normalised images (N, C, H, W) as a training does."""
    images = shift(images, pixels, generator)
    if kind == "flips":
        return flip(images, orientation, generator)
    if kind == "wide":
        images = augment_stain_and_optics(images, preprocessing, orientation, generator)
    return augment(images, orientation, generator)


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=generator) - 1


def _change_some_images(
    images: Tensor, share: float, generator: Generator, change: Callable[[Tensor], Tensor]
) -> Tensor:
    """Change about a share of the images."""
    rows = (torch.rand(len(images), generator=generator) < share).nonzero().flatten().to(images.device)
    result = images.clone()
    if len(rows):
        result[rows] = change(result[rows])
    return result


def reframe_images(images: Tensor, generator: Generator) -> Tensor:
    """Magnify and move images, with mirrored edges."""

    def change(chosen: Tensor) -> Tensor:
        uniform = _uniform((len(chosen), 3), generator)
        scale = torch.exp(uniform[:, 0] * math.log(MAGNIFICATION))
        zero = torch.zeros_like(scale)
        first = torch.stack([scale, zero, 2 * FRAMING * uniform[:, 1]], dim=1)
        second = torch.stack([zero, scale, 2 * FRAMING * uniform[:, 2]], dim=1)
        grid = functional.affine_grid(
            torch.stack([first, second], dim=1).to(images), list(chosen.shape), align_corners=False
        )
        return functional.grid_sample(chosen, grid, padding_mode="reflection", align_corners=False)

    return _change_some_images(images, _EACH, generator, change)


def blur_images(images: Tensor, generator: Generator) -> Tensor:
    """Blurred by a Gaussian of a width of each image's own."""

    def change(chosen: Tensor) -> Tensor:
        sigma = torch.rand(len(chosen), generator=generator) * FOCUS * min(images.shape[2:])
        steps = torch.arange(-_REACH, _REACH + 1)
        kernel = torch.exp(-steps.square() / (2 * sigma[:, None].clamp(min=1e-3).square()))
        kernel = (kernel / kernel.sum(1, keepdim=True)).to(images)
        for axis in (2, 3):
            pads = [_REACH if axis == 3 else 0] * 2 + [_REACH if axis == 2 else 0] * 2
            wide, length = functional.pad(chosen, pads, mode="replicate"), images.shape[axis]
            chosen = kernel[:, 0, None, None, None] * wide.narrow(axis, 0, length)
            for k in range(1, len(steps)):
                chosen.addcmul_(kernel[:, k, None, None, None], wide.narrow(axis, k, length))
        return chosen

    return _change_some_images(images, _EACH, generator, change)


def restain_images(images: Tensor, preprocessing: Preprocessing, generator: Generator) -> Tensor:
    """Scale stain density and channels, and rotate the hue, of each image."""
    mean, std = (torch.tensor(values).to(images)[:, None, None] for values in (preprocessing.mean, preprocessing.std))

    def change(chosen: Tensor) -> Tensor:
        uniform = _uniform((len(chosen), 2), generator)
        own = CHANNEL * torch.randn((len(chosen), 3), generator=generator)
        factor = torch.exp(uniform[:, :1] * math.log(DENSITY) + own).to(images)[:, :, None, None]
        light = (chosen * std + mean).clamp(1 / 256, 1)
        matrix = _hue_matrix(2 * math.pi * HUE * uniform[:, 1]).to(images)
        turned = torch.einsum("nij,njhw->nihw", matrix, light.pow(factor)).clamp(0, 1)
        return (turned - mean) / std

    return _change_some_images(images, _EACH, generator, change)


def _hue_matrix(angle: Tensor) -> Tensor:
    """Rotations (N, 3, 3) of colours around the grey axis (Rodrigues)."""
    cos, sin = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
    root = 1 / math.sqrt(3)
    cross = torch.tensor([[0.0, -root, root], [root, 0.0, -root], [-root, root, 0.0]])
    return cos * torch.eye(3) + (1 - cos) / 3 + sin * cross
