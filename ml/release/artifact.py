"""Release folder of network, calibration and card, with digests verified at each load.

::

    RELEASE/network.onnx       input image (N, C, H, W), outputs logits (N, K) and features (N, D)
    RELEASE/calibration.json   parameters in float64
    RELEASE/card.json          classes, preprocessing, data, metrics, limits of use, sha256 of the other files
    RELEASE/README.md          the card for people
    RELEASE/fused.onnx         optional: one graph to the final probabilities, for other runtimes
    RELEASE/head.safetensors   optional: the layers after the backbone with S dropout masks, for Monte-Carlo
                               dropout; features are then tapped before the first dropout
    RELEASE/feature_distance.safetensors
                               optional: how far an image lies from the training cells, to notice drift
    RELEASE/familiarity.safetensors
                               optional: the checks of pixels and features that flag an image as unlike those that it
                               was made from; a release without it flags by the distance alone
    RELEASE/training.index     optional: digests of the images that it was made with, and of their patients, so that
                               whatever judges it leaves them out

Identical inputs give identical bytes: no date, no machine, no chance enters a release.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from ml.calibration.calibrators import Calibration
from ml.images.preprocess import Preprocessing
from ml.release.card import Card, CardContents
from ml.release.dropout_head import DropoutHead
from ml.release.ood_detector import FeatureDistance, OodDetector
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.util.files import file_sha256, read_json, write_bytes_atomically, write_json

T = TypeVar("T")

CARD_VERSION = 1
MAX_FILE_BYTES = 500_000_000
_REQUIRED = ("network.onnx", "calibration.json", "README.md")
HEAD_FILE = "head.safetensors"
DISTANCE_FILE = "feature_distance.safetensors"
FAMILIARITY_FILE = "familiarity.safetensors"
#: Files that belong to the network: a release with another calibration of it keeps them.
KEPT_FILES = (HEAD_FILE, DISTANCE_FILE, FAMILIARITY_FILE)
_ALLOWED = {*_REQUIRED, "fused.onnx", *KEPT_FILES, INDEX_FILE}


class ReleaseError(ValueError):
    """A release folder that must not be used; the message names file and reason."""


@dataclass(frozen=True)
class Release:
    """A verified release.

    Attributes:
        path: its folder.
        card: the whole card.
        card_sha256: digest of card.json, which pins every other file.
        classes: class codes in the order of the logits.
        preprocessing: what raw images go through.
        calibration: what the network's outputs go through.
        head: dropout head between network and calibration, or None.
        distance: how far features lie from the training cells, or None.
        training: what it was made with, mapped from its file; None if that is unknown.
        detector: flags images unlike those that it was made from, by its checks or else by the distance, or None.
    """

    path: Path
    card: Card
    card_sha256: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    calibration: Calibration
    head: DropoutHead | None = None
    distance: FeatureDistance | None = None
    training: TrainingIndex | None = None
    detector: OodDetector | None = None

    @property
    def network(self) -> Path:
        """Path of the verified network file."""
        return self.path / "network.onnx"

    @property
    def network_sha256(self) -> str:
        """Digest of the network file: releases of one network share what it makes of an image."""
        return str(self.card["files"]["network.onnx"])


def require_empty(path: Path) -> None:
    """Refuse a folder in which something lies.

    Raises:
        ReleaseError: something does.
    """
    if path.exists() and any(path.iterdir()):
        raise ReleaseError(f"{path}: the folder is not empty; choose another --out")


def write_release(
    path: Path, files: dict[str, bytes], calibration: Calibration, card: CardContents, readme: str
) -> Release:
    """Write a release folder, card last, and read it back verified.

    Args:
        path: folder to make; must not hold another release.
        files: ``network.onnx`` and optional further files by name.
        calibration: parameters.
        card: everything but ``version`` and ``files``, which are added.
        readme: the card for people.

    Raises:
        ReleaseError: the folder is not empty.
    """
    require_empty(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_bytes_atomically(path / name, data)
    write_json(path / "calibration.json", calibration.to_dict())
    write_bytes_atomically(path / "README.md", readme.encode())
    names = sorted({*files, "calibration.json", "README.md"})
    hashes = {name: file_sha256(path / name) for name in names}
    complete: Card = {**card, "version": CARD_VERSION, "files": hashes}
    write_json(path / "card.json", complete)
    return read_release(path)


def read_release(path: Path) -> Release:
    """Read a release folder and verify every file against the card.

    Raises:
        ReleaseError: a file is missing, unlisted, altered, a link or too large, or the card is not readable.
    """
    card_path = path / "card.json"
    if not card_path.is_file() or card_path.is_symlink():
        raise ReleaseError(f"{path}: not a release (no card.json)")
    try:
        card = cast(Card, read_json(card_path))  # a key that is missing is an error where it is read
        _verify_files(path, card)
        classes = tuple(str(info["code"]) for info in card["classes"])
        if len(set(classes)) != len(classes) or len(classes) < 2:
            raise ReleaseError(f"{path}: card.json must name at least two different classes")
        preprocessing = Preprocessing.from_dict(card["preprocessing"])
        calibration = Calibration.from_dict(read_json(path / "calibration.json"))
        head = _part(path, card, HEAD_FILE, DropoutHead.from_bytes)
        distance = _part(path, card, DISTANCE_FILE, FeatureDistance.from_bytes)
        detector = _part(path, card, FAMILIARITY_FILE, OodDetector.from_bytes)
        if detector is None and distance is not None:
            detector = distance.as_detector(len(classes))
        training = TrainingIndex.read(path / INDEX_FILE) if INDEX_FILE in card["files"] else None
        if card.get("training") != (None if training is None else training.document()):
            raise ReleaseError(f"{path}: card.json does not say of {INDEX_FILE} what is in it")
    except ReleaseError:
        raise
    except (ValueError, KeyError, TypeError) as exc:
        raise ReleaseError(f"{path}: the release cannot be read: {exc}") from exc
    return Release(
        path=path,
        card=card,
        card_sha256=file_sha256(card_path),
        classes=classes,
        preprocessing=preprocessing,
        calibration=calibration,
        head=head,
        distance=distance,
        training=training,
        detector=detector,
    )


def _part(path: Path, card: Card, name: str, read: Callable[[bytes], T]) -> T | None:
    """An optional file of a release, None if it has none."""
    return read((path / name).read_bytes()) if name in card["files"] else None


def _verify_files(path: Path, card: Card) -> None:
    if card["version"] != CARD_VERSION:
        raise ReleaseError(f"{path}: card version {card['version']} is not {CARD_VERSION}, which this code reads")
    listed = card["files"]
    unknown = sorted(set(listed) - _ALLOWED)
    missing = sorted(set(_REQUIRED) - set(listed))
    stray = sorted({entry.name for entry in path.iterdir()} - set(listed) - {"card.json"})
    for names, problem in ((unknown, "a file that no release has"), (missing, "is not listed in the card")):
        if names:
            raise ReleaseError(f"{path}: {names[0]}: {problem}")
    if stray:
        raise ReleaseError(f"{path}: {stray[0]}: not listed in the card")
    for name, digest in sorted(listed.items()):
        file = path / name
        if file.is_symlink() or not file.is_file():
            raise ReleaseError(f"{file}: missing, or not a plain file")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ReleaseError(f"{file}: larger than {MAX_FILE_BYTES:,} bytes")
        if file_sha256(file) != digest:
            raise ReleaseError(f"{file}: does not match its sha256 in card.json; the file was changed")


def copy_release(release: Release, target: Path) -> Release:
    """Copy a verified release to another folder and verify the copy."""
    shutil.copytree(release.path, target)
    return read_release(target)
