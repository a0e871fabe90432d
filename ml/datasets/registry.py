"""Registry of data sets by their command-line names."""

from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path

from ml.datasets.base import ImageDataset
from ml.images.pixel_cache import Observer, ignore_progress

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


def load_dataset(data: str, options: dict[str, int], observer: Observer = ignore_progress) -> ImageDataset:
    """Load a data set by name, or a folder by path."""
    if data not in _LOADERS and not Path(data).is_dir():
        raise ValueError(f"{data!r} is neither a folder nor one of the data sets {', '.join(DATASET_NAMES)}")
    module, function = _LOADERS.get(data, ("folder", "load_folder"))
    load = getattr(import_module(f"ml.datasets.{module}"), function)
    if data not in _LOADERS:
        load = partial(load, Path(data), observer=observer)
    try:
        signature(load).bind(**options)
    except TypeError as exc:
        raise ValueError(f"data set {data!r} does not take these options: {', '.join(options)} ({exc})") from exc
    dataset: ImageDataset = load(**options)
    return dataset
