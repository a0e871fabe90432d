"""A folder of one's own: images, and a LABELS table or a folder for each class.

::

    DIR/labels.csv                 (or .csv.gz, .parquet) case_id, annotator, label  or  case_id, count:<class>…
                                   optional: file, patient, partition (train, valid, calibration, test),
                                   patient_hmac (of the service that exported the cells)
    DIR/images/<case_id>.png       or .jpg, .jpeg, .tif, .tiff, or the path in column `file`
    DIR/CLASS/file.jpg             instead of a table: a folder for each class (``ml.datasets.class_folders``)
    DIR/classes.csv                optional: code, name; shortcut, group
    DIR/.decoded/                  made here: decoded images, which may be deleted at any time; SECONDREAD_CACHE names
                                   another place, or is off
"""

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ml.annotations import Annotations
from ml.datasets.base import PARTITIONS, ClassInfo, ImageDataset
from ml.datasets.class_folders import SUFFIXES, read_class_folders
from ml.images.pixel_cache import Observer, PackStore, UnreadableImageError, decode_files, ignore_progress
from ml.images.preprocess import Orientation, Pixels, Preprocessing, fit_normalisation
from ml.release.training_index import parse_patient_hmac
from ml.tables.files import case_column, check_labels, classes_in
from ml.tables.reading import TableError, read_table, text_column
from ml.util.splits import stratified_partitions

SHARES = {"train": 0.6, "valid": 0.1, "calibration": 0.1, "test": 0.2}
_LABELS = ("labels.csv", "labels.csv.gz", "labels.parquet")


def _labels(folder: Path) -> tuple[Path, Annotations, tuple[str, ...]]:
    """Labels of a folder, the file or folder that they are from, and notes for people."""
    class_codes = None
    if (folder / "classes.csv").is_file():
        class_codes = text_column(read_table(folder / "classes.csv"), "code", folder / "classes.csv")
    path = next((folder / name for name in _LABELS if (folder / name).is_file()), None)
    if path is None:
        table, notes = read_class_folders(folder)
        return folder, check_labels(table, folder, class_codes), notes
    table = read_table(path)
    labels = check_labels(table, path, class_codes)
    unnamed = not labels.annotators and not classes_in(table, "count:")
    return path, labels, (f"{path}: each image has one label, by one unnamed annotator",) if unnamed else ()


def _classes(folder: Path, codes: list[str]) -> tuple[ClassInfo, ...]:
    path = folder / "classes.csv"
    if not path.is_file():
        return tuple(ClassInfo(code, code.replace("_", " ").capitalize(), "") for code in codes)
    table = read_table(path)
    columns = [text_column(table, name, path) for name in ("code", "name")]
    for name in ("shortcut", "group"):
        given = table.column(name).to_pylist() if name in table.column_names else [""] * len(columns[0])
        columns.append([str(value or "") for value in given])
    return tuple(ClassInfo(*row) for row in zip(*columns, strict=True))


def _inside(folder: Path, name: str, table_path: Path) -> Path:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise TableError(f"{table_path}: {name!r} must be a path inside {folder}")
    return folder / name


def _image_paths(folder: Path, labels: Annotations, table_path: Path) -> list[Path]:
    if "file" in labels.columns:
        return [_inside(folder, str(name), table_path) for name in case_column(labels, "file", table_path)]
    paths = []
    for case in labels.case_ids:
        candidates = [_inside(folder, f"images/{case}{suffix}", table_path) for suffix in SUFFIXES]
        existing = [path for path in candidates if path.is_file()]
        if not existing:
            raise TableError(f"{table_path}: case {case!r} has no image {candidates[0]} (or {', '.join(SUFFIXES[1:])})")
        paths.append(existing[0])
    return paths


def _read_pixels(
    folder: Path, paths: list[Path], preprocessing: Preprocessing, observer: Observer
) -> tuple[Pixels, list[bytes]]:
    """Network pixels and picture digest of each image."""
    cache = os.environ.get("SECONDREAD_CACHE")
    # what else lies in a folder that a user names is none of ours
    store = PackStore(Path(cache) / "secondread-decoded" if cache else folder / ".decoded")
    try:
        images = decode_files(paths, preprocessing, None if cache == "off" else store, observer)
    except UnreadableImageError as exc:
        raise TableError(str(exc)) from exc
    return images.pixels, images.digests


def _partition(labels: Annotations, groups: list[str], path: Path, seed: int) -> npt.NDArray[np.str_]:
    if "partition" not in labels.columns:
        return stratified_partitions(groups, labels.counts(), SHARES, seed)
    given = [str(name) for name in case_column(labels, "partition", path)]
    wrong = sorted(set(given) - set(PARTITIONS))
    if wrong:
        raise TableError(f"{path}: column 'partition': {wrong[0]!r} is none of {', '.join(PARTITIONS)}")
    return np.array(given, dtype="U12")


def _patient_hmacs(labels: Annotations, path: Path) -> list[str] | None:
    if "patient_hmac" not in labels.columns:
        return None
    given = [str(text) for text in case_column(labels, "patient_hmac", path)]
    try:
        for text in given:
            parse_patient_hmac(text)
    except ValueError as exc:
        raise TableError(f"{path}: column 'patient_hmac': {exc}") from exc
    return given


def load_folder(
    folder: Path,
    *,
    size: int = 96,
    crop: int | None = None,
    grey: bool = False,
    orientation: Orientation = "any",
    seed: int = 0,
    observer: Observer = ignore_progress,
) -> ImageDataset:
    """Read a folder of images with a LABELS table or class folders, with a pixel cache."""
    if not folder.is_dir():
        raise TableError(f"{folder}: no such folder")
    path, labels, notes = _labels(folder)
    if len(labels.classes) < 2:
        raise TableError(f"{path}: at least two classes are needed, found {', '.join(labels.classes) or 'none'}")
    patients = [str(p) for p in case_column(labels, "patient", path)] if "patient" in labels.columns else None
    channels = 1 if grey else 3
    plain = Preprocessing(channels, crop, size, (0.0,) * channels, (1.0,) * channels)
    pixels, digests = _read_pixels(folder, _image_paths(folder, labels, path), plain, observer)
    partition = _partition(labels, patients or list(labels.case_ids), path, seed)
    training = pixels[partition == "train"]
    mean, std = fit_normalisation(training if len(training) else pixels)
    return ImageDataset(
        name=folder.resolve().name,
        classes=_classes(folder, list(labels.classes)),
        pixels=pixels,
        label_counts=labels.counts(),
        partition=partition,
        case_ids=list(labels.case_ids),
        patients=patients,
        preprocessing=Preprocessing(channels, crop, size, mean, std),
        orientation=orientation,
        source=f"{len(pixels)} images of the folder {folder.resolve().name!r}"
        + (", each with one label by one unnamed annotator" if notes else ""),
        licence="not stated",
        pixel_digests=digests,
        patient_hmacs=_patient_hmacs(labels, path),
        annotators=labels.annotators or None,
        notes=notes,
        partition_given="partition" in labels.columns,
    )
