"""CIFAR-10 photographs, and the human labels collected for them (CIFAR-10N and CIFAR-10H)."""

import functools
import lzma
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from ml.datasets.base import ClassInfo, ImageDataset, datasets_folder
from ml.images.preprocess import Pixels, Preprocessing, fit_normalisation
from ml.util.arrays import IntArray
from ml.util.splits import split_partitions

_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES = tuple(ClassInfo(name, name.capitalize(), str(number)) for number, name in enumerate(_NAMES))
PARTS = ("train_1", "train_2", "train_3", "train_4", "train_5", "test")
#: Photographs in each part.
PART_SIZE = 10_000


@functools.lru_cache(maxsize=len(PARTS))
def _part(folder: Path, part: str) -> Pixels:
    """Photographs (10000, 32, 32, 3) of a part."""
    with lzma.open(folder / f"images_{part}.npy.xz") as stream:
        pixels = np.asarray(np.lib.format.read_array(stream, allow_pickle=False), dtype=np.uint8)
    pixels.flags.writeable = False
    return pixels


def load_photographs(numbers: IntArray) -> tuple[Pixels, IntArray]:
    """Photographs (60000, 32, 32, 3) and classes; unused parts are black."""
    folder = datasets_folder("cifar10", "www.cs.toronto.edu/~kriz/cifar.html")
    table: pa.Table = csv.read_csv(folder / "labels.csv.gz")
    classes = np.asarray(table.column("label").to_numpy(), dtype=np.int64)
    photographs = np.zeros((len(classes), 32, 32, 3), dtype=np.uint8)
    for part in np.unique(numbers // PART_SIZE):
        photographs[part * PART_SIZE : (part + 1) * PART_SIZE] = _part(folder, PARTS[part])
    return photographs, classes


def load_cifar10h(train_labels: int = 3, seed: int = 0, cases: int | None = None) -> ImageDataset:
    """Train on CIFAR-10N labels, test on CIFAR-10H labels."""
    # Validation photographs have three labels, without which no concentration is learned.
    if train_labels not in {1, 3}:
        raise ValueError(f"train_labels must be 1 or 3, got {train_labels}")
    folder = datasets_folder("cifar10", "www.cs.toronto.edu/~kriz/cifar.html")
    noisy = datasets_folder("cifar10n", "github.com/UCSC-REAL/cifar-10-100n") / "cifar10n_labels.npz"
    human = datasets_folder("cifar10h", "github.com/jcpeterson/cifar-10h") / "cifar10h_counts.npz"
    read = PARTS if cases is None else (PARTS[0], PARTS[-1])
    pixels = np.concatenate([_part(folder, part) for part in read])
    n_train = len(pixels) - PART_SIZE
    with np.load(noisy, allow_pickle=False) as data:
        labels = data["labels"][:n_train].astype(np.int64)
    with np.load(human, allow_pickle=False) as data:
        test_counts = data["counts"].astype(np.int64)
    names = [f"cifar10-{row:05d}" for row in range(n_train)]
    names += [f"cifar10-{row:05d}" for row in range(50_000, 60_000)]
    part = split_partitions(names[:n_train], {"train": 0.85, "valid": 0.15}, seed)
    one_hot = np.eye(len(CLASSES), dtype=np.int64)
    counts = one_hot[labels].sum(axis=1)
    if train_labels == 1:
        counts[part == "train"] = one_hot[labels[part == "train", 0]]
    partition = np.concatenate([part, np.full(PART_SIZE, "test", dtype="U12")])
    mean, std = fit_normalisation(pixels[partition == "train"])
    dataset = ImageDataset(
        name="cifar10h",
        classes=CLASSES,
        pixels=pixels,
        label_counts=np.concatenate([counts, test_counts]),
        partition=partition,
        case_ids=names,
        patients=None,
        preprocessing=Preprocessing(3, None, 32, mean, std),
        orientation="upright",
        source=f"CIFAR-10 with {train_labels} label(s) of CIFAR-10N a training photograph and CIFAR-10H for the test",
        licence="CC BY-NC 4.0 (CIFAR-10N), CC BY-NC-SA 4.0 (CIFAR-10H), free for research (CIFAR-10)",
    )
    return dataset if cases is None else dataset.thinned(cases)
