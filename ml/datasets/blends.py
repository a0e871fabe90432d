"""Mixed digits and objects with known label distributions (mix-MNIST, mix-CIFAR-10).

A blend r · first + (1 − r) · second has the true label distribution r on the first original's class and 1 − r on
the second's (paper §6.1). The paper's "half of the images mixed" means one third of the instances.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyarrow import csv

from ml.datasets import cifar
from ml.datasets.base import PARTITIONS, ClassInfo, DatasetMissingError, ImageDataset, datasets_folder
from ml.images.preprocess import Orientation, Pixels, Preprocessing, fit_normalisation
from ml.util.arrays import FloatArray, IntArray

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
    from ml.util.torchvision_ops import datasets

    root = Path.home() / ".cache" / "secondread"
    try:
        parts = [datasets.MNIST(root, train=train, download=True) for train in (True, False)]
    except (RuntimeError, OSError) as exc:
        raise DatasetMissingError(
            f"data set 'mnist': not below SECONDREAD_DATASETS, and torchvision cannot download it: {exc}"
        ) from exc
    images = np.concatenate([part.data.numpy() for part in parts])
    return images, np.concatenate([part.targets.numpy() for part in parts]).astype(np.int64)


_WHERE = "github.com/m1m0r1/lh_calib, data/mixed_mnist and data/mixed_cifar10"
VALID_LABELS = (1, 2, 5)


@dataclass(frozen=True)
class BlendSource:
    """Where the originals and the tables of one family of blends come from.

    Attributes:
        name: of the data set.
        title: for people.
        table: first part of the tables' file names.
        originals: loads the originals (M, H, W) or (M, H, W, 3) and classes (M,), training part first, of which
            those with the given numbers are wanted.
        classes: K classes.
        orientation: of the images, for augmentation.
        licence: of the originals.
    """

    name: str
    title: str
    table: str
    originals: Callable[[IntArray], tuple[Pixels, IntArray]]
    classes: tuple[ClassInfo, ...]
    orientation: Orientation
    licence: str


BLENDS = {
    "mix-mnist": BlendSource(
        "mix_mnist", "Mix-MNIST", "mixed_mnist", load_digits, CLASSES, "fixed", "CC BY-SA 3.0 (MNIST)"
    ),
    "mix-cifar10": BlendSource(
        "mix_cifar10",
        "Mix-CIFAR-10",
        "mixed_cifar10",
        cifar.load_photographs,
        cifar.CLASSES,
        "upright",
        "free for research (CIFAR-10)",
    ),
}


@dataclass(frozen=True)
class BlendTable:
    """A split table.

    Attributes:
        case_ids: N identifiers.
        ids: (N, 2) numbers of the originals, equal where an image is not mixed.
        ratios: (N,) weight r of the first.
        label_counts: (N, K) simulated label histograms.
        partition: (N,).
    """

    case_ids: list[str]
    ids: npt.NDArray[np.int64]
    ratios: FloatArray
    label_counts: IntArray
    partition: npt.NDArray[np.str_]

    def thinned(self, at_most: int) -> "BlendTable":
        """So many cases of each partition: those whose originals come first, so that few files are needed."""
        early = np.argsort(self.ids.max(axis=1), kind="stable")
        rows = np.sort(np.concatenate([early[self.partition[early] == name][:at_most] for name in PARTITIONS]))
        names = [self.case_ids[row] for row in rows]
        return BlendTable(names, self.ids[rows], self.ratios[rows], self.label_counts[rows], self.partition[rows])


@lru_cache(maxsize=2)
def read_blend_table(source: BlendSource, valid_labels: int) -> BlendTable:
    """Read the table with ``valid_labels`` labels per validation image; images are the same in all.

    Raises:
        DatasetMissingError: the tables are not on this machine.
        ValueError: ``valid_labels`` is not 1, 2 or 5.
    """
    if valid_labels not in VALID_LABELS:
        raise ValueError(f"valid_labels must be 1, 2 or 5, got {valid_labels}")
    path = datasets_folder("lh_calib_splits", _WHERE) / f"{source.table}.t1_v{valid_labels}.txt.gz"
    with gzip.open(path) as stream:
        table = csv.read_csv(
            stream,
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types={"_org_id": "string", "_org_y": "string"}),
        )
    pairs = [text.split(",") for text in table.column("_org_id").to_pylist()]
    counts = [[int(n) for n in text.split(",")] for text in table.column("hist").to_pylist()]
    prefix = source.title.lower()
    return BlendTable(
        case_ids=[f"{prefix}-{row:05d}" for row in table.column("id").to_pylist()],
        ids=np.array([[int(pair[0]), int(pair[-1])] for pair in pairs]),
        ratios=np.asarray(table.column("_ratio").to_numpy(), dtype=np.float64),
        label_counts=np.array(counts, dtype=np.int64),
        partition=np.array(table.column("partition").to_pylist(), dtype="U12"),
    )


def blend(images: Pixels, ids: npt.NDArray[np.int64], ratios: FloatArray) -> Pixels:
    """Blend pairs: r · first + (1 − r) · second, rounded to uint8.

    Args:
        images: (M, H, W) or (M, H, W, C) originals.
        ids: (N, 2) numbers of the originals, equal where an image is not mixed.
        ratios: (N,) weight r of the first.
    """
    first, second = images[ids[:, 0]].astype(np.float32), images[ids[:, 1]].astype(np.float32)
    r = ratios.astype(np.float32).reshape(-1, *[1] * (images.ndim - 1))
    return np.asarray(np.rint(r * first + (1 - r) * second), dtype=np.uint8)


def load_blend(source: BlendSource, valid_labels: int = 2, cases: int | None = None) -> ImageDataset:
    """Blended images with ``valid_labels`` labels per validation image.

    Args:
        source: which family.
        valid_labels: 1, 2 or 5.
        cases: keep only that many of each partition, for quick looks.

    Raises:
        DatasetMissingError: the tables or the originals are not on this machine.
        ValueError: ``valid_labels`` is not 1, 2 or 5.
    """
    table = read_blend_table(source, valid_labels)
    if cases is not None:
        table = table.thinned(cases)
    originals, classes = source.originals(table.ids)
    pixels = blend(originals, table.ids, table.ratios)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    one_hot, r = np.eye(len(source.classes))[classes], table.ratios[:, None]
    mean, std = fit_normalisation(pixels[table.partition == "train"])
    return ImageDataset(
        name=source.name,
        classes=source.classes,
        pixels=pixels,
        label_counts=table.label_counts,
        partition=table.partition,
        case_ids=table.case_ids,
        patients=None,
        preprocessing=Preprocessing(pixels.shape[3], None, pixels.shape[1], mean, std),
        orientation=source.orientation,
        source=f"{source.title}({valid_labels}) by the split tables of m1m0r1/lh_calib",
        licence=f"{source.licence}, MIT (split tables)",
        true_probs=r * one_hot[table.ids[:, 0]] + (1 - r) * one_hot[table.ids[:, 1]],
    )


def load_mix_mnist(valid_labels: int = 2, cases: int | None = None) -> ImageDataset:
    """Mix-MNIST; arguments and errors as in ``load_blend``."""
    return load_blend(BLENDS["mix-mnist"], valid_labels, cases)


def load_mix_cifar10(valid_labels: int = 2, cases: int | None = None) -> ImageDataset:
    """Mix-CIFAR-10; arguments and errors as in ``load_blend``."""
    return load_blend(BLENDS["mix-cifar10"], valid_labels, cases)
