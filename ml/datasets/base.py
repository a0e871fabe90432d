"""Common data set type: images, label histograms, classes, partitions, preprocessing."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ml.images.preprocess import Orientation, Pixels, Preprocessing
from ml.release.card import ClassDocument
from ml.util.arrays import FloatArray, IntArray

T = TypeVar("T")

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
    that exported them.
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

    def rows(self, *partitions: str) -> npt.NDArray[np.intp]:
        """Row numbers of the given partitions."""
        return np.flatnonzero(np.isin(self.partition, partitions))

    def thinned(self, at_most: int) -> "ImageDataset":
        """The first ``at_most`` cases of each partition, in order."""
        kept = np.sort(np.concatenate([self.rows(name)[:at_most] for name in PARTITIONS]))
        return replace(
            self,
            pixels=self.pixels[kept],
            label_counts=self.label_counts[kept],
            partition=self.partition[kept],
            case_ids=[self.case_ids[row] for row in kept],
            patients=_picked(self.patients, kept),
            pixel_digests=_picked(self.pixel_digests, kept),
            patient_hmacs=_picked(self.patient_hmacs, kept),
            true_probs=None if self.true_probs is None else self.true_probs[kept],
        )

    @property
    def calibration_partition(self) -> str:
        """The partition ``calibration``, or ``valid`` if there is none."""
        return "calibration" if (self.partition == "calibration").any() else "valid"


def _picked(values: list[T] | None, rows: npt.NDArray[np.intp]) -> list[T] | None:
    return None if values is None else [values[row] for row in rows]


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
