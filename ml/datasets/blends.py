"""Mixed digits and objects with known label distributions.

A blend r · first + (1 − r) · second has the first class with probability r
and the second with 1 − r (paper §6.1). One third of the instances are mixed.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt
from pyarrow import csv

from ml.datasets import cifar
from ml.datasets.base import PARTITIONS, ClassInfo, ImageDataset, datasets_folder
from ml.images.preprocess import Orientation, Pixels, Preprocessing, fit_normalisation
from ml.util.arrays import FloatArray, IntArray

DIGITS = tuple(ClassInfo(str(digit), f"Digit {digit}", str(digit)) for digit in range(10))
VALID_LABELS = (1, 2, 5)


def load_digits(numbers: IntArray) -> tuple[Pixels, IntArray]:
    """All digits (70000, 28, 28) and their classes, training part first."""
    folder = datasets_folder("mnist", "storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz")
    with np.load(folder / "mnist.npz") as data:
        images = np.concatenate([data["x_train"], data["x_test"]])
        return images, np.concatenate([data["y_train"], data["y_test"]]).astype(np.int64)


@dataclass(frozen=True)
class BlendSource:
    """Originals and split tables of one family of blends."""

    title: str
    table: str
    originals: Callable[[IntArray], tuple[Pixels, IntArray]]
    classes: tuple[ClassInfo, ...]
    orientation: Orientation
    licence: str


BLENDS = {
    "mix_mnist": BlendSource("Mix-MNIST", "mixed_mnist", load_digits, DIGITS, "fixed", "CC BY-SA 3.0 (MNIST)"),
    "mix_cifar10": BlendSource(
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
    """Split table: originals (N, 2), and weight r of the first."""

    case_ids: npt.NDArray[np.str_]
    ids: IntArray
    ratios: FloatArray
    label_counts: IntArray
    partition: npt.NDArray[np.str_]

    def thinned(self, at_most: int) -> "BlendTable":
        """The first ``cases`` of each partition, ordered by originals."""
        early = np.argsort(self.ids.max(axis=1), kind="stable")
        rows = np.sort(np.concatenate([early[self.partition[early] == name][:at_most] for name in PARTITIONS]))
        return BlendTable(*(column[rows] for column in vars(self).values()))


@lru_cache(maxsize=2)
def read_blend_table(name: str, valid_labels: int) -> BlendTable:
    """Read the table with ``valid_labels`` labels per validation image."""
    if valid_labels not in VALID_LABELS:
        raise ValueError(f"valid_labels must be 1, 2 or 5, got {valid_labels}")
    source = BLENDS[name]
    folder = datasets_folder("lh_calib_splits", "github.com/m1m0r1/lh_calib, data/mixed_mnist and data/mixed_cifar10")
    with gzip.open(folder / f"{source.table}.t1_v{valid_labels}.txt.gz") as stream:
        table = csv.read_csv(
            stream,
            parse_options=csv.ParseOptions(delimiter="\t"),
            convert_options=csv.ConvertOptions(column_types={"_org_id": "string", "_org_y": "string"}),
        )
    pairs = [text.split(",") for text in table.column("_org_id").to_pylist()]
    counts = [[int(n) for n in text.split(",")] for text in table.column("hist").to_pylist()]
    return BlendTable(
        case_ids=np.array([f"{source.title.lower()}-{row:05d}" for row in table.column("id").to_pylist()]),
        ids=np.array([[int(pair[0]), int(pair[-1])] for pair in pairs]),
        ratios=np.asarray(table.column("_ratio").to_numpy(), dtype=np.float64),
        label_counts=np.array(counts, dtype=np.int64),
        partition=np.array(table.column("partition").to_pylist(), dtype="U12"),
    )


def load_blend(name: str, valid_labels: int = 2, cases: int | None = None) -> ImageDataset:
    """Load blended images; ``cases`` limits each partition."""
    source, table = BLENDS[name], read_blend_table(name, valid_labels)
    if cases is not None:
        table = table.thinned(cases)
    images, classes = source.originals(table.ids)
    first, second = (images[numbers].astype(np.float32) for numbers in table.ids.T)
    r = table.ratios.astype(np.float32).reshape(-1, *[1] * (images.ndim - 1))
    pixels = np.asarray(np.rint(r * first + (1 - r) * second), dtype=np.uint8)
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    mean, std = fit_normalisation(pixels[table.partition == "train"])
    one_hot, share = np.eye(len(source.classes))[classes], table.ratios[:, None]
    return ImageDataset(
        name=name,
        classes=source.classes,
        pixels=pixels,
        label_counts=table.label_counts,
        partition=table.partition,
        case_ids=table.case_ids.tolist(),
        patients=None,
        preprocessing=Preprocessing(pixels.shape[3], None, pixels.shape[1], mean, std),
        orientation=source.orientation,
        source=f"{source.title}({valid_labels}) by the split tables of m1m0r1/lh_calib",
        licence=f"{source.licence}, MIT (split tables)",
        true_probs=share * one_hot[table.ids[:, 0]] + (1 - share) * one_hot[table.ids[:, 1]],
    )


load_mix_mnist = partial(load_blend, "mix_mnist")
load_mix_cifar10 = partial(load_blend, "mix_cifar10")
