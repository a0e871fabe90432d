"""A simple baseline: multinomial logistic regression on statistics of colour and texture."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from ml.datasets.base import ImageDataset
from ml.images.image_quality_features import compute_quality_features
from ml.images.preprocess import Pixels
from ml.util.arrays import FloatArray, IntArray
from ml.util.splits import held_out_folds, split_folds

#: Cells that are fitted at most, drawn at random: more take minutes.
MOST_CELLS = 5000
BASELINE_NAME = (
    f"multinomial logistic regression on colour and texture of at most {MOST_CELLS:,} other cells, penalty by "
    "cross-validation"
)
#: Strengths of the penalty, of which cross-validation chooses one.
_PENALTIES = (1.0, 0.2, 0.04, 0.008, 0.0016)
_ITERATIONS = {"chosen": 60, "final": 300}
#: Shades of a channel; shades of hue, saturation and value together.
_SHADES, _HUES, _LEVELS = 8, 8, 3
#: Distances of the eight neighbours in local binary patterns, and rotation-invariant patterns.
_RADII, _PATTERNS = (1, 2), 10
#: Limits of local deviation and of gradients, in shares of the range of values.
_EDGES = np.array([0.01, 0.02, 0.04, 0.08, 0.16])
# images at a time, to bound memory
_BLOCK = 256


@dataclass(frozen=True)
class Baseline:
    """Baseline: standardisation and weights (D + 1, K), intercept last."""

    mean: FloatArray
    scale: FloatArray
    weight: FloatArray

    def __call__(self, pixels: Pixels) -> FloatArray:
        """Class probabilities (N, K) of images (N, H, W, C)."""
        return np.asarray(softmax(_columns(image_statistics(pixels), self.mean, self.scale) @ self.weight, axis=1))


def image_statistics(pixels: Pixels) -> FloatArray:
    """Colour and texture (N, D): square roots of shares of pixels, and the image quality features."""
    blocks = [pixels[start : start + _BLOCK] for start in range(0, len(pixels), _BLOCK)]
    shares = np.sqrt(np.concatenate([np.hstack([_colours(block), _textures(block)]) for block in blocks]))
    return np.hstack([shares, compute_quality_features(pixels).astype(np.float64)])


def _colours(pixels: Pixels) -> FloatArray:
    """Shares of shades by channel, and of hue, saturation and value together for RGB."""
    shades = [pixels[..., channel].astype(np.int64) * _SHADES // 256 for channel in range(pixels.shape[-1])]
    parts = [_shares(shade, _SHADES) for shade in shades]
    if pixels.shape[-1] == 3:
        parts.append(_shares(_hsv_cells(pixels), _HUES * _LEVELS**2))
    return np.hstack(parts)


def _hsv_cells(pixels: Pixels) -> IntArray:
    """Number of the cell of the HSV histogram (N, H, W) of each pixel."""
    red, green, blue = np.moveaxis(pixels.astype(np.float64) / 255, -1, 0)
    value = np.max([red, green, blue], axis=0)
    chroma = value - np.min([red, green, blue], axis=0)
    safe = np.where(chroma > 0, chroma, 1.0)
    sector = np.select(
        [chroma == 0, value == red, value == green],
        [0.0, (green - blue) / safe % 6, (blue - red) / safe + 2],
        (red - green) / safe + 4,
    )
    saturation = np.divide(chroma, value, out=np.zeros_like(value), where=value > 0)
    hue = np.minimum((sector / 6 * _HUES).astype(np.int64), _HUES - 1)
    levels = [np.minimum((part * _LEVELS).astype(np.int64), _LEVELS - 1) for part in (saturation, value)]
    return np.asarray((hue * _LEVELS + levels[0]) * _LEVELS + levels[1])


def _textures(pixels: Pixels) -> FloatArray:
    """Shares of local binary patterns, of local deviations and of gradients."""
    grey = pixels.mean(axis=-1) / 255
    mean, square = (uniform_filter(values, (1, 3, 3), mode="nearest") for values in (grey, grey**2))
    down, across = (np.gradient(grey, axis=axis) for axis in (1, 2))
    amounts = (np.sqrt(np.maximum(square - mean**2, 0)), np.hypot(down, across))
    parts = [_shares(np.digitize(amount, _EDGES), len(_EDGES) + 1) for amount in amounts]
    return np.hstack([*parts, *(_shares(_binary_patterns(grey, radius), _PATTERNS) for radius in _RADII)])


def _binary_patterns(grey: FloatArray, radius: int) -> IntArray:
    """Uniform rotation-invariant patterns of 8 neighbours (Ojala, Pietikäinen and Mäenpää 2002, eq. 9)."""
    r, (height, width) = radius, grey.shape[1:]
    padded = np.pad(grey, ((0, 0), (r, r), (r, r)), mode="edge")
    ring = ((-r, -r), (-r, 0), (-r, r), (0, r), (r, r), (r, 0), (r, -r), (0, -r))
    brighter = [padded[:, r + y : r + y + height, r + x : r + x + width] >= grey for y, x in ring]
    changes = sum(one ^ other for one, other in zip(brighter, [*brighter[1:], brighter[0]], strict=True))
    return np.where(np.asarray(changes) <= 2, np.sum(brighter, axis=0), _PATTERNS - 1)


def _shares(values: IntArray, n_values: int) -> FloatArray:
    """Share (N, n_values) of each value among the pixels of an image."""
    flat = values.reshape(len(values), -1)
    offset = np.arange(len(flat))[:, None] * n_values
    counts = np.bincount((flat + offset).ravel(), minlength=len(flat) * n_values)
    return np.asarray(counts.reshape(len(flat), n_values) / flat.shape[1])


def _columns(features: FloatArray, mean: FloatArray, scale: FloatArray) -> FloatArray:
    return np.hstack([(features - mean) / scale, np.ones((len(features), 1))])


def judged_partition(partition: npt.NDArray[np.str_]) -> str:
    """Partition on which network and baseline are compared."""
    return "test" if (partition == "test").sum() >= 2 else "valid"


def fit_baseline(dataset: ImageDataset) -> Baseline:
    """Fit by L-BFGS to all labelled cells that judge nothing; cross-validation by patient chooses the penalty."""
    usable = (dataset.partition != judged_partition(dataset.partition)) & (dataset.label_counts.sum(axis=1) > 0)
    drawn = np.random.default_rng(0).permutation(np.flatnonzero(usable))[:MOST_CELLS]
    features, counts = image_statistics(dataset.pixels[drawn]), dataset.label_counts[drawn].astype(np.float64)
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    columns, fold = _columns(features, mean, scale), split_folds(dataset.groups[drawn].tolist(), 0)
    losses = np.zeros(len(_PENALTIES))
    for inside, unseen in held_out_folds(fold):
        weight = np.zeros((columns.shape[1], counts.shape[1]))
        for number, penalty in enumerate(_PENALTIES):  # from the strongest: each starts where the last one ended
            weight = _fitted(columns[inside], counts[inside], penalty, weight, _ITERATIONS["chosen"])
            losses[number] += _nll(columns[unseen] @ weight, counts[unseen]) * counts[unseen].sum()
    start = np.zeros((columns.shape[1], counts.shape[1]))
    return Baseline(mean, scale, _fitted(columns, counts, _PENALTIES[losses.argmin()], start, _ITERATIONS["final"]))


def _nll(logits: FloatArray, counts: IntArray | FloatArray) -> float:
    return -float((counts * log_softmax(logits, axis=1)).sum()) / max(float(counts.sum()), 1.0)


def _fitted(columns: FloatArray, counts: FloatArray, penalty: float, start: FloatArray, iterations: int) -> FloatArray:
    """Weights (D + 1, K) of least penalised loss."""
    total, shape = max(float(counts.sum()), 1.0), start.shape
    n_labels = counts.sum(axis=1, keepdims=True)
    free = np.ones((shape[0], 1))
    free[-1] = 0.0  # the intercept is not shrunk

    def loss(flat: FloatArray) -> tuple[float, FloatArray]:
        weight = flat.reshape(shape)
        logits = columns @ weight
        gradient = columns.T @ (n_labels * softmax(logits, axis=1) - counts) / total + penalty * free * weight
        return _nll(logits, counts) + penalty / 2 * float((free * weight**2).sum()), gradient.ravel()

    optimum = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return np.asarray(optimum.x, dtype=np.float64).reshape(shape)
