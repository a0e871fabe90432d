"""Release folder of network, calibration and card, verified at each load.

network.onnx: image (N, C, H, W) to logits (N, K) and features (N, D); a release
that was adopted from a table of outputs has none and reads no images.
fused.onnx: one graph to the final probabilities. head.safetensors: layers after
the backbone with S dropout masks. training.index: digests of training images.
Identical inputs give identical bytes.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from ml.calibration.calibrators import Calibration
from ml.images.preprocess import Preprocessing
from ml.release.card import Card, CardContents, has_measured_metrics, measured_reference, readme_text
from ml.release.dropout_head import DropoutHead
from ml.release.ood_detector import FeatureDistance, OodDetector
from ml.release.training_index import INDEX_FILE, TrainingIndex
from ml.util.files import file_sha256, read_json, write_bytes_atomically, write_json

T = TypeVar("T")

CARD_VERSION = 1
MAX_FILE_BYTES = 500_000_000
#: Of the card and of what people read.
MAX_TEXT_BYTES = 4_000_000
_NETWORK = "network.onnx"
_REQUIRED = ("calibration.json", "README.md")
HEAD_FILE = "head.safetensors"
DISTANCE_FILE = "feature_distance.safetensors"
FAMILIARITY_FILE = "familiarity.safetensors"
#: Files of the network, which a recalibrated release keeps.
KEPT_FILES = (HEAD_FILE, DISTANCE_FILE, FAMILIARITY_FILE)
_ALLOWED = {*_REQUIRED, _NETWORK, "fused.onnx", *KEPT_FILES, INDEX_FILE}


class ReleaseError(ValueError):
    """A release folder that must not be used; the message names file and reason."""


@dataclass(frozen=True)
class Release:
    """A verified release; optional parts that it does not have are None."""

    path: Path
    card: Card
    # of card.json, which pins every other file
    card_sha256: str
    # codes in the order of the logits
    classes: tuple[str, ...]
    calibration: Calibration
    head: DropoutHead | None = None
    distance: FeatureDistance | None = None
    training: TrainingIndex | None = None
    detector: OodDetector | None = None
    # None if it has no network
    image_steps: Preprocessing | None = None

    @property
    def preprocessing(self) -> Preprocessing:
        """Steps before the network; an error if there is none."""
        self._require_network()
        return cast(Preprocessing, self.image_steps)

    def _require_network(self) -> None:
        if self.image_steps is None:
            raise ReleaseError(
                f"{self.path}: this release was adopted from a table and has no network; run your model and "
                "`secondread score RELEASE --logits TABLE`, or adopt the model itself (ONNX or module.py:factory)"
            )

    @property
    def network(self) -> Path:
        """Path of the verified network file."""
        self._require_network()
        return self.path / _NETWORK

    @property
    def network_sha256(self) -> str:
        """Digest of the network file, shared by recalibrated releases."""
        self._require_network()
        return str(self.card["files"][_NETWORK])

    def by_members(self, logits: npt.ArrayLike, features: npt.ArrayLike) -> tuple[npt.ArrayLike, npt.ArrayLike]:
        """Logits and features, (S, N, …) of a dropout ensemble or (N, …)."""
        return (logits, features) if self.head is None else self.head(np.asarray(features, dtype=np.float32))


def has_ood_check(card: Card) -> bool:
    """Whether the release of a card flags unlike images."""
    return not {FAMILIARITY_FILE, DISTANCE_FILE}.isdisjoint(card["files"])


def has_constant_concentration(card: CardContents, calibration: Calibration) -> bool:
    """Whether disagreement ranks cells as the class probabilities do; members of an ensemble differ in these."""
    return calibration.has_constant_concentration and card.get("mc_dropout") is None


def require_empty(path: Path) -> None:
    """Refuse a folder in which something lies."""
    if path.exists() and any(path.iterdir()):
        raise ReleaseError(f"{path}: the folder is not empty; choose another --out")


def write_release(
    path: Path, files: Mapping[str, bytes], calibration: Calibration, card: CardContents, readme: str | None = None
) -> Release:
    """Write a release into an empty folder, card last, and read it back."""
    require_empty(path)
    path.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        write_bytes_atomically(path / name, data)
    write_json(path / "calibration.json", calibration.to_dict())
    hashes = {name: file_sha256(path / name) for name in (*files, "calibration.json")}
    complete: Card = {**card, "version": CARD_VERSION, "files": hashes}
    complete.pop("constant_concentration", None)  # of the parent
    if has_constant_concentration(card, calibration):
        complete["constant_concentration"] = True
    write_bytes_atomically(path / "README.md", (readme_text(complete) if readme is None else readme).encode())
    hashes["README.md"] = file_sha256(path / "README.md")
    write_json(path / "card.json", complete)
    return read_release(path)


def write_recalibrated(
    path: Path, parent: Release, calibration: Calibration, card: CardContents, files: Mapping[str, bytes] | None = None
) -> Release:
    """Write the parent's network and checks with another calibration."""
    kept = (_NETWORK, *KEPT_FILES, INDEX_FILE)
    of_parent = {name: (parent.path / name).read_bytes() for name in kept if name in parent.card["files"]}
    # recall, baseline and shifts are of the parent as it was trained; held-out metrics were measured on its network
    contents: CardContents = {**card, "recall": [], "baseline": None, "shifts": []}
    contents["measured_network_sha256"] = parent.network_sha256
    reference = measured_reference(parent.card)
    if reference is not None:
        contents["reference"] = reference
    if not has_measured_metrics(parent.card):
        contents["parity"] = None
    return write_release(path, of_parent | dict(files or {}), calibration, contents)


