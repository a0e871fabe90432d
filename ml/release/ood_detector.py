"""Out-of-distribution detector from several checks, and feature distance.

A check is the logarithm of the Mahalanobis distance from the mean of the named
class (Lee et al. 2018), with covariances shrunk towards the common one (Friedman
1989). An image's score is the maximum over checks; it is flagged above an order
statistic of held-out images (Vovk et al. 2005).
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ml.util.arrays import FloatArray, IntArray

T = TypeVar("T")
#: Share of familiar images that are flagged.
FALSE_ALARM_RATE = 0.01
#: Share of familiar held-out images within the threshold of a feature distance.
FAMILIAR_SHARE = 0.995
#: The check of the network's features; others are of image quality.
FEATURES = "features"
VERSION = 1
#: Images with which a check is fitted at least, and as many others to set its limit.
MIN_IMAGES = 20
_MIN_OF_CLASS = 5
_QUANTILES = (0.8, 0.99)
_TINY = 1e-12
_ARRAYS = ("means", "whitening", "scale")


def read_tensors(data: bytes, what: str, build: Callable[[dict[str, npt.NDArray[Any]]], T]) -> T:
    """Build an object from the arrays of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return build(load(data))
    except (SafetensorError, struct.error, KeyError, IndexError, ValueError) as exc:
        raise ValueError(f"not a {what}: {exc}") from exc


@dataclass(frozen=True)
class Check:
    """Distance of images from the reference in F statistics."""

    # (K, F) of known images, by the class that the network names
    means: FloatArray
    # (K, F, F), or (1, F, F) for all classes: W with WᵀW = Σ⁻¹, shrunk
    whitening: FloatArray
    # (2,) log distances of score 0 and 1: held-out 80 % and 99 % quantiles
    scale: FloatArray

    def __post_init__(self) -> None:
        arrays = (self.means, self.whitening, self.scale)
        n_classes, n = self.means.shape if self.means.ndim == 2 else (0, 0)
        if n == 0 or self.whitening.shape not in {(n_classes, n, n), (1, n, n)} or self.scale.shape != (2,):
            raise ValueError("not a check of familiarity: misshapen")
        if not all(np.isfinite(array).all() for array in arrays):
            raise ValueError("not a check of familiarity: not finite")

    def __call__(self, values: npt.ArrayLike, named: IntArray) -> FloatArray:
        """Scores (N,) of features (N, F), infinite if not finite."""
        given = np.asarray(values, dtype=np.float64)
        if given.ndim != 2 or given.shape[1] != self.means.shape[1]:
            raise ValueError(f"statistics must be (N, {self.means.shape[1]}), got {given.shape}")
        squared, finite = np.full(len(given), np.inf), np.isfinite(given).all(axis=1)
        for k in np.unique(named):
            whitening = self.whitening[k if len(self.whitening) > 1 else 0]
            rows = finite & (named == k)
            squared[rows] = np.square((given[rows] - self.means[k]) @ whitening.T).mean(axis=1)
        near, far = self.scale
        return np.asarray((np.log(squared + _TINY) / 2 - near) / max(far - near, _TINY))


@dataclass(frozen=True)
class OodScores:
    """Out-of-distribution scores of N images."""

    # (N,)
    flagged: npt.NDArray[np.bool_]
    # (N,) 1 at the limit of flagging, 0 for most familiar images; NaN if unknown
    distance: FloatArray
    # (N,) of the held-out images that are nearer, 0 to 100; NaN if unknown
    percentile: FloatArray
    # checks beyond the limit of each image, the largest score first
    reasons: list[list[str]]

    @property
    def flags(self) -> list[bool | None]:
        """Flag of each image, None if nothing checked it."""
        flags = zip(self.flagged, np.isnan(self.distance), strict=True)
        return [None if unknown else bool(flag) for flag, unknown in flags]


