"""Augmentation of a whole batch at once, on the device that trains."""

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
        generator: CPU generator, so that a seed means the same on every device.
    """
    if orientation == "fixed":
        return images
    images = _turned(images, generator) if orientation == "any" else _moved(images, generator)
    return _recoloured(images, generator) if images.shape[1] == 3 else images


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
    height, width = images.shape[2:]
    padded = functional.pad(images, (pixels,) * 4, mode="replicate").permute(0, 2, 3, 1)
    corner = torch.randint(0, 2 * pixels + 1, (2, len(images), 1), generator=generator)
    down = (corner[0] + torch.arange(height)).to(images.device)
    right = (corner[1] + torch.arange(width)).to(images.device)
    number = torch.arange(len(images), device=images.device)
    return padded[number[:, None, None], down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def _turned(images: Tensor, generator: Generator) -> Tensor:
    """One of the eight symmetries of the square for each image."""
    choice = torch.randint(0, 8, (len(images),), generator=generator).to(images.device)
    result = torch.empty_like(images)
    for turn in range(8):
        rows = (choice == turn).nonzero().flatten()
        if rows.numel():
            part = torch.rot90(images[rows], turn % 4, (2, 3))
            result[rows] = part.flip(3) if turn >= 4 else part
    return result


def _moved(images: Tensor, generator: Generator) -> Tensor:
    count = len(images)
    uniform = 2 * torch.rand((count, 5), generator=generator) - 1
    angle = uniform[:, 0] * math.radians(UPRIGHT_TURN)
    scale = 1 + uniform[:, 1] * UPRIGHT_ZOOM
    mirror = torch.where(uniform[:, 4] > 0, 1.0, -1.0)
    cos, sin = scale * torch.cos(angle), scale * torch.sin(angle)
    first = torch.stack([mirror * cos, -sin, 2 * UPRIGHT_SHIFT * uniform[:, 2]], dim=1)
    second = torch.stack([mirror * sin, cos, 2 * UPRIGHT_SHIFT * uniform[:, 3]], dim=1)
    matrix = torch.stack([first, second], dim=1).to(images)
    grid = functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _recoloured(images: Tensor, generator: Generator) -> Tensor:
    shape = (len(images), images.shape[1], 1, 1)
    gain = 1 + COLOUR_GAIN * torch.randn(shape, generator=generator)
    offset = COLOUR_OFFSET * torch.randn(shape, generator=generator)
    return images * gain.to(images) + offset.to(images)
