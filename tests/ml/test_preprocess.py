"""Decoding and preprocessing: every file is read rightly or refused clearly."""

import contextlib
import gzip
import itertools
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ml.images.preprocess import ImageRejectedError, Preprocessing, decode_image, encode_png
from tests.support.images import CORPUS, encode, photo

RGB48 = Preprocessing(3, 240, 48, (0.5, 0.4, 0.6), (0.2, 0.25, 0.3))


@pytest.mark.parametrize("name", CORPUS)
def test_corpus(name: str) -> None:
    data, reason = CORPUS[name]
    if reason is not None:
        with pytest.raises(ImageRejectedError) as caught:
            decode_image(data)
        assert caught.value.reason == reason
        return
    image = decode_image(data)
    assert image.mode in {"L", "RGB"}
    assert not image.info
    stored = decode_image(encode_png(image))
    np.testing.assert_array_equal(np.asarray(stored), np.asarray(image))


def flat(height: int, width: int) -> npt.NDArray[np.uint8]:
    """A drawing: areas of one colour, with edges between them."""
    pixels = np.full((height, width, 3), 240, dtype=np.uint8)
    pixels[height // 3 :, : width // 2] = (20, 90, 200)
    pixels[:, width // 2] = 0
    return pixels


@pytest.mark.parametrize("size", [(8, 8), (9, 1000), (363, 360)])
@pytest.mark.parametrize("kind", ["noise", "drawing", "one colour"])
def test_a_stored_png_has_the_pixels_and_nothing_else(kind: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    made = {
        "noise": rng.integers(0, 256, (*size, 3), dtype=np.uint8),
        "drawing": flat(*size),
        "one colour": np.full((*size, 3), 7, dtype=np.uint8),
    }
    for pixels in (made[kind], made[kind][..., 0]):
        stored = encode_png(Image.fromarray(pixels))
        np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(stored))), pixels)
        chunks, at = [], 8
        while at < len(stored):
            chunks.append(stored[at + 4 : at + 8])
            at += 12 + int.from_bytes(stored[at : at + 4])
        assert set(chunks) == {b"IHDR", b"IDAT", b"IEND"}
        # nor is it larger than the pixels by more than what frames them
        assert len(stored) < pixels.nbytes * 1.02 + 500


def test_sixteen_bits_and_eight_give_the_same_pixels() -> None:
    grey = photo()[..., 0]
    np.testing.assert_array_equal(np.asarray(decode_image(CORPUS["16-bit grey"][0])), grey)


def test_a_dark_sixteen_bit_picture_stays_dark() -> None:
    grey = np.full((16, 16), 100, dtype=np.uint16)
    assert np.asarray(decode_image(encode(grey))).max() == 0


def test_exif_rotation_is_applied() -> None:
    upright = np.asarray(Image.open(BytesIO(encode(photo(1), "JPEG", quality=95))))
    np.testing.assert_array_equal(np.asarray(decode_image(CORPUS["EXIF-rotated"][0])), np.rot90(upright, -1))


def test_transparency_is_laid_on_white() -> None:
    rgba = np.zeros((16, 16, 4), dtype=np.uint8)
    assert (np.asarray(decode_image(encode(rgba))) == 255).all()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["plain PNG", "plain JPEG", "plain TIFF", "palette with alpha", "CMYK"]))
def test_damaged_files_are_read_or_refused(seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    data = bytearray(CORPUS[name][0])
    for place in rng.integers(0, len(data), rng.integers(1, 12)):
        data[place] = rng.integers(0, 256)
    with contextlib.suppress(ImageRejectedError):
        assert decode_image(bytes(data)).mode in {"L", "RGB"}


def test_crop_and_averaging_by_hand() -> None:
    pixels = photo(3, 300)
    expected = pixels[30:270, 30:270].reshape(48, 5, 48, 5, 3).mean(axis=(1, 3))
    found = RGB48.pixels(Image.fromarray(pixels)).astype(float)
    assert np.abs(found - expected).max() <= 0.51


@pytest.mark.parametrize("factor", [1, 2, 5, 16, 17, 90])
@pytest.mark.parametrize("channels", [1, 3])
def test_averages_are_of_whole_numbers_and_round_half_up(factor: int, channels: int) -> None:
    side = 3 * factor
    preprocessing = Preprocessing(channels, None, 3, (0.5,) * channels, (0.25,) * channels)
    rng = np.random.default_rng(factor)
    for pixels in (
        rng.integers(0, 256, (side, side, 3), dtype=np.uint8),
        rng.choice([254, 255], (side, side, 3)).astype(np.uint8),  # the largest sums
        rng.integers(0, 2, (side, side, 3), dtype=np.uint8),  # many halves
    ):
        seen = pixels if channels == 3 else pixels[..., :1]
        image = Image.fromarray(seen if channels == 3 else seen[..., 0])
        for row, column, channel in itertools.product(range(3), range(3), range(channels)):
            there = (slice(row * factor, (row + 1) * factor), slice(column * factor, (column + 1) * factor), channel)
            total = sum(seen[there].ravel().tolist())
            mean = (2 * total + factor**2) // (2 * factor**2)  # half up
            assert preprocessing.pixels(image)[row, column, channel] == mean


def test_an_image_that_is_cropped_already_is_kept() -> None:
    pixels = photo(4, 48)
    np.testing.assert_array_equal(RGB48.pixels(Image.fromarray(pixels)), pixels)


def test_normalisation_by_hand_and_grey_to_colour() -> None:
    pixels = photo(5, 48)
    expected = (np.moveaxis(pixels, -1, 0) / 255 - np.array(RGB48.mean)[:, None, None]) / np.array(RGB48.std)[
        :, None, None
    ]
    np.testing.assert_allclose(RGB48(Image.fromarray(pixels)), expected, atol=2e-6)
    grey = RGB48.pixels(Image.fromarray(pixels[..., 0]))
    np.testing.assert_array_equal(grey[..., 0], grey[..., 2])


def test_preprocessing_survives_json_and_refuses_another_version() -> None:
    assert Preprocessing.from_dict(RGB48.to_dict()) == RGB48
    with pytest.raises(ValueError, match="version 2"):
        Preprocessing.from_dict(RGB48.to_dict() | {"version": 2})
    with pytest.raises(ValueError, match="channels, crop, size missing"):
        Preprocessing.from_dict({"mean": [0], "std": [1]})


def test_a_raw_upload_is_handled_like_the_training_images(datasets: Path) -> None:
    """The training images are 5 x 5 means of the central 240 px of the originals, saved as JPEG again."""
    folder = datasets / "pbc_wbcatt"
    rows = gzip.decompress((folder / "pbc_labels.csv.gz").read_bytes()).decode().splitlines()[1:]
    number = {row.split(",")[1]: row.split(",")[0] for row in rows}
    gaps = []
    with (
        zipfile.ZipFile(folder / "originals_test_304.zip") as raw,
        zipfile.ZipFile(folder / "pbc_images_48.zip") as small,
    ):
        for name in [n for n in raw.namelist() if n.endswith(".jpg")][:40]:
            upload = RGB48.pixels(decode_image(raw.read(name)))
            upload = np.asarray(decode_image(encode(upload, "JPEG", quality=95, subsampling=0))).astype(float)
            trained = RGB48.pixels(decode_image(small.read(f"{int(number[Path(name).name]):05d}.jpg"))).astype(float)
            gaps.append(np.abs(upload - trained).mean())
    assert max(gaps) == 0
