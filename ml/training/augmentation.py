"""Augmentation of a whole batch at once, on the device that trains.

What chance decides is drawn on the CPU, so that a seed means the same on every device, and for many batches at once, so
that no step waits for a device (``Draws``). What is done with it runs where the images are, and never asks them
anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Generator, Tensor
from torch.nn import functional

from ml.images.augmented_views import COLOUR_GAIN, COLOUR_OFFSET, UPRIGHT_SHIFT, UPRIGHT_TURN, UPRIGHT_ZOOM
from ml.images.preprocess import Orientation


@dataclass(frozen=True)
class Draws:
    """What chance decides of N images; each part is None where nothing is drawn.

    Attributes:
        corner: (N, 2) pixels by which an image is moved down and right, from 0.
        turn: (N,) which of the eight symmetries of the square.
        matrix: (N, 2, 3) affine map of an upright image.
        gain: (N, C, 1, 1) factor of the colours.
        offset: (N, C, 1, 1) added to the colours.
    """

    corner: Tensor | None = None
    turn: Tensor | None = None
    matrix: Tensor | None = None
    gain: Tensor | None = None
    offset: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """What was drawn, by name."""
        drawn = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in drawn.items() if tensor is not None}

    def rows(self, start: int, stop: int) -> "Draws":
        """Those of some images."""
        return Draws(**{name: tensor[start:stop] for name, tensor in self.tensors().items()})

    def to(self, device: torch.device) -> "Draws":
        """The same on a device, sent while the host goes on."""
        return Draws(**{name: sent(tensor, device) for name, tensor in self.tensors().items()})


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device; the host goes on before it has arrived."""
    if device.type == "cpu":
        return tensor
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def joined(draws: Sequence[Draws]) -> Draws:
    """Draws of several batches, one after the other."""
    names = draws[0].tensors() if draws else {}
    return Draws(**{name: torch.cat([each.tensors()[name] for each in draws]) for name in names})


def draw(count: int, channels: int, orientation: Orientation, pixels: int, generator: Generator) -> Draws:
    """Draw what is done to a batch.

    Args:
        count: N.
        channels: C.
        orientation: as in ``augment``.
        pixels: as in ``shift``.
        generator: CPU generator.
    """
    drawn = Draws()
    if pixels:
        drawn = Draws(corner=_corners(count, pixels, generator))
    if orientation == "fixed":
        return drawn
    if orientation == "any":
        drawn = replace(drawn, turn=torch.randint(0, 8, (count,), generator=generator))
    else:
        drawn = replace(drawn, matrix=_matrices(count, generator))
    if channels != 3:
        return drawn
    shape = (count, channels, 1, 1)
    gain = 1 + COLOUR_GAIN * torch.randn(shape, generator=generator)
    return replace(drawn, gain=gain, offset=COLOUR_OFFSET * torch.randn(shape, generator=generator))


def changed(images: Tensor, draws: Draws, pixels: int = 0) -> Tensor:
    """Images (N, C, H, W) as chance has decided, without a word from the device to the host.

    Args:
        images: network inputs.
        draws: of these images, on their device.
        pixels: by which an image is moved at most.
    """
    if draws.corner is not None:
        images = _shifted(images, pixels, draws.corner)
    if draws.turn is not None:
        images = _turned(images, draws.turn)
    if draws.matrix is not None:
        grid = functional.affine_grid(draws.matrix.to(images.dtype), list(images.shape), align_corners=False)
        images = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    if draws.gain is not None and draws.offset is not None:
        images = images * draws.gain.to(images.dtype) + draws.offset.to(images.dtype)
    return images


def augment(images: Tensor, orientation: Orientation, generator: Generator) -> Tensor:
    """Augment normalised images (N, C, H, W).

    Args:
        images: network inputs.
        orientation: ``any``: mirrored and turned by quarters; ``upright``: mirrored, small turns and shifts;
            ``fixed``: unchanged.
        generator: CPU generator, so that a seed means the same on every device.
    """
    return changed(images, draw(len(images), images.shape[1], orientation, 0, generator).to(images.device))


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
    return changed(images, Draws(corner=_corners(len(images), pixels, generator)).to(images.device), pixels)


def _corners(count: int, pixels: int, generator: Generator) -> Tensor:
    return torch.randint(0, 2 * pixels + 1, (2, count, 1), generator=generator)[..., 0].T


def _shifted(images: Tensor, pixels: int, corner: Tensor) -> Tensor:
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
