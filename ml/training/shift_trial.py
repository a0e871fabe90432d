"""Shift trial of a release before it is written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from ml.calibration.calibrators import Calibration
from ml.charts.rows import ShiftPoint
from ml.images.preprocess import Pixels, Preprocessing
from ml.release.artifact import write_release
from ml.release.card import CardContents
from ml.release.predictor import Predictor
from ml.release.shift_suite import shift_suite
from ml.training.run_folder import RunFolder


@dataclass(frozen=True)
class ShiftTrial:
    """Options of a shift trial.

    Attributes:
        other: pixels of another data set, (N, H, W, C) uint8 of any size, or None.
        observer: called with the rows done and in all.
    """

    other: Pixels | None = None
    observer: Callable[[int, int], None] = lambda done, total: None


def tried_shifts(
    folder: RunFolder, files: dict[str, bytes], calibration: Calibration, card: CardContents, trial: ShiftTrial
) -> list[ShiftPoint]:
    """Answers of the release that these parts would make, by the path that serves them.

    Args:
        folder: finished run.
        files: of the release.
        calibration: its parameters.
        card: its card so far.
        trial: what is tried.

    Returns:
        Rows of the card; none where no case was held out.
    """
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
