"""MNIST: 70,000 handwritten digits, the originals of Mix-MNIST."""

from pathlib import Path

import numpy as np

from ml.arrays import IntArray
from ml.datasets.base import ClassInfo, DatasetMissingError, datasets_folder
from ml.images.preprocess import Pixels

CLASSES = tuple(ClassInfo(str(digit), f"Digit {digit}", str(digit)) for digit in range(10))


def load_digits(wanted: IntArray) -> tuple[Pixels, IntArray]:
    """All digits (70000, 28, 28) and their classes, training part first, from the data folder or torchvision.

    Args:
        wanted: numbers of those that will be used; all of them are in one small file.

    Raises:
        DatasetMissingError: neither has them.
    """
    try:
        path = datasets_folder("mnist", "torchvision.datasets.MNIST") / "mnist.npz"
    except DatasetMissingError:
        return _torchvision_digits()
    with np.load(path) as data:
        images = np.concatenate([data["x_train"], data["x_test"]])
        return images, np.concatenate([data["y_train"], data["y_test"]]).astype(np.int64)


def _torchvision_digits() -> tuple[Pixels, IntArray]:
    from ml.torchvision_ops import datasets

    root = Path.home() / ".cache" / "secondread"
    try:
        parts = [datasets.MNIST(root, train=train, download=True) for train in (True, False)]
    except (RuntimeError, OSError) as exc:
        raise DatasetMissingError(
            f"data set 'mnist': not below SECONDREAD_DATASETS, and torchvision cannot download it: {exc}"
        ) from exc
    images = np.concatenate([part.data.numpy() for part in parts])
    return images, np.concatenate([part.targets.numpy() for part in parts]).astype(np.int64)
