"""Prediction of image blocks into tables with fixed columns."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ImageRejectedError, Pixels, decode_image
from ml.release.artifact import read_release
from ml.release.device import Device
from ml.release.predictor import Predictor
from ml.release.score import MAY_BE_EMPTY, ood_columns, prediction_columns
from ml.scoring.image_list import Rows
from ml.scoring.writing import ERRORS
from ml.tables.files import Column, empty_where_nan
from ml.tables.trained_cells import TRAINED_ON

_PROBE_SIDE = 64


class Scorer:
    """A release that predicts blocks of images.

    Args:
        release: release folder.
        tta: augmented views an image, None for the image itself.
        seed: of the views.
        threads: within one run of the network, 0 for all cores.
        device: where the network runs.

    Attributes:
        release_sha256: digest of the release's card.
        schema: of every table of predictions.

    Raises:
        ValueError: the release cannot be read, or takes no augmented views, or the device cannot be used.
    """

    def __init__(
        self, release: Path, *, tta: int | None = None, seed: int = 0, threads: int = 0, device: Device = "auto"
    ) -> None:
        self.predictor = Predictor(read_release(release), threads, device=device)
        self.release_sha256 = self.predictor.release.card_sha256
        self.tta, self.seed = tta, seed
        probe = Image.new("RGB", (_PROBE_SIDE, _PROBE_SIDE))
        self.schema: pa.Schema = self._predictions(["probe"], [probe], [pixel_digest(probe)], None).schema

    def __call__(self, rows: Rows) -> tuple[pa.Table, pa.Table]:
        """Predictions of the images that can be read, and errors of those that cannot."""
        kept: list[int] = []
        images: list[Image.Image | Pixels] = []
        digests: list[bytes] = []
        wrong: list[tuple[int, str, str]] = []
        for at, path in enumerate(rows.paths):
            try:
                image = decode_image(path.read_bytes())
            except (OSError, ValueError) as exc:
                wrong.append((at, *_unreadable_reason(exc)))
                continue
            kept.append(at)
            digests.append(pixel_digest(image))
            # augmented views are made of the image itself; else its pixels need not be kept
            images.append(image if self.tta is not None else self.predictor.pixels([image])[0])
        errors = {
            "row": [rows.first + at for at, _, _ in wrong],
            "case_id": [rows.case_ids[at] for at, _, _ in wrong],
            "file": [rows.names[at] for at, _, _ in wrong],
            "reason": [reason for _, reason, _ in wrong],
            "message": [message for _, _, message in wrong],
        }
        hmacs = None if rows.hmacs is None else [rows.hmacs[at] for at in kept]
        predictions = self.schema.empty_table()
        if kept:
            predictions = self._predictions([rows.case_ids[at] for at in kept], images, digests, hmacs)
        return predictions, pa.table(errors, schema=ERRORS)

    def _predictions(
        self, cases: list[str], images: list[Image.Image | Pixels], digests: list[bytes], hmacs: list[str] | None
    ) -> pa.Table:
        release, plain = self.predictor.release, self.predictor.predict(images)
        distribution = plain.distribution
        if self.tta is not None:
            pictures = [image for image in images if isinstance(image, Image.Image)]
            distribution = self.predictor.predict_augmented(pictures, samples=self.tta, seed=self.seed)
        columns = prediction_columns(cases, release.classes, distribution)
        columns |= ood_columns(distribution.disagreement_probs, plain.unlikeness)
        columns["release_sha256"] = [self.release_sha256] * len(cases)
        columns[TRAINED_ON] = self._trained_on(digests, hmacs)
        filled: dict[str, Column] = {name: empty_where_nan(np.asarray(columns[name])) for name in MAY_BE_EMPTY}
        return pa.table(dict(columns | filled))

    def _trained_on(self, digests: list[bytes], hmacs: list[str] | None) -> list[str]:
        """Training status of each image or its patient: yes, no, or unknown."""
        index = self.predictor.release.training
        if index is None:
            return ["unknown"] * len(digests)
        return ["yes" if use else "no" for use in index.uses_of(digests, hmacs)]


def _unreadable_reason(exc: OSError | ValueError) -> tuple[str, str]:
    """Reason and message of a file that cannot be read, without the place where it lies on this machine."""
    if isinstance(exc, ImageRejectedError):
        return exc.reason, str(exc)
    reason = "missing" if isinstance(exc, FileNotFoundError) else "unreadable"
    return reason, (exc.strerror if isinstance(exc, OSError) else None) or "the file cannot be read"
