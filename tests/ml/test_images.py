"""Decoding and preprocessing: every file is read rightly or refused clearly, and decoded once."""

import contextlib
import gzip
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ml.datasets.folder import load_folder
from ml.images.pixel_cache import DecodedImages, PackStore, UnreadableImageError, decode_files
from ml.images.preprocess import ImageRejectedError, Preprocessing, decode_image, encode_png
from ml.tables.reading import TableError
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
        totals = seen.astype(np.int64).reshape(3, factor, 3, factor, channels).sum(axis=(1, 3))
        means = (2 * totals + factor**2) // (2 * factor**2)  # half up
        np.testing.assert_array_equal(preprocessing.pixels(image), means)


def test_an_image_that_is_cropped_already_is_kept() -> None:
    pixels = photo(4, 48)
    np.testing.assert_array_equal(RGB48.pixels(Image.fromarray(pixels)), pixels)


def test_normalisation_by_hand_and_grey_to_colour() -> None:
    pixels = photo(5, 48)
    mean, std = (np.array(values)[:, None, None] for values in (RGB48.mean, RGB48.std))
    expected = (np.moveaxis(pixels, -1, 0) / 255 - mean) / std
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


PLAIN = Preprocessing(3, None, 16, (0.5,) * 3, (0.25,) * 3)
COUNT = 40


