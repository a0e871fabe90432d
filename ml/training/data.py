"""Training data: batches on the device, and lengths and warnings for small sets."""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ml.datasets.base import PARTITIONS, ImageDataset
from ml.images.preprocess import Orientation


class DeviceData:
    """A data set whose cases are put on a device batch by batch."""

    def __init__(self, dataset: ImageDataset, device: torch.device) -> None:
        self.dataset, self.device = dataset, device
        scale, offset = dataset.preprocessing.scale_and_offset()
        self._scale, self._offset = torch.from_numpy(scale).to(device), torch.from_numpy(offset).to(device)

    def inputs(self, rows: npt.NDArray[np.intp]) -> Tensor:
        """Network inputs of cases, as ``Preprocessing.normalise``."""
        pixels = torch.from_numpy(self.dataset.pixels[rows]).to(self.device)
        images = pixels.permute(0, 3, 1, 2).float() * self._scale + self._offset
        return images.contiguous(memory_format=torch.channels_last)

    def counts(self, rows: npt.NDArray[np.intp]) -> Tensor:
        """Label counts (n, K) of cases."""
        return torch.from_numpy(self.dataset.label_counts[rows]).to(self.device)


Augmentation = Literal["flips", "light", "wide"]

#: Steps that a training takes at least, where nobody says how many epochs.
MIN_STEPS = 600
EPOCHS = 13
_BATCHES_PER_PASS, _SMALLEST_BATCH, _LARGEST_BATCH = 8, 16, 128
#: Cells of a class below which its figures mean little.
FEW_CELLS = {"train": 10, "test": 10}
#: Labelled cases below which ``ml.calibration.calibrate`` refuses to fit anything.
MIN_CALIBRATION = 10
#: Cells of a partition below which its figures mean little.
FEW_IN_PARTITION = {"train": 100, "valid": 20, "calibration": 50, "test": 50}
_PURPOSE = {
    "train": "the network is fitted to them",
    "valid": "they stop the training",
    "calibration": "the probabilities are calibrated on them",
    "test": "they say how good it is",
}


def class_counts(dataset: ImageDataset) -> dict[str, list[int]]:
    """Cells by partition and class, counted for each of their labels."""
    called = dataset.label_counts > 0
    return {name: called[rows].sum(axis=0).tolist() for name in PARTITIONS if (rows := dataset.rows(name)).size}


def batch_for(n_images: int) -> int:
    """Images per step for a training set: an eighth of it, from 16 to 128."""
    return min(_LARGEST_BATCH, max(_SMALLEST_BATCH, n_images // _BATCHES_PER_PASS))


def augmentation_for(orientation: Orientation) -> Augmentation:
    """``wide`` for cells that lie any way up, ``light`` for others."""
    return "wide" if orientation == "any" else "light"


def passes_for(n_images: int, batch_size: int, augmentation: Augmentation) -> int:
    """Passes per image for ``MIN_STEPS`` steps in ``EPOCHS`` epochs."""
    steps = max(1, math.ceil(n_images / batch_size))
    return math.ceil(MIN_STEPS / (EPOCHS * steps)) * (2 if augmentation == "wide" else 1)


def describe_shortages(dataset: ImageDataset) -> list[str]:
    """Warnings about parts too small for meaningful figures."""
    return [*_partitions_too_small(dataset), *_classes_too_small(dataset)]


def _partitions_too_small(dataset: ImageDataset) -> Iterable[str]:
    for name, enough in FEW_IN_PARTITION.items():
        rows = dataset.rows(name)
        if rows.size >= enough or (name == "calibration" and dataset.calibration_partition == "valid"):
            continue
        of = "" if dataset.patients is None else f" of {len({dataset.patients[row] for row in rows})} patients"
        if name == "calibration" and rows.size < MIN_CALIBRATION:
            yield f"partition calibration has {rows.size} cells{of}: `calibrate` refuses fewer than {MIN_CALIBRATION}"
            continue
        more = enough - rows.size
        yield (
            f"partition {name} has {rows.size} cells{of} ({_PURPOSE[name]}): fewer than {enough} say little; "
            f"collect {more} more there"
        )


def _classes_too_small(dataset: ImageDataset) -> Iterable[str]:
    counts = class_counts(dataset)
    for k, info in enumerate(dataset.classes):
        few = {name: counts[name][k] for name, n in FEW_CELLS.items() if name in counts and counts[name][k] < n}
        if not few:
            continue
        have = " and ".join(f"{n} cells in {name}" for name, n in few.items())
        lost = "it can hardly be learned" if "train" in few else "its recall will be a guess"
        yield (
            f"class {info.code} has {have}: {lost}; collect at least {max(FEW_CELLS.values())} in each partition, or "
            "merge it with another class"
        )


def require_two(dataset: ImageDataset) -> None:
    """Refuse what cannot be trained on at all."""
    sizes = {name: dataset.rows(name).size for name in PARTITIONS}
    patients = "" if dataset.patients is None else f", {len(set(dataset.patients))} patients"
    for name in ("train", "valid"):
        if sizes[name] < 2:
            shares = ", ".join(f"{part} {n}" for part, n in sizes.items())
            raise ValueError(
                f"data set {dataset.name!r} has fewer than two cases in partition {name!r} ({shares}; "
                f"{len(dataset.case_ids)} cells{patients}): at least four patients with several cells each are needed, "
                "or a column 'partition' that says which is which"
            )
    if np.count_nonzero(dataset.label_counts[dataset.rows("train")].sum(axis=0)) < 2:
        raise ValueError(f"data set {dataset.name!r}: all cells of partition 'train' are of one class")