def read_release(path: Path) -> Release:
    """Read a release folder and verify every file against the card."""
    card_path = path / "card.json"
    if not card_path.is_file() or card_path.is_symlink():
        raise ReleaseError(f"{path}: not a release (no card.json)")
    try:
        _require_size(card_path, MAX_TEXT_BYTES)
        card = cast(Card, read_json(card_path))  # missing keys fail when read
        _verify_files(path, card)
        classes = tuple(str(info["code"]) for info in card["classes"])
        if len(set(classes)) != len(classes) or len(classes) < 2:
            raise ReleaseError(f"{path}: card.json must name at least two different classes")
        seen = card["preprocessing"]
        image_steps = None if seen is None else Preprocessing.from_dict(seen)
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
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ReleaseError(f"{path}: the release cannot be read: {exc}") from exc
    return Release(
        path=path,
        card=card,
        card_sha256=file_sha256(card_path),
        classes=classes,
        calibration=calibration,
        head=head,
        distance=distance,
        training=training,
        detector=detector,
        image_steps=image_steps,
    )


def _part(path: Path, card: Card, name: str, read: Callable[[bytes], T]) -> T | None:
    """An optional file, None if missing."""
    return read((path / name).read_bytes()) if name in card["files"] else None


def _require_size(file: Path, most: int) -> None:
    if file.stat().st_size > most:
        raise ReleaseError(f"{file}: larger than {most:,} bytes")


def _verify_files(path: Path, card: Card) -> None:
    if card["version"] != CARD_VERSION:
        raise ReleaseError(f"{path}: card version {card['version']} is not {CARD_VERSION}, which this code reads")
    listed = card["files"]
    unknown = sorted(set(listed) - _ALLOWED)
    needed = {*_REQUIRED, *([] if card["preprocessing"] is None else [_NETWORK])}
    missing = sorted(needed - set(listed))
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
        _require_size(file, MAX_TEXT_BYTES if file.suffix == ".md" else MAX_FILE_BYTES)
        if file_sha256(file) != digest:
            raise ReleaseError(f"{file}: does not match its sha256 in card.json; the file was changed")


def copy_release(release: Release, target: Path) -> Release:
    """Copy a verified release to another folder and verify the copy."""
    shutil.copytree(release.path, target)
    return read_release(target)
