"""Mixed MNIST: digits and blends of two digits with simulated label histograms (paper §6.1)."""

import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyarrow import csv

from ml.arrays import FloatArray, IntArray
from ml.datasets.base import ClassInfo, DatasetMissingError, ImageDataset, datasets_folder
from ml.preprocess import Pixels, Preprocessing, fit_normalisation

CLASSES = tuple(ClassInfo(str(digit), f"Digit {digit}", str(digit)) for digit in range(10))
_WHERE = "github.com/m1m0r1/lh_calib, data/mixed_mnist"


def _digits() -> tuple[Pixels, IntArray]:
    """All 70,000 digits, training part first, from the data folder or through torchvision."""
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


def blend(images: Pixels, ids: npt.NDArray[np.int64], ratios: FloatArray) -> Pixels:
    """Blend pairs: r · first + (1 − r) · second, rounded to uint8.

    Args:
        images: (M, H, W) originals.
        ids: (N, 2) numbers of the originals, equal where an image is not mixed.
        ratios: (N,) weight r of the first.
    """
    first, second = images[ids[:, 0]].astype(np.float32), images[ids[:, 1]].astype(np.float32)
    r = ratios.astype(np.float32)[:, None, None]
    return np.asarray(np.rint(r * first + (1 - r) * second), dtype=np.uint8)


def load_mix_mnist(valid_labels: int = 2) -> ImageDataset:
    """Mix-MNIST with ``valid_labels`` labels per validation image, by the authors' split tables.

    Raises:
        DatasetMissingError: the split tables or the digits are not on this machine.
        ValueError: ``valid_labels`` is not 1, 2 or 5.
    """
    if valid_labels not in {1, 2, 5}:
        raise ValueError(f"valid_labels must be 1, 2 or 5, got {valid_labels}")
    path = datasets_folder("lh_calib_splits", _WHERE) / f"mixed_mnist.t1_v{valid_labels}.txt.gz"
    with gzip.open(path) as stream:
        table = csv.read_csv(
            stream,
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types={"_org_id": "string", "_org_y": "string"}),
        )
    pairs = [text.split(",") for text in table.column("_org_id").to_pylist()]
    ids = np.array([[int(pair[0]), int(pair[-1])] for pair in pairs])
    ratios = np.asarray(table.column("_ratio").to_numpy(), dtype=np.float64)
    images, digits = _digits()
    pixels = blend(images, ids, ratios)[..., None]
    partition = np.array(table.column("partition").to_pylist(), dtype="U12")
    counts = [[int(n) for n in text.split(",")] for text in table.column("hist").to_pylist()]
    one_hot = np.eye(10)[digits]
    mean, std = fit_normalisation(pixels[partition == "train"])
    return ImageDataset(
        name="mix_mnist",
        classes=CLASSES,
        pixels=pixels,
        label_counts=np.array(counts, dtype=np.int64),
        partition=partition,
        case_ids=[f"mix-mnist-{row:05d}" for row in table.column("id").to_pylist()],
        patients=None,
        preprocessing=Preprocessing(1, None, pixels.shape[1], mean, std),
        orientation="fixed",
        source=f"Mix-MNIST({valid_labels}) by the split tables of m1m0r1/lh_calib",
        licence="CC BY-SA 3.0 (MNIST), MIT (split tables)",
        true_probs=ratios[:, None] * one_hot[ids[:, 0]] + (1 - ratios[:, None]) * one_hot[ids[:, 1]],
    )
