"""Digests of a release's training images and patients.

``training.index`` is a line of text, a line of JSON with sizes, and four blocks
of sorted digests of 32 bytes, searched on the disk. Images have the digest of
their decoded pixels, patients an HMAC by a key of the exporting service.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from ml.images.preprocess import DIGEST_BYTES

INDEX_FILE = "training.index"
#: Use of an image: it fitted or stopped the network, or only calibrated it.
Use = Literal["network", "calibration"]
USES: tuple[Use, ...] = ("network", "calibration")
Digests = npt.NDArray[np.bytes_]

_MAGIC = b"secondread training index 1\n"
_TYPE = f"S{DIGEST_BYTES}"
_LONGEST_HEADER = 1 << 16
_NONE = np.empty(0, dtype=_TYPE)


class TrainingDocument(TypedDict):
    """Card section on the index; unknown patients are null."""

    n_images: int
    n_patients: int | None
    patient_keys: NotRequired[list[str]]


class _Header(TypedDict):
    """Second line of the file: sizes of the blocks, and patient keys."""

    images: dict[str, int]
    patients: dict[str, int]
    patient_keys: list[str]


def as_digests(values: Iterable[bytes]) -> Digests:
    """Digests of 32 bytes each as an array that can be sorted and searched."""
    return np.frombuffer(b"".join(values), dtype=_TYPE)


def parse_patient_hmac(text: str) -> tuple[str, bytes]:
    """Key and digest of a ``patient_hmac``, ``key:hexadecimal``."""
    key, _, digest = text.partition(":")
    try:
        value = bytes.fromhex(digest)
    except ValueError:
        value = b""
    if not key or len(value) != DIGEST_BYTES:
        raise ValueError(f"{text!r} is not the digest of a patient (key:64 hexadecimal digits)")
    return key, value


@dataclass(frozen=True)
class TrainingIndex:
    """Sorted digests of training images and patients by use."""

    images: dict[Use, Digests]
    patients: dict[Use, Digests]
    # of the patients' HMACs; empty if no patient is known
    patient_keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, images: Sequence[bytes], uses: Sequence[str], patient_hmacs: Sequence[str] | None) -> "TrainingIndex":
        """Index of N cases; uses other than ``USES`` are left out."""
        parsed = [parse_patient_hmac(text) for text in patient_hmacs or ()]
        of_use = {use: [row for row, other in enumerate(uses) if other == use] for use in USES}
        used = {row for rows in of_use.values() for row in rows}
        return cls(
            {use: np.unique(as_digests(images[row] for row in rows)) for use, rows in of_use.items()},
            {use: np.unique(as_digests(parsed[row][1] for row in rows if parsed)) for use, rows in of_use.items()},
            tuple(sorted({parsed[row][0] for row in used if parsed})),
        )

    def document(self) -> TrainingDocument:
        """Return the card section."""
        n_images, n_patients = (len(np.unique(np.concatenate(list(part.values())))) for part in self._parts())
        if not self.patient_keys:
            return {"n_images": n_images, "n_patients": None}
        return {"n_images": n_images, "n_patients": n_patients, "patient_keys": list(self.patient_keys)}

    def uses(self, images: Digests, patients: Digests | None = None) -> npt.NDArray[np.str_]:
        """Use (N,) of each case, empty for none."""
        use_by_case = np.full(len(images), "", dtype="U11")
        for use in reversed(USES):  # whatever the network was fitted to, stays that
            was_used = _is_among(images, self.images[use])
            if patients is not None:
                was_used |= _is_among(patients, self.patients[use])
            use_by_case[was_used] = use
        return use_by_case

    def uses_of(self, images: Sequence[bytes], patient_hmacs: Sequence[str] | None) -> npt.NDArray[np.str_]:
        """Use (N,) of each case, by values of ``patient_hmac``."""
        patients = None
        if patient_hmacs is not None:
            parsed = [parse_patient_hmac(text) for text in patient_hmacs]
            patients = as_digests(digest if key in self.patient_keys else bytes(DIGEST_BYTES) for key, digest in parsed)
        return self.uses(as_digests(images), patients)

    def without_network(self) -> "TrainingIndex":
        """The same without what the network was fitted to."""
        kept: list[dict[Use, Digests]] = [{"network": _NONE, "calibration": p["calibration"]} for p in self._parts()]
        return TrainingIndex(kept[0], kept[1], self.patient_keys)

    def with_calibration(self, images: Sequence[bytes], patient_hmacs: Sequence[str] | None) -> "TrainingIndex":
        """Add cases of the calibration."""
        more = TrainingIndex.of(images, ["calibration"] * len(images), patient_hmacs)
        both = [
            {use: np.unique(np.concatenate([mine[use], new[use]])) for use in USES}
            for mine, new in zip(self._parts(), more._parts(), strict=True)
        ]
        return TrainingIndex(both[0], both[1], tuple(sorted({*self.patient_keys, *more.patient_keys})))

    def _parts(self) -> tuple[dict[Use, Digests], dict[Use, Digests]]:
        return self.images, self.patients

    def to_bytes(self) -> bytes:
        """The file; the same cases in any order give the same bytes."""
        images, patients = ({use: len(part[use]) for use in USES} for part in self._parts())
        header = {"images": images, "patients": patients, "patient_keys": list(self.patient_keys)}
        blocks = [part[use].tobytes() for part in self._parts() for use in USES]
        return b"".join([_MAGIC, json.dumps(header, sort_keys=True).encode(), b"\n", *blocks])

    @classmethod
    def read(cls, path: Path) -> "TrainingIndex":
        """Map a file that ``to_bytes`` wrote."""
        with path.open("rb") as stream:
            magic, line = stream.read(len(_MAGIC)), stream.readline(_LONGEST_HEADER)
            start = stream.tell()
        try:
            header: _Header = json.loads(line)
            sizes = [int(header[part][use]) for part in ("images", "patients") for use in USES]
            keys = tuple(str(key) for key in header["patient_keys"])
        except (ValueError, KeyError, TypeError) as exc:
            raise ValueError(f"{path.name}: not a training index") from exc
        total = sum(sizes)
        if magic != _MAGIC or min(sizes) < 0 or path.stat().st_size != start + total * DIGEST_BYTES:
            raise ValueError(f"{path.name}: not a training index, or cut short")
        every = np.memmap(path, dtype=_TYPE, mode="r", offset=start, shape=(total,)) if total else _NONE
        blocks = np.split(every, np.cumsum(sizes)[:-1])
        if not all((block[:-1] < block[1:]).all() for block in blocks):
            raise ValueError(f"{path.name}: its digests are not sorted")
        return cls(dict(zip(USES, blocks[:2], strict=True)), dict(zip(USES, blocks[2:], strict=True)), keys)


def _is_among(digests: Digests, ordered: Digests) -> npt.NDArray[np.bool_]:
    """Mask (N,) of digests among sorted ones; empty ones never match."""
    if not len(ordered):
        return np.zeros(len(digests), dtype=bool)
    order = np.argsort(digests)  # so that bisection walks through the file once
    place = np.empty(len(digests), dtype=np.intp)
    place[order] = np.minimum(np.searchsorted(ordered, digests[order]), len(ordered) - 1)
    return np.asarray((ordered[place] == digests) & (digests != b""))
