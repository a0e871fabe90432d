"""Predictions of image files: a few as documents, many as a PREDICTIONS table."""

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np
from PIL import Image

from ml.arrays import FloatArray
from ml.distributions.families import DirichletCpe, PredictiveDistribution, has_concentration
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ImageRejectedError, decode_image
from ml.release.artifact import Release, read_release
from ml.release.familiarity import Unlikeness
from ml.release.predictor import BATCH, Predictor
from ml.tables.files import Column, TableError, empty_where_nan, fail_at, read_table, text_column, write_table
from ml.tables.trained_cells import TRAINED_ON

#: Column of a manifest with digests of patients, as exports have it.
PATIENTS = "patient_hmac"
_MAY_BE_EMPTY = ("disagreement_prob", "distance", "distance_percentile")
_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff"}


def decode_file(path: Path) -> Image.Image:
    """Decode an image file.

    Raises:
        ValueError: it cannot be read; the message names it.
    """
    try:
        return decode_image(path.read_bytes())
    except (OSError, ImageRejectedError) as exc:
        raise ValueError(f"{path}: {exc}") from exc


def _predict(
    predictor: Predictor, images: list[Image.Image], tta: int | None, seed: int
) -> tuple[PredictiveDistribution, Unlikeness]:
    """Predictions of images, by augmented views where these are asked for, and how unlike the images themselves are."""
    plain = predictor.predict(images)
    if tta is None:
        return plain.distribution, plain.unlikeness
    return predictor.predict_augmented(images, samples=tta, seed=seed), plain.unlikeness


class ImagePrediction(TypedDict):
    """The prediction of one image file, as ``secondread predict --json`` prints it.

    The disagreement probability of an image unlike those that the release was made from is withheld; ``reasons`` are
    the checks that it fails, ``distance`` is 1 where images are flagged, ``distance_percentile`` that of the held-out
    images that are nearer.
    """

    image: str
    class_probs: dict[str, float]
    log_concentration: float | None
    disagreement_prob: float | None
    disagreement_prob_raw: float
    disagreement_calibrated: bool
    disagreement_constant: bool
    out_of_distribution: bool
    reasons: list[str]
    distance: float | None
    distance_percentile: float | None


def predict_files(release: Path, paths: list[Path], *, tta: int | None = None, seed: int = 0) -> list[ImagePrediction]:
    """Predict image files, one document per file.

    Args:
        release: release folder.
        paths: image files.
        tta: augmented views an image, None for the image itself.
        seed: of the views.

    Returns:
        The predictions, in the order of the files.

    Raises:
        ValueError: the release or an image cannot be read; the message names the file.
    """
    predictor = Predictor(read_release(release))
    rows: list[ImagePrediction] = []
    for path in paths:
        distribution, unlike = _predict(predictor, [decode_file(path)], tta, seed)
        phi, flagged = float(distribution.disagreement_probs[0]), bool(unlike.flagged[0])
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
                "distance": _finite(unlike.distance[0]),
                "distance_percentile": _finite(unlike.percentile[0]),
            }
        )
    return rows


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def unlikeness_columns(disagreement_probs: FloatArray, unlike: Unlikeness) -> dict[str, Column]:
    """Columns of a PREDICTIONS table about images unlike those of the release.

    Their ``disagreement_prob`` is left empty; ``disagreement_prob_raw``, by which predictions are judged, never is.
    """
    return {
        "disagreement_prob": np.where(unlike.flagged, np.nan, disagreement_probs),
        "disagreement_prob_raw": disagreement_probs,
        "out_of_distribution": unlike.flagged,
        "reasons": [" ".join(reasons) for reasons in unlike.reasons],
        "distance": unlike.distance,
        "distance_percentile": unlike.percentile,
    }