@dataclass(frozen=True)
class OodDetector:
    """Out-of-distribution detector: all checks, and the limit of their maximum."""

    checks: Mapping[str, Check]
    # (M,) scores of held-out images, rising; none if only a feature distance is known
    held_out: FloatArray

    @property
    def reads_pixels(self) -> bool:
        """Whether any check needs statistics of the pixels."""
        return len(self.checks) > 1

    @property
    def limit(self) -> float:
        """Score that 1 % of exchangeable images exceed."""
        return float(self.held_out[self._rank - 1]) if len(self.held_out) else 1.0

    @property
    def _rank(self) -> int:
        m = len(self.held_out)
        return min(math.ceil((m + 1) * (1 - FALSE_ALARM_RATE)), m)

    @property
    def false_alarm_rate(self) -> float:
        """Expected share of familiar images that are flagged."""
        return 1 - self._rank / (len(self.held_out) + 1)

    def strangeness(
        self, features: npt.ArrayLike, named: IntArray, appearance: npt.ArrayLike | None, columns: Mapping[str, slice]
    ) -> dict[str, FloatArray]:
        """Scores (N,) by check, NaN if unknown."""
        scores = {FEATURES: self.checks[FEATURES](features, named)}
        if appearance is not None and self.reads_pixels:
            seen = np.asarray(appearance, dtype=np.float64)
            unknown = np.isnan(seen).all(axis=1)
            for name, where in columns.items():
                scores[name] = np.where(unknown, -np.inf, self.checks[name](seen[:, where], named))
        return scores

    def judge(
        self, features: npt.ArrayLike, named: IntArray, appearance: npt.ArrayLike | None, columns: Mapping[str, slice]
    ) -> OodScores:
        """Judge N images; arguments as of ``strangeness``."""
        scores = self.strangeness(features, named, appearance, columns)
        table, names, limit = np.stack(list(scores.values())), list(scores), self.limit
        worst = table.max(axis=0)
        order = np.argsort(-table, axis=0, kind="stable")
        reasons = [[names[k] for k in column if table[k, row] > limit] for row, column in enumerate(order.T)]
        percentile = np.full(len(worst), np.nan)
        if len(self.held_out):
            percentile = 100 * np.searchsorted(self.held_out, worst) / len(self.held_out)
        return OodScores(worst > limit, np.maximum(worst, 0) / max(limit, _TINY), percentile, reasons)

    def to_bytes(self) -> bytes:
        """Write as safetensors, float64."""
        from safetensors.numpy import save

        tensors = {f"{name}.{part}": getattr(check, part) for name, check in self.checks.items() for part in _ARRAYS}
        tensors |= {"held_out": self.held_out, "version": np.array([VERSION])}
        return save({name: np.ascontiguousarray(array) for name, array in tensors.items()})

    @classmethod
    def from_bytes(cls, data: bytes) -> "OodDetector":
        """Read back what ``to_bytes`` wrote."""
        return read_tensors(data, "record of familiarity", cls._of_tensors)

    @classmethod
    def _of_tensors(cls, tensors: dict[str, FloatArray]) -> "OodDetector":
        if int(tensors["version"][0]) != VERSION:
            raise ValueError(f"version {tensors['version'][0]} is not {VERSION}, which this code reads")
        names = sorted(name.removesuffix(".scale") for name in tensors if name.endswith(".scale"))
        checks = {name: Check(*(tensors[f"{name}.{part}"] for part in _ARRAYS)) for name in names}
        held_out = tensors["held_out"]
        if FEATURES not in checks or held_out.ndim != 1 or not len(held_out) or (np.diff(held_out) < 0).any():
            raise ValueError("no check of features, or no held-out images in rising order")
        return cls(checks, held_out)


@dataclass(frozen=True)
class FeatureDistance:
    """Mahalanobis distance of features (N, D), shrunk covariance."""

    # (D,) of known cells
    mean: FloatArray
    # (D, D), W with WᵀW the inverse of their shrunk covariance
    whitening: FloatArray
    # beyond which a cell is unfamiliar
    threshold: float

    def __post_init__(self) -> None:
        d = self.mean.size
        finite = np.isfinite(self.mean).all() and np.isfinite(self.whitening).all() and np.isfinite(self.threshold)
        if self.mean.shape != (d,) or self.whitening.shape != (d, d) or not finite:
            raise ValueError("a feature distance is misshapen or not finite")

    def __call__(self, features: npt.ArrayLike) -> FloatArray:
        """Distances (N,) of features (N, D), divided by √D."""
        values = np.asarray(features, dtype=np.float64)
        if values.ndim != 2 or values.shape[1] != self.mean.size:
            raise ValueError(f"features must be (N, {self.mean.size}), got {values.shape}")
        return np.asarray(np.sqrt(np.square((values - self.mean) @ self.whitening.T).mean(axis=1)))

    def as_detector(self, n_classes: int) -> "OodDetector":
        """Detector of a release without checks, by distance alone."""
        far = math.log(max(self.threshold, _TINY))
        # a distance of 1 is that of a typical cell
        scale = np.array([min(0.0, far - 1.0), far])
        return OodDetector(
            {FEATURES: Check(np.tile(self.mean, (n_classes, 1)), self.whitening[None], scale)}, np.empty(0)
        )

    def to_bytes(self) -> bytes:
        """Write as safetensors, float64."""
        from safetensors.numpy import save

        return save({"mean": self.mean, "whitening": self.whitening, "threshold": np.array([self.threshold])})

    @classmethod
    def from_bytes(cls, data: bytes) -> "FeatureDistance":
        """Read back what ``to_bytes`` wrote."""
        return read_tensors(
            data, "feature distance", lambda t: cls(t["mean"], t["whitening"], float(t["threshold"][0]))
        )


