"""What a release knows of familiar images, and its trial on shifted ones before it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from PIL import Image

from ml.calibration.calibrators import Calibration
from ml.charts.rows import ShiftPoint
from ml.images.image_quality_features import feature_columns, optical_density
from ml.images.preprocess import Pixels, Preprocessing
from ml.release.artifact import DISTANCE_FILE, FAMILIARITY_FILE, HEAD_FILE, write_release
from ml.release.card import CardContents, ReferenceDocument
from ml.release.ood_detector import DetectorInputs, fit_feature_distance, fit_ood_detector
from ml.release.predictor import Predictor
from ml.release.shift_suite import shift_suite
from ml.training.run_folder import CachedOutputs, RunFolder


class _Distances(TypedDict):
    """Mean and spread of the squared distances of n familiar cells."""

    distance_sq_mean: float | None
    distance_sq_sd: float | None
    n_distance: int | None


def add_checks(folder: RunFolder, preprocessing: Preprocessing, files: dict[str, bytes]) -> ReferenceDocument:
    """Add the distance from the training cells and the checks of familiarity to a release's files."""
    outputs, appearance = folder.read_outputs(), folder.read_held_out().appearance
    seen = _stain_and_labels(folder, outputs.take(outputs.partition == "test"))
    return with_checks(seen, outputs, appearance, preprocessing, files)


def with_checks(
    seen: ReferenceDocument,
    outputs: CachedOutputs,
    appearance: npt.NDArray[np.float32] | None,
    preprocessing: Preprocessing,
    files: dict[str, bytes],
) -> ReferenceDocument:
    """Fit distance and checks to a network's outputs, and add them to a release's files."""
    features = outputs.pooled if HEAD_FILE in files else outputs.features
    held_out = outputs.partition == "test"
    reference: ReferenceDocument = {**seen, **_add_distance(features, held_out, files)}
    reference.pop("false_alarm_rate", None)
    if appearance is None:
        return reference
    reference_inputs, new = (
        DetectorInputs(features[rows], outputs.logits[rows], appearance[rows]) for rows in (~held_out, held_out)
    )
    familiarity = fit_ood_detector(reference_inputs, new, feature_columns(preprocessing.size, preprocessing.channels))
    if familiarity is not None:
        files[FAMILIARITY_FILE] = familiarity.to_bytes()
        reference["false_alarm_rate"] = familiarity.false_alarm_rate
    return reference


def _add_distance(
    features: npt.NDArray[np.float32], held_out: npt.NDArray[np.bool_], files: dict[str, bytes]
) -> _Distances:
    distance = fit_feature_distance(features[~held_out], features[held_out])
    if distance is None:
        return {"distance_sq_mean": None, "distance_sq_sd": None, "n_distance": None}
    files[DISTANCE_FILE] = distance.to_bytes()
    squared = np.square(distance(features[held_out]))
    return {
        "distance_sq_mean": float(squared.mean()),
        "distance_sq_sd": float(squared.std(ddof=1)),
        "n_distance": len(squared),
    }


def _stain_and_labels(folder: RunFolder, held_out: CachedOutputs) -> ReferenceDocument:
    stain = np.array([optical_density(image) for image in folder.read_examples()])
    counts = held_out.label_counts.sum(axis=0)
    return {
        "stain_mean": stain.mean(axis=0).tolist(),
        "stain_sd": stain.std(axis=0, ddof=1).tolist(),
        "n_stain": len(stain),
        "label_share": (counts / max(counts.sum(), 1)).tolist(),
        "n_labels": int(counts.sum()),
    }


@dataclass(frozen=True)
class ShiftTrial:
    """Options of a shift trial."""

    other: Pixels | None = None  # pixels of another data set, (N, H, W, C) uint8 of any size, or None
    observer: Callable[[int, int], None] = lambda done, total: None  # called with the rows done and in all


def tried_shifts(
    folder: RunFolder, files: dict[str, bytes], calibration: Calibration, card: CardContents, trial: ShiftTrial
) -> list[ShiftPoint]:
    """Answers of the release that these parts would make, by the path that serves them."""
    images = folder.read_held_out()
    if not len(images.pixels):
        return []
    counts = folder.read_outputs().label_counts[images.rows]
    with TemporaryDirectory() as temporary:
        draft = write_release(Path(temporary) / "draft", files, calibration, card, "")
        predictor = Predictor(draft, device="cpu")
        other = None if trial.other is None else _as_seen(trial.other, draft.preprocessing)
        return shift_suite(predictor, images.pixels, counts, other, trial.observer)


def _as_seen(pixels: Pixels, preprocessing: Preprocessing) -> Pixels:
    """Images of another data set as the network would see them."""
    return np.stack([preprocessing.pixels(Image.fromarray(image.squeeze())) for image in pixels])
