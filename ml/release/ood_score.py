"""Out-of-distribution scores of images by the detector that a release carries."""

import numpy as np
import numpy.typing as npt

from ml.images.image_quality_features import compute_quality_features, feature_columns
from ml.images.preprocess import Pixels
from ml.release.artifact import Release
from ml.release.ood_detector import FEATURES, OodScores


def quality_features_for_release(release: Release, pixels: Pixels) -> npt.NDArray[np.float32] | None:
    """Statistics (N, F) of what the network sees of N images, None where the release does not judge them.

    Args:
        release: whose checks they are for.
        pixels: (N, size, size, C) uint8, of its preprocessing.
    """
    return None if release.familiarity is None else compute_quality_features(pixels)


def compute_ood_scores(
    release: Release,
    logits: npt.NDArray[np.float32],
    features: npt.NDArray[np.float32],
    seen: npt.NDArray[np.float32] | None,
) -> OodScores:
    """Compute the out-of-distribution scores of N images.

    A release without checks of familiarity judges the features' distance alone; one without that nothing.

    Args:
        release: which judges.
        logits: (N, K) of the network, now or stored.
        features: (N, D), as served.
        seen: (N, F) of ``quality_features_for_release``, rows of NaN where it is unknown; None: of no image.
    """
    n = len(logits)
    if release.familiarity is not None:
        side, channels = release.preprocessing.size, release.preprocessing.channels
        named = np.asarray(np.asarray(logits).argmax(axis=1), dtype=np.int64)
        return release.familiarity.judge(features, named, seen, feature_columns(side, channels))
    unknown = np.full(n, np.nan)
    if release.distance is None:
        return OodScores(np.zeros(n, dtype=bool), unknown, unknown, [[] for _ in range(n)])
    distance = release.distance(features)
    flagged = release.distance.unfamiliar(distance)
    share = distance / max(release.distance.threshold, np.finfo(np.float64).tiny)
    return OodScores(flagged, share, unknown, [[FEATURES] if flag else [] for flag in flagged])
