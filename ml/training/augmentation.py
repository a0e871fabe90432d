"""Batch augmentation on the training device.

Random numbers are drawn on the CPU, so that a seed means the same on every device.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ml.images.augmented_views import COLOUR_GAIN, COLOUR_OFFSET, UPRIGHT_SHIFT, UPRIGHT_TURN, UPRIGHT_ZOOM
from ml.images.preprocess import Orientation


def augment(images: Tensor, orientation: Orientation, generator: Generator) -> Tensor:
    """Augment normalised images (N, C, H, W).

    Args:
        images: network inputs.
        orientation: ``any``: mirrored and turned by quarters; ``upright``: mirrored, small turns and shifts;
            ``fixed``: unchanged.
        generator: CPU generator.
    """
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


def shift(images: Tensor, pixels: int, generator: Generator) -> Tensor:
    """Move each image of a batch (N, C, H, W) by whole pixels, down or up, right or left, repeating its edge.

    Nothing is interpolated, so grey values stay as they are, also where they carry the label.

    Args:
        images: network inputs.
        pixels: at most, each way; 0 leaves images as they are.
        generator: CPU generator.
    """
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
    """One of the eight symmetries of the square for each image: each pixel is read where the symmetry has it."""
    count, channels, side = images.shape[:3]
    number = torch.arange(side * side, device=images.device).view(side, side)
    quarters = [torch.rot90(number, quarter, (0, 1)) for quarter in range(4)]
    places = torch.stack([*quarters, *(quarter.flip(1) for quarter in quarters)]).view(8, -1)
    flat = images.permute(0, 2, 3, 1).reshape(count, side * side, channels)
    turned = flat[torch.arange(count, device=images.device)[:, None], places[turn]]
    return turned.view(count, side, side, channels).permute(0, 3, 1, 2)


def _matrices(count: int, generator: Generator) -> Tensor:
    """Maps of upright images: mirrored, turned, scaled and moved a little."""
    uniform = 2 * torch.rand((count, 5), generator=generator) - 1
    angle = uniform[:, 0] * math.radians(UPRIGHT_TURN)
    scale = 1 + uniform[:, 1] * UPRIGHT_ZOOM
    mirror = torch.where(uniform[:, 4] > 0, 1.0, -1.0)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    first = torch.stack([mirror * cos, -sin, 2 * UPRIGHT_SHIFT * uniform[:, 2]], dim=1)
    second = torch.stack([mirror * sin, cos, 2 * UPRIGHT_SHIFT * uniform[:, 3]], dim=1)
    return torch.stack([first, second], dim=1)
