"""What a release knows of familiar images, and its trial on shifted ones before it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from PIL import Image

from ml.calibration.calibrators import Calibration
from ml.charts.rows import ShiftPoint
from ml.distributions.families import softmax_probs
from ml.images.image_quality_features import feature_columns, optical_density
from ml.images.preprocess import Pixels, Preprocessing
from ml.images.standard_shifts import shifted, shifts_for
from ml.metrics.cases import agreement_terms, class_frequencies
from ml.release.artifact import DISTANCE_FILE, FAMILIARITY_FILE, HEAD_FILE, write_release
from ml.release.card import CardContents, ParityDocument, ReferenceDocument
from ml.release.ood_detector import DetectorInputs, fit_feature_distance, fit_ood_detector
from ml.release.predictor import Prediction, Predictor
from ml.training.run_folder import CachedOutputs, RunFolder
from ml.util.arrays import FloatArray, IntArray

#: Largest differences; of logits as a share of the largest |logit|.
PROBABILITY_TOLERANCE, LOGIT_TOLERANCE = 1e-5, 1e-4
#: Held-out images of the test part on which shifts are tried.
SHIFTED_IMAGES = 500


class ParityError(ValueError):
    """The exported network does not compute what the original one does."""


def compare_logits(expected: npt.NDArray[np.float32], exported: npt.NDArray[np.float32]) -> ParityDocument:
    """Compare logits (N, K) of the original network and of the exported one."""
    probs = float(np.abs(softmax_probs(exported) - softmax_probs(expected)).max())
    logits = float(np.abs(exported - expected).max() / np.abs(expected).max())
    if not (probs <= PROBABILITY_TOLERANCE and logits <= LOGIT_TOLERANCE):
        raise ParityError(
            f"the exported network differs from the original one: probabilities by {probs:.2g} "
            f"(at most {PROBABILITY_TOLERANCE:g}), logits by {logits:.2g} of the largest (at most {LOGIT_TOLERANCE:g})"
        )
    return {"n": len(expected), "max_probability_difference": probs, "max_relative_logit_difference": logits}


def add_checks(folder: RunFolder, preprocessing: Preprocessing, files: dict[str, bytes]) -> ReferenceDocument:
    """Add distance and checks of a finished run to a release's files."""
    outputs = folder.read_outputs()
    seen = stain_and_labels(folder.read_examples(), outputs)
    return with_checks(seen, outputs, folder.read_held_out().appearance, preprocessing, files)


def stain_and_labels(pixels: Pixels, outputs: CachedOutputs) -> ReferenceDocument:
    """Reference of the stain of images (M, H, W, C) and of held-out labels."""
    stain = np.array([optical_density(image) for image in pixels])
    sums = class_frequencies(outputs.label_counts[outputs.partition == "test"]).sum(axis=0)  # each cell counts once
    return {
        "stain_mean": stain.mean(axis=0).tolist(),
        "stain_sd": stain.std(axis=0, ddof=1).tolist(),
        "n_stain": len(stain),
        "label_share": (sums / max(sums.sum(), 1)).tolist(),
        "n_labels": round(sums.sum()),
    }


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


def _terms(label_counts: IntArray, prediction: Prediction) -> tuple[FloatArray, FloatArray]:
    """Agreement and squared error per label of labelled cases (N,)."""
    labelled = label_counts.sum(axis=1) > 0
    counts, probs = label_counts[labelled], prediction.distribution.class_probs[labelled]
    freqs = counts / counts.sum(axis=1, keepdims=True)
    loss = 1 + np.square(probs).sum(axis=1) - 2 * (freqs * probs).sum(axis=1)
    return agreement_terms(freqs, probs), loss


def _row(kind: str, strength: str, prediction: Prediction) -> ShiftPoint:
    return {
        "kind": kind,
        "strength": strength,
        "n": len(prediction.logits),
        "flagged": float(prediction.out_of_distribution.mean()),
        "agreement": None,
        "agreement_change": None,
        "agreement_change_se": None,
        "loss": None,
        "mean_disagreement": float(prediction.distribution.disagreement_probs.mean()),
    }


def shift_suite(
    predictor: Predictor,
    pixels: Pixels,
    label_counts: IntArray,
    other: Pixels | None = None,
    observer: Callable[[int, int], None] = lambda done, total: None,
) -> list[ShiftPoint]:
    """Predict pixels (N, H, W, C) plain, shifted, and of another data set."""
    shifts, rows, plain = shifts_for(pixels.shape[-1]), list[ShiftPoint](), None
    total = 1 + len(shifts) * len(STRENGTHS) + (other is not None)
    series = [(number, shift, *part) for number, shift in enumerate(shifts) for part in STRENGTHS.items()]
    for number, shift, word, strengths in [(0, None, "none", (0.0, 0.0)), *series]:
        images = pixels if shift is None else shifted(pixels, shift, strengths, number)[0]
        prediction = predictor.predict(list(images))
        row = _row(UNSHIFTED if shift is None else shift.name, word, prediction)
        agreement, loss = _terms(label_counts, prediction)
        if len(agreement):
            row["agreement"], row["loss"] = float(agreement.mean()), float(loss.mean())
            if plain is None:
                plain = agreement
            else:
                change = agreement - plain
                row["agreement_change"] = float(change.mean())
                if len(change) > 1:
                    row["agreement_change_se"] = float(change.std(ddof=1) / np.sqrt(len(change)))
        rows.append(row)
        observer(len(rows), total)
    if other is not None:
        rows.append(_row(OTHER, "none", predictor.predict(list(other))))
        observer(len(rows), total)
    return rows
