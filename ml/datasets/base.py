"""Common data set type: images, label histograms, classes, partitions, preprocessing; and data sets by name."""

import os
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ml.images.pixel_cache import Observer, ignore_progress
from ml.images.preprocess import Orientation, Pixels, Preprocessing, pixel_digest
from ml.release.card import ClassDocument
from ml.util.arrays import FloatArray, IntArray

#: They fit the network, stop it, fit the calibrators, and are held out.
PARTITIONS = ("train", "valid", "calibration", "test")


class DatasetMissingError(ValueError):
    """A data set is not on this machine; the message says where to get it."""


@dataclass(frozen=True)
class ClassInfo:
    """A class; ``shortcut`` is a key, ``group`` a heading, both may be empty."""

    code: str
    name: str
    shortcut: str
    group: str = ""

    def to_dict(self) -> ClassDocument:
        """As a card lists it: a class without a group has no key for one."""
        document: ClassDocument = {"code": self.code, "name": self.name, "shortcut": self.shortcut}
        return {**document, "group": self.group} if self.group else document


@dataclass(frozen=True)
class ImageDataset:
    """Images (N, H, W, C) with label histograms (N, K) and partitions.

    ``orientation``: ``any`` (cells lie any way up), ``upright`` (small turns, mirrored) or ``fixed``. ``pixel_digests``
    are of the pictures as they were decoded, of ``pixels`` if left out; ``patient_hmacs`` are digests of the service
    that exported them; ``notes`` are sentences for people about what was read.
    """

    name: str
    classes: tuple[ClassInfo, ...]
    pixels: Pixels
    label_counts: IntArray
    partition: npt.NDArray[np.str_]
    case_ids: list[str]
    patients: list[str] | None
    preprocessing: Preprocessing
    orientation: Orientation
    source: str
    licence: str
    true_probs: FloatArray | None = None
    pixel_digests: list[bytes] | None = None
    patient_hmacs: list[str] | None = None
    annotators: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    # by the source of the data, not drawn
    partition_given: bool = True

    def rows(self, *partitions: str) -> npt.NDArray[np.intp]:
        """Row numbers of the given partitions."""
        return np.flatnonzero(np.isin(self.partition, partitions))

    def take(self, rows: npt.NDArray[np.intp]) -> "ImageDataset":
        """Pick cases from all arrays and lists, which have one entry per case."""
        picked: dict[str, npt.NDArray[Any] | list[Any]] = {}
        for name, values in vars(self).items():
            if isinstance(values, np.ndarray | list):
                picked[name] = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        return replace(self, **cast(Any, picked))

    def thinned(self, at_most: int) -> "ImageDataset":
        """The first ``at_most`` cases of each partition, in order."""
        return self.take(np.sort(np.concatenate([self.rows(name)[:at_most] for name in PARTITIONS])))

    def digests(self) -> list[bytes]:
        """Digests of the pictures."""
        return [pixel_digest(pixels) for pixels in self.pixels] if self.pixel_digests is None else self.pixel_digests

    @property
    def groups(self) -> npt.NDArray[np.str_]:
        """Patient (N,) of each case, or the case itself."""
        return np.array(self.case_ids if self.patients is None else self.patients)

    @property
    def calibration_partition(self) -> str:
        """The partition ``calibration``, or ``valid`` if there is none."""
        return "calibration" if (self.partition == "calibration").any() else "valid"


def datasets_folder(name: str, where: str) -> Path:
    """Folder of a real data set below ``SECONDREAD_DATASETS``."""
    root = os.environ.get("SECONDREAD_DATASETS")
    if not root:
        raise DatasetMissingError(
            f"data set {name!r}: set SECONDREAD_DATASETS to the folder that contains it ({where})"
        )
    folder = Path(root) / name
    if not folder.is_dir():
        raise DatasetMissingError(f"data set {name!r}: {folder} is not there; get it from {where}")
    return folder


#: Loader of each data set: its module and function, loaded when it is asked for.
_LOADERS = {
    "cells": ("cells", "load_cells"),
    "mix_mnist": ("blends", "load_mix_mnist"),
    "mix_cifar10": ("blends", "load_mix_cifar10"),
    "cifar10h": ("cifar", "load_cifar10h"),
    "pbc": ("pbc", "load_pbc"),
    "pbc_nucleus": ("pbc", "load_pbc_nucleus"),
}
DATASET_NAMES = tuple(_LOADERS)


def is_built_in(data: str) -> bool:
    """Whether it is the name of a data set, and no folder of that name exists."""
    return data in _LOADERS and not Path(data).is_dir()


def folder_note(data: str) -> str | None:
    """Sentence about a folder that has the name of a data set, else None."""
    if data not in _LOADERS or is_built_in(data):
        return None
    place = Path(data).resolve()
    return f"{data} is read as the folder {place}; for the built-in data set, run the command in another folder"


def load_dataset(data: str, options: dict[str, int], observer: Observer = ignore_progress) -> ImageDataset:
    """Load a folder by path, or a data set by name."""
    if not is_built_in(data) and not Path(data).is_dir():
        raise ValueError(f"{data!r} is neither a folder nor one of the data sets {', '.join(DATASET_NAMES)}")
    module, function = _LOADERS[data] if is_built_in(data) else ("folder", "load_folder")
    load = getattr(import_module(f"ml.datasets.{module}"), function)
    if not is_built_in(data):
        load = partial(load, Path(data), observer=observer)
    taken = signature(load).parameters
    unknown = [name for name in options if name not in taken]
    if unknown:
        possible = ", ".join(name for name in taken if name not in {"folder", "observer"}) or "none"
        raise ValueError(f"data set {data!r} does not take {', '.join(unknown)}; its options: {possible}")
    dataset: ImageDataset = load(**options)
    return dataset
