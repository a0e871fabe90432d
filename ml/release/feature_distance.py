"""Mahalanobis distance of an image's features from the training cells.

The distance is Mahalanobis' with a shrunk covariance. What counts as far is calibrated on held-out cells: the
threshold is their 99.5 % quantile, so that about one familiar cell in 200 is flagged.
"""

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray

#: Share of familiar held-out cells that lie within the threshold.
FAMILIAR_SHARE = 0.995
_MIN_CELLS = 20


@dataclass(frozen=True)
class FeatureDistance:
    """Distance of features (N, D) from those of known cells.

    Attributes:
        mean: (D,) of known cells.
        whitening: (D, D), W with WᵀW the inverse of their shrunk covariance.
        threshold: distance beyond which a cell is unfamiliar.
    """

    mean: npt.NDArray[np.float64]
    whitening: npt.NDArray[np.float64]
    threshold: float

    def __post_init__(self) -> None:
        d = self.mean.size
        finite = np.isfinite(self.mean).all() and np.isfinite(self.whitening).all() and np.isfinite(self.threshold)
        if self.mean.shape != (d,) or self.whitening.shape != (d, d) or not finite:
            raise ValueError("not a feature distance: misshapen or not finite")

    def whitened(self, features: npt.ArrayLike) -> FloatArray:
        """Features (N, D) with mean 0 and unit covariance for known cells.

        Raises:
            ValueError: features of another length.
        """
        values = np.asarray(features, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.mean.size:
            raise ValueError(f"features must be (N, {self.mean.size}), got {values.shape}")
        return np.asarray((values - self.mean) @ self.whitening.T)

    def __call__(self, features: npt.ArrayLike) -> FloatArray:
        """Distances (N,) of features (N, D), divided by √D."""
        return np.asarray(np.sqrt(np.square(self.whitened(features)).mean(axis=1)))

    def unfamiliar(self, distance: FloatArray) -> npt.NDArray[np.bool_]:
        """Mask of distances (N,) beyond the threshold or not finite."""
        return np.asarray(~(distance <= self.threshold))

    def to_bytes(self) -> bytes:
        """Write as safetensors, float64."""
        from safetensors.numpy import save

        return save({"mean": self.mean, "whitening": self.whitening, "threshold": np.array([self.threshold])})

    @classmethod
    def from_bytes(cls, data: bytes) -> "FeatureDistance":
        """Read back what ``to_bytes`` wrote.

        Raises:
            ValueError: not such a file.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            tensors = load(data)
            return cls(tensors["mean"], tensors["whitening"], float(tensors["threshold"][0]))
        except (SafetensorError, KeyError, struct.error, IndexError) as exc:
            raise ValueError(f"not a feature distance: {exc!r}") from exc


def fit_feature_distance(known: npt.ArrayLike, held_out: npt.ArrayLike) -> FeatureDistance | None:
    """Fit on known cells, and set the threshold on held-out ones.

    The covariance is shrunk towards its diagonal by D / (D + N), which keeps it invertible however few cells there
    are; features that never vary get the smallest variance that does.

    Args:
        known: features (N, D) of cells that the network knows.
        held_out: features (M, D) of cells that no fit has seen.

    Returns:
        The distance, None with fewer than 20 cells on either side.
    """
    inner, outer = np.asarray(known, dtype=np.float64), np.asarray(held_out, dtype=np.float64)
    if min(len(inner), len(outer)) < _MIN_CELLS:
        return None
    n, d = inner.shape
    mean = inner.mean(axis=0)
    covariance = np.cov(inner, rowvar=False).reshape(d, d)
    variances = np.diag(covariance).copy()
    floor = variances[variances > 0].min(initial=1.0)
    variances = np.maximum(variances, max(floor, 1e-12))
    share = d / (d + n)
    shrunk = (1 - share) * covariance + share * np.diag(variances)
    np.fill_diagonal(shrunk, variances)
    whitening = np.linalg.inv(np.linalg.cholesky(shrunk))
    unset = FeatureDistance(mean, whitening, 0.0)
    return FeatureDistance(mean, whitening, float(np.quantile(unset(outer), FAMILIAR_SHARE)))
