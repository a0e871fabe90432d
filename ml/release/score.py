"""Predictions of a few image files as documents and as PREDICTIONS columns."""

from pathlib import Path
from typing import TypedDict

import numpy as np
from PIL import Image

from ml.distributions.families import DirichletCpe, PredictiveDistribution, has_concentration
from ml.images.preprocess import ImageRejectedError, decode_image
from ml.release.artifact import read_release
from ml.release.device import Device
from ml.release.ood_detector import OodScores
from ml.release.predictor import Predictor
from ml.tables.reading import Column, TableError, fail_at, read_table, text_column
from ml.util.number_format import finite

#: Column of a manifest with digests of patients, as exports have it.
PATIENTS = "patient_hmac"
#: Columns of numbers that may be missing.
MAY_BE_EMPTY = ("disagreement_prob", "distance", "distance_percentile")
#: Of image files.
SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff"}


def decode_file(path: Path) -> Image.Image:
    """Decode an image file; a message names the one that cannot be read."""
    try:
        return decode_image(path.read_bytes())
    except (OSError, ImageRejectedError) as exc:
        raise ValueError(f"{path}: {exc}") from exc


class ImagePrediction(TypedDict):
    """The prediction of one image file, as ``secondread predict --json`` prints it.

    The disagreement probability of an image unlike those that the release was made from is withheld;
    ``out_of_distribution`` is None if the release has no check. ``reasons`` are the checks that the image fails,
    ``distance`` is 1 at the limit of flagging, ``distance_percentile`` that of the held-out images that are nearer.
    """

    image: str
    class_probs: dict[str, float]
    log_concentration: float | None
    disagreement_prob: float | None
    disagreement_prob_raw: float
    disagreement_calibrated: bool
    disagreement_constant: bool
    out_of_distribution: bool | None
    reasons: list[str]
    distance: float | None
    distance_percentile: float | None


def predict_files(
    release: Path, paths: list[Path], *, tta: int | None = None, seed: int = 0, device: Device = "auto"
) -> list[ImagePrediction]:
    """Predict image files, by ``tta`` augmented views or as they are."""
    predictor = Predictor(read_release(release), device=device)
    rows: list[ImagePrediction] = []
    for path in paths:
        images = [decode_file(path)]
        plain = predictor.predict(images)
        distribution, unlike = plain.distribution, plain.unlikeness
        if tta is not None:
            distribution = predictor.predict_augmented(images, samples=tta, seed=seed)
        phi, flagged = float(distribution.disagreement_probs[0]), unlike.flags[0]
        a = distribution.log_concentration if isinstance(distribution, DirichletCpe) else None
        rows.append(
            {
                "image": str(path),
                "class_probs": dict(zip(predictor.release.classes, distribution.class_probs[0].tolist(), strict=True)),
                "log_concentration": None if a is None else float(a[0]),
                "disagreement_prob": None if flagged else phi,
                "disagreement_prob_raw": phi,
                "disagreement_calibrated": has_concentration(distribution),
                "disagreement_constant": distribution.stated_disagreement is not None,
                "out_of_distribution": flagged,
                "reasons": unlike.reasons[0],
                "distance": finite(float(unlike.distance[0])),
                "distance_percentile": finite(float(unlike.percentile[0])),
            }
        )
    return rows


def prediction_columns(
    case_ids: list[str], classes: tuple[str, ...], distribution: PredictiveDistribution, unlike: OodScores
) -> dict[str, Column]:
    """Columns of a PREDICTIONS table; unlike images have no disagreement."""
    columns: dict[str, Column] = {"case_id": case_ids}
    columns |= {f"prob:{name}": distribution.class_probs[:, k] for k, name in enumerate(classes)}
    if isinstance(distribution, DirichletCpe):
        columns["log_concentration"] = distribution.log_concentration
    return columns | {
        "disagreement_prob": np.where(unlike.flagged, np.nan, distribution.disagreement_probs),
        "disagreement_prob_raw": distribution.disagreement_probs,
        "out_of_distribution": np.ma.masked_array(unlike.flagged, np.isnan(unlike.distance)),
        "reasons": [" ".join(reasons) for reasons in unlike.reasons],
        "distance": unlike.distance,
        "distance_percentile": unlike.percentile,
    }


def listed_images(images: Path) -> tuple[list[str], list[Path], list[str] | None]:
    """Case names, files and patient digests of a folder or manifest."""
    hmacs = None
    if images.is_dir():
        paths = sorted(path for path in images.iterdir() if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise TableError(f"{images}: contains no image ({', '.join(sorted(SUFFIXES))})")
        case_ids, source = [path.stem for path in paths], images / "*.csv"
    else:
        table = read_table(images)
        case_ids, source = text_column(table, "case_id", images), images
        paths = [images.parent / name for name in text_column(table, "file", images)]
        hmacs = text_column(table, PATIENTS, images) if PATIENTS in table.column_names else None
    seen = {case: row for row, case in reversed(list(enumerate(case_ids)))}
    fail_at(source, [seen[case] != row for row, case in enumerate(case_ids)], "case_id", "duplicated case", case_ids)
    return case_ids, paths, hmacs
