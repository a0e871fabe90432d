"""Lung nodules: measured image features and the malignancy ratings of four radiologists (LIDC-IDRI)."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyarrow import csv

from ml.datasets.base import datasets_folder
from ml.util.arrays import FloatArray, IntArray

#: 1 highly unlikely … 3 indeterminate … 5 highly suspicious.
MALIGNANCY = ("1", "2", "3", "4", "5")
N_READERS = 4
_KEYS = {"patient", "nodule_id", "instance_id", "z_position"}
_RATINGS = (
    "Subtlety",
    "InternalStructure",
    "Calcification",
    "Sphericity",
    "Margin",
    "Lobulation",
    "Spiculation",
    "Texture",
    "Malignancy",
)


@dataclass(frozen=True)
class Nodules:
    """Nodules with features and ratings.

    Attributes:
        features: (N, D) measured on the image.
        labels: (N, 4) malignancy by position; positions are other persons from one patient to the next.
        label_counts: (N, 5) of these.
        patients: (N,) names.
    """

    features: FloatArray
    labels: IntArray
    label_counts: IntArray
    patients: npt.NDArray[np.str_]


def load_nodules() -> Nodules:
    """All 809 nodules of 522 patients.

    Raises:
        DatasetMissingError: the data set is not on this machine.
    """
    folder = datasets_folder("lidc_nodule_ratings", "github.com/ysriram1/LIDC, LIDC_REU2015.csv")
    table = csv.read_csv(folder / "lidc_nodules.csv.gz")
    ratings = [f"Malignancy_{reader}" for reader in range(1, N_READERS + 1)]
    ratings_of_all = {f"{rating}_{reader}" for rating in _RATINGS for reader in range(1, N_READERS + 1)}
    measured = [name for name in table.column_names if name not in _KEYS | ratings_of_all]
    labels = np.stack([table.column(name).to_numpy() for name in ratings], axis=1).astype(np.int64) - 1
    return Nodules(
        features=np.stack([table.column(name).to_numpy().astype(np.float64) for name in measured], axis=1),
        labels=labels,
        label_counts=np.asarray((labels[..., None] == np.arange(len(MALIGNANCY))).sum(axis=1), dtype=np.int64),
        patients=np.array([str(name) for name in table.column("patient").to_pylist()]),
    )