class Counter:
    """How many images were decoded, in all calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _done: int, _total: int) -> None:
        self.calls += 1


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "images"
    folder.mkdir()
    paths = [folder / f"{number}.png" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(encode(photo(number)))
    return paths


@pytest.fixture
def store(tmp_path: Path) -> PackStore:
    return PackStore(tmp_path / "kept")


def _equal(found: DecodedImages, paths: list[Path], preprocessing: Preprocessing = PLAIN) -> bool:
    """Whether it is what a decoding of the files as they are now gives."""
    expected = decode_files(paths, preprocessing, None, threads=1)
    return np.array_equal(found.pixels, expected.pixels) and found.digests == expected.digests


def _packs(store: PackStore) -> list[Path]:
    return sorted(store.folder.glob("*.pack"))


@pytest.mark.parametrize(
    ("preprocessing", "decoder", "n_decoded"),
    [
        (PLAIN, None, 0),
        (Preprocessing(3, None, 16, (0.1,) * 3, (0.9,) * 3), None, 0),
        (Preprocessing(3, None, 12, (0.5,) * 3, (0.25,) * 3), None, COUNT),
        (Preprocessing(3, 20, 16, (0.5,) * 3, (0.25,) * 3), None, COUNT),
        (Preprocessing(1, None, 16, (0.5,), (0.25,)), None, COUNT),
        (PLAIN, "another version", COUNT),
    ],
)
def test_images_are_decoded_once_in_each_way(
    files: list[Path],
    store: PackStore,
    monkeypatch: pytest.MonkeyPatch,
    preprocessing: Preprocessing,
    decoder: str | None,
    n_decoded: int,
) -> None:
    """Their normalisation is another matter."""
    decode_files(files, PLAIN, store)
    if decoder is not None:
        monkeypatch.setattr("PIL.__version__", decoder)
    counter = Counter()
    for _ in range(2):
        assert _equal(decode_files(files, preprocessing, store, counter), files, preprocessing)
    assert counter.calls == n_decoded
    assert {path.suffix for path in store.folder.iterdir()} == {".pack", ""}


def test_a_file_that_changed_is_decoded_whatever_its_name_size_and_clock_say(
    files: list[Path], store: PackStore
) -> None:
    decode_files(files, PLAIN, store)
    before = files[3].stat()
    first, second = files[3].read_bytes(), files[4].read_bytes()
    size = 1 + max(len(first), len(second))  # what follows a PNG is not read
    files[3].write_bytes(first.ljust(size, b"\0"))
    os.utime(files[3], ns=(before.st_atime_ns, before.st_mtime_ns))
    decode_files(files, PLAIN, store)
    files[3].write_bytes(second.ljust(size, b"\0"))
    os.utime(files[3], ns=(before.st_atime_ns, before.st_mtime_ns))
    counter = Counter()
    found = decode_files(files, PLAIN, store, counter)
    assert counter.calls == 1
    assert _equal(found, files)
    np.testing.assert_array_equal(found.pixels[3], found.pixels[4])


def test_what_another_set_has_is_not_decoded_again(files: list[Path], store: PackStore) -> None:
    decode_files(files[:30], PLAIN, store)
    counter, mixed = Counter(), [*files[::-1], files[2], files[2]]
    assert _equal(decode_files(mixed, PLAIN, store, counter), mixed)
    assert counter.calls == COUNT - 30


def _flipped(at: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return flip


@pytest.mark.parametrize(
    "harm",
    [
        _flipped(-1),
        _flipped(4096),
        _flipped(20),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"{}".ljust(5000)),
    ],
)
def test_a_damaged_copy_is_made_again(harm: Callable[[Path], None], files: list[Path], store: PackStore) -> None:
    decode_files(files, PLAIN, store)
    (pack,) = _packs(store)
    harm(pack)
    counter = Counter()
    for _ in range(2):
        assert _equal(decode_files(files, PLAIN, store, counter), files)
        assert counter.calls == COUNT


def test_what_was_interrupted_leaves_nothing_that_is_read(files: list[Path], store: PackStore) -> None:
    def interrupt(done: int, _total: int) -> None:
        if done == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_files(files, PLAIN, store, interrupt)
    assert _packs(store) == []
    (store.folder / "of-a-killed-process.tmp").write_bytes(b"half")
    assert _equal(decode_files(files, PLAIN, store), files)
    assert list(store.folder.glob("*.tmp")) == []


def test_the_first_file_that_cannot_be_read_is_named_and_nothing_is_kept(files: list[Path], store: PackStore) -> None:
    files[7].write_bytes(b"no image")
    files[35].unlink()
    for threads in (1, 4):
        with pytest.raises(UnreadableImageError, match=r"35\.png"):  # missing files are seen before any is decoded
            decode_files(files, PLAIN, store, threads=threads)
        with pytest.raises(UnreadableImageError, match=r"7\.png: not a readable"):
            decode_files(files, PLAIN, None, threads=threads)
        with pytest.raises(UnreadableImageError, match=r"7\.png: not a readable"):
            decode_files(files[:30], PLAIN, store, threads=threads)
    assert _packs(store) == []


def test_trainings_that_begin_together_decode_once(files: list[Path], store: PackStore) -> None:
    counter = Counter()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: decode_files(files, PLAIN, PackStore(store.folder), counter), range(4)))
    assert counter.calls == COUNT
    assert all(_equal(each, files) for each in found)


def test_where_nothing_can_be_kept_images_are_decoded(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    counter = Counter()
    for _ in range(2):
        assert _equal(decode_files(files, PLAIN, PackStore(tmp_path / "file" / "kept"), counter), files)
    assert counter.calls == 2 * COUNT


def test_the_folder_is_bounded_and_what_was_used_last_stays(files: list[Path], store: PackStore) -> None:
    sets = [files[:10], files[10:20], files[20:30], files[30:]]
    decode_files(sets[0], PLAIN, store)
    size = _packs(store)[0].stat().st_size
    small = PackStore(store.folder, 2 * size)
    decode_files(sets[1], PLAIN, small)
    for number, path in enumerate(_packs(store)):  # as if long ago, one after the other
        os.utime(path, (number, number))
    decode_files(sets[0], PLAIN, small)
    decode_files(sets[2], PLAIN, small)
    assert len(_packs(store)) == 2
    counter = Counter()
    for each in (sets[0], sets[2]):
        decode_files(each, PLAIN, small, counter)
    assert counter.calls == 0
    assert _equal(decode_files(files, PLAIN, PackStore(store.folder, 1)), files)  # the newest stays, however large
    assert len(_packs(store)) == 1


def test_pixels_lie_in_the_file_and_not_in_memory(files: list[Path], store: PackStore) -> None:
    decode_files(files, PLAIN, store)
    pixels = decode_files(files, PLAIN, store).pixels
    assert not pixels.flags.owndata
    assert not pixels.flags.writeable


@pytest.fixture
def folder(tmp_path: Path, files: list[Path]) -> Path:
    rows = [f"{number},a,{'xy'[number % 2]}" for number in range(COUNT)]
    (tmp_path / "labels.csv").write_text("\n".join(["case_id,annotator,label", *rows]) + "\n")
    return tmp_path


def test_copies_of_ones_own_images_lie_with_them(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SECONDREAD_CACHE", raising=False)
    counter = Counter()
    first = load_folder(folder, size=16, observer=counter)
    again = load_folder(folder, size=16, observer=counter)
    assert counter.calls == COUNT
    assert len(list((folder / ".decoded").glob("*.pack"))) == 1
    monkeypatch.setenv("SECONDREAD_CACHE", "off")
    uncached = load_folder(folder, size=16, observer=counter)
    assert counter.calls == 2 * COUNT
    for each in (again, uncached):
        np.testing.assert_array_equal(each.pixels, first.pixels)
        assert each.pixel_digests == first.pixel_digests
        assert each.preprocessing == first.preprocessing
    monkeypatch.setenv("SECONDREAD_CACHE", str(tmp_path / "elsewhere"))
    load_folder(folder, size=16, observer=counter)
    assert len(list((tmp_path / "elsewhere" / "secondread-decoded").glob("*.pack"))) == 1
    (folder / "images" / "0.png").write_bytes(b"")
    with pytest.raises(TableError, match=r"0\.png: the file is empty"):
        load_folder(folder, size=16)
