"""What a release knows of familiar images, and its trial on shifted ones before it is written."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from PIL import Image

from ml.calibration.calibrators import Calibration
from ml.charts.rows import ShiftPoint
from ml.images.image_quality_features import feature_columns, optical_density
from ml.images.preprocess import Pixels, Preprocessing
from ml.images.standard_shifts import shifted, shifts_for
from ml.metrics.cases import agreement_terms
from ml.release.artifact import DISTANCE_FILE, FAMILIARITY_FILE, HEAD_FILE, write_release
from ml.release.card import CardContents, ReferenceDocument
from ml.release.ood_detector import DetectorInputs, fit_feature_distance, fit_ood_detector
from ml.release.predictor import Prediction, Predictor
from ml.training.run_folder import CachedOutputs, RunFolder
from ml.util.arrays import FloatArray, IntArray

#: Held-out images of the test part on which shifts are tried.
SHIFTED_IMAGES = 500


def add_checks(folder: RunFolder, preprocessing: Preprocessing, files: dict[str, bytes]) -> ReferenceDocument:
    """Add distance and checks of a finished run to a release's files."""
    outputs = folder.read_outputs()
    stain = np.array([optical_density(image) for image in folder.read_examples()])
    counts = outputs.label_counts[outputs.partition == "test"].sum(axis=0)
    seen: ReferenceDocument = {
        "stain_mean": stain.mean(axis=0).tolist(),
        "stain_sd": stain.std(axis=0, ddof=1).tolist(),
        "n_stain": len(stain),
        "label_share": (counts / max(counts.sum(), 1)).tolist(),
        "n_labels": int(counts.sum()),
    }
    return with_checks(seen, outputs, folder.read_held_out().appearance, preprocessing, files)


def with_checks(
    seen: ReferenceDocument,
    outputs: CachedOutputs,
    appearance: npt.NDArray[np.float32],
    preprocessing: Preprocessing,
    files: dict[str, bytes],
) -> ReferenceDocument:
    """Fit distance and checks, and scale them on held-out cases."""
    features = outputs.pooled if HEAD_FILE in files else outputs.features
    held_out = outputs.partition == "test"
    reference: ReferenceDocument = {**seen, "distance_sq_mean": None, "distance_sq_sd": None, "n_distance": None}
    reference.pop("false_alarm_rate", None)
    distance = fit_feature_distance(features[~held_out], features[held_out])
    if distance is not None:
        files[DISTANCE_FILE] = distance.to_bytes()
        squared = np.square(distance(features[held_out]))
        reference["distance_sq_mean"], reference["distance_sq_sd"] = float(squared.mean()), float(squared.std(ddof=1))
        reference["n_distance"] = len(squared)
    reference_inputs, new = (
        DetectorInputs(features[rows], outputs.logits[rows], appearance[rows]) for rows in (~held_out, held_out)
    )
    familiarity = fit_ood_detector(reference_inputs, new, feature_columns(preprocessing.size, preprocessing.channels))
    if familiarity is not None:
        files[FAMILIARITY_FILE] = familiarity.to_bytes()
        reference["false_alarm_rate"] = familiarity.false_alarm_rate
    return reference


@dataclass(frozen=True)
class ShiftTrial:
    """Options of a shift trial."""

    other: Pixels | None = None  # of another data set, any size
    observer: Callable[[int, int], None] = lambda done, total: None  # rows done and in all


def try_shifts(
    pixels: Pixels,
    label_counts: IntArray,
    files: dict[str, bytes],
    calibration: Calibration,
    card: CardContents,
    trial: ShiftTrial,
) -> list[ShiftPoint]:
    """Answers of these parts to shifted images."""
    if not len(pixels):
        return []
    with TemporaryDirectory() as temporary:
        draft = write_release(Path(temporary) / "draft", files, calibration, card, "")
        predictor = Predictor(draft, device="cpu")
        other = trial.other
        if other is not None:  # as the network would see them
            other = np.stack([draft.preprocessing.pixels(Image.fromarray(image.squeeze())) for image in other])
        return shift_suite(predictor, pixels, label_counts, other, trial.observer)


#: Strengths by the word that names them: 1 is the standard shift.
STRENGTHS = {"mild": (0.1, 0.5), "standard": (1.0, 1.0)}
UNSHIFTED, OTHER = "unshifted", "another data set"


@dataclass(frozen=True)
class _Terms:
    agreement: FloatArray
    loss: FloatArray


def _terms(label_counts: IntArray, prediction: Prediction) -> _Terms:
    labelled = label_counts.sum(axis=1) > 0
    counts, probs = label_counts[labelled], prediction.distribution.class_probs[labelled]
    freqs = counts / counts.sum(axis=1, keepdims=True)
    loss = 1 + np.square(probs).sum(axis=1) - 2 * (freqs * probs).sum(axis=1)
    return _Terms(agreement_terms(freqs, probs), loss)


def _row(kind: str, strength: str, prediction: Prediction, terms: _Terms | None, plain: _Terms | None) -> ShiftPoint:
    has_labels = terms is not None and len(terms.agreement) > 0
    change = terms.agreement - plain.agreement if has_labels and terms and plain is not None else None
    several = change is not None and len(change) > 1
    return {
        "kind": kind,
        "strength": strength,
        "n": len(prediction.logits),
        "flagged": float(prediction.out_of_distribution.mean()),
        "agreement": float(terms.agreement.mean()) if has_labels and terms else None,
        "agreement_change": None if change is None else float(change.mean()),
        "agreement_change_se": float(change.std(ddof=1) / np.sqrt(len(change)))
        if several and change is not None
        else None,
        "loss": float(terms.loss.mean()) if has_labels and terms else None,
        "mean_disagreement": float(prediction.distribution.disagreement_probs.mean()),
    }


def _series(pixels: Pixels, seed: int) -> Iterator[tuple[str, str, Pixels]]:
    for number, shift in enumerate(shifts_for(pixels.shape[-1])):
        for word, strengths in STRENGTHS.items():
            yield shift.name, word, shifted(pixels, shift, strengths, seed + number)[0]


def shift_suite(
    predictor: Predictor,
    pixels: Pixels,
    label_counts: IntArray,
    other: Pixels | None = None,
    observer: Callable[[int, int], None] = lambda done, total: None,
    *,
    seed: int = 0,
) -> list[ShiftPoint]:
    """Predict pixels (N, H, W, C) plain, shifted, and of another data set."""
    plain = predictor.predict(list(pixels))
    plain_terms = _terms(label_counts, plain)
    rows = [_row(UNSHIFTED, "none", plain, plain_terms, None)]
    total = 1 + len(shifts_for(pixels.shape[-1])) * len(STRENGTHS) + (other is not None)
    observer(1, total)
    for kind, strength, images in _series(pixels, seed):
        prediction = predictor.predict(list(images))
        rows.append(_row(kind, strength, prediction, _terms(label_counts, prediction), plain_terms))
        observer(len(rows), total)
    if other is not None:
        rows.append(_row(OTHER, "none", predictor.predict(list(other)), None, None))
        observer(len(rows), total)
    return rows