def prediction_columns(
    case_ids: list[str], classes: tuple[str, ...], distribution: PredictiveDistribution
) -> dict[str, Column]:
    """Columns of a PREDICTIONS table."""
    columns: dict[str, Column] = {"case_id": case_ids}
    columns |= {f"prob:{name}": distribution.class_probs[:, k] for k, name in enumerate(classes)}
    if isinstance(distribution, DirichletCpe):
        columns["log_concentration"] = distribution.log_concentration
    columns["disagreement_prob"] = distribution.disagreement_probs
    return columns


def listed_images(images: Path) -> tuple[list[str], list[Path], list[str] | None]:
    """Names and files of cases, and digests of their patients where a manifest has them.

    Args:
        images: folder, or manifest whose files are relative to it.

    Raises:
        TableError: no image, a malformed manifest, or a case that stands twice.
    """
    hmacs = None
    if images.is_dir():
        paths = sorted(path for path in images.iterdir() if path.suffix.lower() in _SUFFIXES)
        if not paths:
            raise TableError(f"{images}: contains no image ({', '.join(sorted(_SUFFIXES))})")
        case_ids, source = [path.stem for path in paths], images / "*.csv"
    else:
        table = read_table(images)
        case_ids, source = text_column(table, "case_id", images), images
        paths = [images.parent / name for name in text_column(table, "file", images)]
        hmacs = text_column(table, PATIENTS, images) if PATIENTS in table.column_names else None
    seen = {case: row for row, case in reversed(list(enumerate(case_ids)))}
    fail_at(source, [seen[case] != row for row, case in enumerate(case_ids)], "case_id", "duplicated case", case_ids)
    return case_ids, paths, hmacs


def _trained_on(release: Release, images: list[Image.Image], hmacs: list[str] | None) -> list[str]:
    """Whether a release was trained on each image, or on others of its patient: yes, no, or unknown."""
    index = release.training
    if index is None:
        return ["unknown"] * len(images)
    return ["yes" if use else "no" for use in index.uses_of([pixel_digest(image) for image in images], hmacs)]


def score_images(
    release: Path,
    images: Path,
    out: Path,
    observer: Callable[[int, int], None] = lambda done, total: None,
    *,
    tta: int | None = None,
    seed: int = 0,
) -> int:
    """Predict a folder of images, or a manifest with columns case_id and file, into a PREDICTIONS table.

    Of an image unlike those that the release was made from (``out_of_distribution``, ``reasons``, ``distance``,
    ``distance_percentile``) the ``disagreement_prob`` is empty and ``disagreement_prob_raw`` is not. Two further
    columns say which release it was (``release_sha256``, the digest of its card) and whether it was trained
    on the cell (``trained_on``: yes, no or unknown), so that an evaluation leaves such cells out.

    Args:
        release: release folder.
        images: folder, or manifest whose files are relative to it.
        out: table to write.
        observer: called with images done and in all.
        tta: augmented views an image, None for the image itself.
        seed: of the views.

    Returns:
        The number of predictions.

    Raises:
        TableError: the manifest cannot be used.
        ValueError: the release or an image cannot be read.
    """
    if out.suffix.lower() not in {".csv", ".parquet"}:
        raise TableError(f"{out}: the extension must be .csv or .parquet")
    predictor = Predictor(read_release(release))
    case_ids, paths, hmacs = listed_images(images)
    parts = []
    for start in range(0, len(paths), BATCH):
        rows = slice(start, start + BATCH)
        decoded, batch = [decode_file(path) for path in paths[rows]], case_ids[rows]
        distribution, unlike = _predict(predictor, decoded, tta, seed)
        columns = prediction_columns(batch, predictor.release.classes, distribution)
        columns |= unlikeness_columns(distribution.disagreement_probs, unlike)
        columns["release_sha256"] = [predictor.release.card_sha256] * len(batch)
        columns[TRAINED_ON] = _trained_on(predictor.release, decoded, None if hmacs is None else hmacs[rows])
        parts.append(columns)
        observer(start + len(batch), len(paths))
    table: dict[str, Column] = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    write_table(table | {name: empty_where_nan(np.asarray(table[name])) for name in _MAY_BE_EMPTY}, out)
    return len(paths)
