"""What a release was trained on: known by its pixels whatever the file, by its patients without their names."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ml.images.preprocess import decode_image, pixel_digest
from ml.release.artifact import ReleaseError, read_release
from ml.release.training_index import INDEX_FILE, TrainingIndex, as_digests, parse_patient_hmac
from ml.util.files import file_sha256, read_json, write_json
from tests.support.images import encode, exif_rotated, photo


def digest_of(data: bytes) -> bytes:
    return pixel_digest(decode_image(data))


@pytest.mark.parametrize(
    "picture",
    [
        encode(photo(1)),
        encode(photo(2), "JPEG", quality=80),
        encode(photo(3)[..., 0]),
        exif_rotated(),
        encode(Image.fromarray(photo(4)[:40])),
    ],
    ids=["PNG", "JPEG", "grey", "turned by EXIF", "not square"],
)
def test_another_lossless_container_hides_nothing(picture: bytes) -> None:
    pixels = np.asarray(decode_image(picture))
    again = [
        encode(pixels),
        encode(pixels, compress_level=0),
        encode(pixels, "TIFF"),
        encode(pixels, "PNG", dpi=(72, 72)),
    ]
    again += [encode(pixels, "TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "packbits")]
    again += [encode(Image.fromarray(pixels).convert(mode)) for mode in ("RGB", "RGBA")]
    assert len(set(again)) > 5
    assert {digest_of(data) for data in again} == {digest_of(picture)}


def test_one_pixel_or_another_shape_is_another_picture() -> None:
    pixels = photo(0, 12)
    other = pixels.copy()
    other[3, 4, 1] ^= 1
    pictures = [pixels, other, pixels.reshape(6, 24, 3), pixels.swapaxes(0, 1), pixels[::-1], pixels[..., ::-1]]
    pictures += [pixels[..., 0], pixels[..., 0].reshape(6, 24), np.repeat(pixels[..., 1:2], 3, axis=2)]
    assert len({pixel_digest(np.ascontiguousarray(picture)) for picture in pictures}) == len(pictures)
    assert pixel_digest(pixels[..., :1]) == pixel_digest(pixels[..., 0]) == pixel_digest(pixels[..., [0, 0, 0]])


def name(number: int) -> bytes:
    """Digest of a number; some end or begin with zero bytes, as one in 256 does."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return {0: digest[:-1] + b"\0", 1: b"\0" + digest[1:], 2: digest[:-2] + b"\0\0"}.get(number % 5, digest)


def index_of(uses: dict[int, str], patients: dict[int, int] | None = None) -> TrainingIndex:
    hmacs = None if patients is None else [f"key:{name(1000 + patients[number]).hex()}" for number in uses]
    return TrainingIndex.of([name(number) for number in uses], list(uses.values()), hmacs)


_USES = st.dictionaries(st.integers(0, 60), st.sampled_from(["network", "calibration", ""]), max_size=40)


@settings(deadline=None, max_examples=60)
@given(_USES, st.lists(st.integers(0, 60), max_size=30), st.data())
def test_looking_up_is_membership(
    tmp_path_factory: pytest.TempPathFactory, uses: dict[int, str], wanted: list[int], data: st.DataObject
) -> None:
    patients = {number: number % 7 for number in range(61)} if data.draw(st.booleans()) else None
    index = index_of(uses, patients)
    path = tmp_path_factory.mktemp("index") / INDEX_FILE
    path.write_bytes(index.to_bytes())
    read = TrainingIndex.read(path)
    asked = as_digests(name(1000 + number % 7) for number in wanted) if patients else None
    found = read.uses(as_digests(name(number) for number in wanted), asked).tolist()
    for number, use in zip(wanted, found, strict=True):
        own = {uses.get(number, "")}
        if patients:
            own |= {other for case, other in uses.items() if case % 7 == number % 7}
        assert use == next((kind for kind in ("network", "calibration") if kind in own), "")
    assert read.to_bytes() == index.to_bytes()
    turned = dict(reversed(uses.items()))
    assert index_of(turned, patients).to_bytes() == index.to_bytes()
    used = [number for number, use in uses.items() if use]
    assert index.document()["n_images"] == len(used)
    assert index.document()["n_patients"] == (len({number % 7 for number in used}) if patients and used else None)


def test_an_image_without_a_digest_is_not_looked_up() -> None:
    index = TrainingIndex.of([bytes(32)], ["network"], None)
    assert index.uses(as_digests([bytes(32)])).tolist() == [""]


@pytest.mark.parametrize(
    "harm",
    [
        lambda data: data[:-1],
        lambda data: data + bytes(32),
        lambda data: b"S" + data[1:],
        lambda data: data[:28] + b"{}" + data[28:],
        lambda data: data[:-64] + data[-32:] + data[-64:-32],
        lambda data: data.replace(b'"network": 2', b'"network": -2'),
        lambda data: b"",
    ],
)
def test_a_harmed_index_is_refused(harm: Any, tmp_path: Path) -> None:
    data = index_of(
        {1: "network", 2: "network", 3: "calibration", 4: "calibration"}, {n: n for n in range(5)}
    ).to_bytes()
    (tmp_path / INDEX_FILE).write_bytes(data)
    TrainingIndex.read(tmp_path / INDEX_FILE)
    (tmp_path / INDEX_FILE).write_bytes(harm(data))
    with pytest.raises(ValueError, match=INDEX_FILE):
        TrainingIndex.read(tmp_path / INDEX_FILE)


@pytest.mark.parametrize("text", ["", "abc", ":" + "0" * 64, "key:zz", "key:" + "0" * 62])
def test_a_malformed_digest_of_a_patient_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="digest of a patient"):
        parse_patient_hmac(text)


def test_a_release_says_what_is_in_its_index(tiny_release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(tiny_release, copy)
    release = read_release(copy)
    if release.training is None:
        assert "training" not in release.card
        (copy / INDEX_FILE).write_bytes(index_of({1: "network"}).to_bytes())
    card = read_json(copy / "card.json")
    card["files"][INDEX_FILE] = file_sha256(copy / INDEX_FILE)
    card["training"] = {"n_images": 10_000, "n_patients": None}
    write_json(copy / "card.json", card)
    with pytest.raises(ReleaseError, match=INDEX_FILE):
        read_release(copy)


@pytest.mark.slow
def test_a_trained_release_knows_its_cells_and_says_how_many(small_release: Path) -> None:
    from ml.datasets.cells import load_cells

    release, cells = read_release(small_release), load_cells(300, seed=0)
    assert release.training is not None
    assert cells.pixel_digests is not None
    uses = release.training.uses(as_digests(cells.pixel_digests))
    expected = {"train": "network", "valid": "network", "calibration": "calibration", "test": ""}
    assert uses.tolist() == [expected[part] for part in cells.partition.tolist()]
    text = (small_release / "README.md").read_text()
    assert f"{(uses != '').sum():,} images" in text
    assert json.loads((small_release / "card.json").read_text())["training"]["n_images"] == (uses != "").sum()
