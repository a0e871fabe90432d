"""Registry of data sets by their command-line names."""

from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path

from ml.datasets.base import ImageDataset
from ml.images.pixel_cache import Observer, ignore_progress

DATASET_NAMES = ("cells", "mix_mnist", "mix_cifar10", "cifar10h", "pbc", "pbc_nucleus")


def load_dataset(data: str, options: dict[str, int], observer: Observer = ignore_progress) -> ImageDataset:
    """Load a data set by name, or a folder by path.

    Args:
        data: one of ``DATASET_NAMES``, or a folder.
        options: further arguments of the loader.
        observer: called with images of a folder that are decoded and in all, where any have to be.

    Raises:
        ValueError: neither a data set nor a folder, or an option that this data set does not take.
    """
    from ml.datasets import blends, cells, cifar, folder, pbc

    loaders: dict[str, Callable[..., ImageDataset]] = {
        "cells": cells.load_cells,
        "mix_mnist": blends.load_mix_mnist,
        "mix_cifar10": blends.load_mix_cifar10,
        "cifar10h": cifar.load_cifar10h,
        "pbc": pbc.load_pbc,
        "pbc_nucleus": pbc.load_pbc_nucleus,
    }
    if data not in loaders and not Path(data).is_dir():
        raise ValueError(f"{data!r} is neither a folder nor one of the data sets {', '.join(DATASET_NAMES)}")
    load = loaders[data] if data in loaders else partial(folder.load_folder, Path(data), observer=observer)
    try:
        signature(load).bind(**options)
    except TypeError as exc:
        raise ValueError(f"data set {data!r} does not take these options: {', '.join(options)} ({exc})") from exc
    return load(**options)
