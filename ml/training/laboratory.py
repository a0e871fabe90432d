"""Training images as other laboratories would have taken them: stain, magnification, focus and framing vary.

Each is changed in about half of the images, so that a network also learns those that nothing has interpolated.
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ml.images.preprocess import Orientation, Preprocessing

#: Largest change: factor of magnification, shift of the centre (share of the side), σ of defocus (share of the side),
#: factor of optical density, turn of the hue (1 for the whole circle), and σ of each channel's own density.
MAGNIFICATION, FRAMING, FOCUS, DENSITY, HUE, CHANNEL = 1.3, 0.12, 1 / 40, 1.3, 0.09, 0.05
_SHARE = 0.5
_REACH = 3


def vary(images: Tensor, preprocessing: Preprocessing, orientation: Orientation, generator: Generator) -> Tensor:
    """Vary how normalised images (N, C, H, W) were taken.

    Args:
        images: network inputs.
        preprocessing: that normalised them.
        orientation: ``fixed`` images stay as they are, and ``upright`` ones are moved and scaled elsewhere.
        generator: CPU generator, so that a seed means the same on every device.
    """
    if orientation == "fixed":
        return images
    if orientation == "any":
        images = reframed(images, generator)
    images = refocused(images, generator)
    return restained(images, preprocessing, generator) if images.shape[1] == 3 else images


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    return 2 * torch.rand(shape, generator=generator) - 1


def _chosen(count: int, generator: Generator) -> Tensor:
    """Positions of about half of the images."""
    return (torch.rand(count, generator=generator) < _SHARE).nonzero().flatten()


def _with(images: Tensor, rows: Tensor, changed: Tensor) -> Tensor:
    result = images.clone()
    result[rows.to(images.device)] = changed
    return result


def reframed(images: Tensor, generator: Generator) -> Tensor:
    """Magnified or reduced, and off centre; what comes into view mirrors the image."""
    rows = _chosen(len(images), generator)
    uniform = _uniform((len(rows), 3), generator)
    scale = torch.exp(uniform[:, 0] * math.log(MAGNIFICATION))
    zero = torch.zeros_like(scale)
    first = torch.stack([scale, zero, 2 * FRAMING * uniform[:, 1]], dim=1)
    second = torch.stack([zero, scale, 2 * FRAMING * uniform[:, 2]], dim=1)
    matrix = torch.stack([first, second], dim=1).to(images)
    chosen = images[rows.to(images.device)]
    grid = functional.affine_grid(matrix, list(chosen.shape), align_corners=False)
    moved = functional.grid_sample(chosen, grid, padding_mode="reflection", align_corners=False)
    return _with(images, rows, moved)


def refocused(images: Tensor, generator: Generator) -> Tensor:
    """Blurred by a Gaussian of a width of each image's own."""
    rows = _chosen(len(images), generator)
    sigma = torch.rand(len(rows), generator=generator) * FOCUS * min(images.shape[2:])
    steps = torch.arange(-_REACH, _REACH + 1)
    kernel = torch.exp(-steps.square() / (2 * sigma[:, None].clamp(min=1e-3).square()))
    kernel = (kernel / kernel.sum(1, keepdim=True)).to(images)
    blurred = images[rows.to(images.device)]
    for axis in (2, 3):
        pads = [_REACH if axis == 3 else 0] * 2 + [_REACH if axis == 2 else 0] * 2
        wide, length = functional.pad(blurred, pads, mode="replicate"), images.shape[axis]
        total = kernel[:, 0, None, None, None] * wide.narrow(axis, 0, length)
        for k in range(1, len(steps)):
            total.addcmul_(kernel[:, k, None, None, None], wide.narrow(axis, k, length))
        blurred = total
    return _with(images, rows, blurred)


def restained(images: Tensor, preprocessing: Preprocessing, generator: Generator) -> Tensor:
    """Darker or paler, each channel a little for itself, and of another hue.

    Densities are multiplied (Beer and Lambert), the hue is turned around the grey axis.
    """
    rows = _chosen(len(images), generator)
    uniform = _uniform((len(rows), 2), generator)
    own = CHANNEL * torch.randn((len(rows), 3), generator=generator)
    factor = torch.exp(uniform[:, :1] * math.log(DENSITY) + own).to(images)[:, :, None, None]
    mean, std = (torch.tensor(values).to(images)[:, None, None] for values in (preprocessing.mean, preprocessing.std))
    light = (images[rows.to(images.device)] * std + mean).clamp(1 / 256, 1)
    matrix = _hue_matrix(2 * math.pi * HUE * uniform[:, 1]).to(images)
    turned = torch.einsum("nij,njhw->nihw", matrix, light.pow(factor)).clamp(0, 1)
    return _with(images, rows, (turned - mean) / std)


def _hue_matrix(angle: Tensor) -> Tensor:
    """Rotations (N, 3, 3) of colours around the grey axis (Rodrigues)."""
    cos, sin = torch.cos(angle)[:, None, None], torch.sin(angle)[:, None, None]
    root = 1 / math.sqrt(3)
    cross = torch.tensor([[0.0, -root, root], [root, 0.0, -root], [-root, root, 0.0]])
    return cos * torch.eye(3) + (1 - cos) / 3 + sin * cross