@dataclass(frozen=True)
class DetectorInputs:
    """Features (N, D), logits (N, K) and statistics (N, F) of N images."""

    features: npt.NDArray[np.float32]
    logits: npt.NDArray[np.float32]
    appearance: npt.NDArray[np.float32]

    @property
    def named(self) -> IntArray:
        """Classes (N,) that the network names."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)


def fit_ood_detector(
    familiar: DetectorInputs, held_out: DetectorInputs, columns: Mapping[str, slice]
) -> OodDetector | None:
    """Fit and scale the checks; None with fewer than 20 images."""
    # not on images that the network was fitted to: their features lie closer together
    if min(len(familiar.features), len(held_out.features)) < MIN_IMAGES:
        return None
    n_classes = familiar.logits.shape[1]
    checks = {}
    for name, where in {FEATURES: slice(None), **columns}.items():
        inner, outer = (
            seen.features if name == FEATURES else seen.appearance[:, where] for seen in (familiar, held_out)
        )
        unscaled = _fit(inner, familiar.named, n_classes, by_class=name != FEATURES)
        scale = np.quantile(unscaled(outer, held_out.named), _QUANTILES)
        checks[name] = Check(unscaled.means, unscaled.whitening, scale)
    unset = OodDetector(checks, np.zeros(1))
    scores = unset.strangeness(held_out.features, held_out.named, held_out.appearance, columns)
    return OodDetector(checks, np.sort(np.stack(list(scores.values())).max(axis=0)))


def _fit(values: npt.ArrayLike, named: IntArray, n_classes: int, *, by_class: bool) -> Check:
    # The common covariance is shrunk towards its diagonal by F / (F + N), that of a
    # class towards the common one by 3 F / (3 F + N_k).
    inner = np.asarray(values, dtype=np.float64)
    n, length = inner.shape
    sizes = np.bincount(named, minlength=n_classes)
    means = np.tile(inner.mean(axis=0), (n_classes, 1))
    for number in np.flatnonzero(sizes >= _MIN_OF_CLASS):
        means[number] = inner[named == number].mean(axis=0)
    rest = inner - means[named]
    common = rest.T @ rest / n
    floor = _floor(common)
    whitening = [_whitening(common, length / (length + n), floor)]
    if by_class:
        whitening = []
        for k in range(n_classes):
            own, share = rest[named == k], 3 * length / (3 * length + sizes[k])
            mixed = (1 - share) * own.T @ own / max(sizes[k], 1) + share * common
            whitening.append(_whitening(mixed, length / (length + n), floor))
    return Check(means, np.stack(whitening), np.array([0.0, 1.0]))


def fit_feature_distance(familiar: npt.ArrayLike, held_out: npt.ArrayLike) -> FeatureDistance | None:
    """Fit distance and threshold; None with fewer than 20 images."""
    # The covariance is shrunk towards its diagonal by D / (D + N), and stays invertible.
    inner, outer = np.asarray(familiar, dtype=np.float64), np.asarray(held_out, dtype=np.float64)
    if min(len(inner), len(outer)) < MIN_IMAGES:
        return None
    n, d = inner.shape
    covariance = np.cov(inner, rowvar=False).reshape(d, d)
    unset = FeatureDistance(inner.mean(axis=0), _whitening(covariance, d / (d + n), _floor(covariance)), 0.0)
    return FeatureDistance(unset.mean, unset.whitening, float(np.quantile(unset(outer), FAMILIAR_SHARE)))


def _floor(covariance: FloatArray) -> float:
    variances = np.diag(covariance)
    return float(max(variances[variances > 0].min(initial=1.0), _TINY))


def _whitening(covariance: FloatArray, share: float, floor: float) -> FloatArray:
    """W with WᵀW the inverse of a shrunk covariance."""
    shrunk = (1 - share) * covariance
    np.fill_diagonal(shrunk, np.maximum(np.diag(covariance), floor))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(shrunk)))
