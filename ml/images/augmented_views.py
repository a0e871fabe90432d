"""Test-time augmentation in NumPy with the same seeded views in every batch."""

import math

import numpy as np
import numpy.typing as npt

from ml.images.preprocess import Orientation

Inputs = npt.NDArray[np.float32]

#: Largest turn (degrees), shift (share of the side) and zoom, upright.
UPRIGHT_TURN, UPRIGHT_SHIFT, UPRIGHT_ZOOM = 20.0, 5 / 32, 0.2
#: Standard deviation of gain and offset per channel, in units of the normalised input.
COLOUR_GAIN, COLOUR_OFFSET = 0.08, 0.10


def views(inputs: Inputs, orientation: Orientation, *, samples: int, seed: int = 0) -> Inputs:
    """Augmented views (S, N, C, H, W) of network inputs (N, C, H, W)."""
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if orientation == "fixed":
        raise ValueError("this release's images must not be turned or mirrored: it has no test-time augmentation")
    rng = np.random.default_rng(seed)
    symmetries = np.concatenate([rng.permutation(8) for _ in range(-(-samples // 8))])[:samples]
    views = []
    for symmetry in symmetries.tolist():
        view = _turned(inputs, symmetry) if orientation == "any" else _moved(inputs, rng)
        if inputs.shape[1] == 3:
            gain, offset = rng.standard_normal((2, 1, 3, 1, 1))
            view = np.asarray(view * (1 + COLOUR_GAIN * gain) + COLOUR_OFFSET * offset, dtype=np.float32)
        views.append(view)
    return np.stack(views)


def _turned(inputs: Inputs, symmetry: int) -> Inputs:
    turned = np.rot90(inputs, symmetry % 4, (2, 3))
    return np.asarray(turned[..., ::-1] if symmetry >= 4 else turned, dtype=np.float32)


def _moved(inputs: Inputs, rng: np.random.Generator) -> Inputs:
    from scipy.ndimage import affine_transform  # slow to load

    angle, zoom, down, right = rng.uniform(-1, 1, 4)
    angle, scale = math.radians(UPRIGHT_TURN) * angle, 1 + UPRIGHT_ZOOM * zoom
    mirror = 1.0 if rng.random() < 0.5 else -1.0
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = np.eye(4)
    matrix[2:, 2:] = scale * turn @ np.diag([1.0, mirror])
    side = np.array(inputs.shape[2:])
    centre = (side - 1) / 2
    offset = np.zeros(4)
    offset[2:] = centre - matrix[2:, 2:] @ centre + UPRIGHT_SHIFT * side * [down, right]
    return np.asarray(affine_transform(inputs, matrix, offset, order=1, mode="nearest"), dtype=np.float32)
