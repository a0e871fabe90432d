"""Images are decoded once: what is kept is what would be decoded, whatever happened to files and copies."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ml.datasets.folder import load_folder
from ml.images.pixel_cache import DecodedImages, PackStore, UnreadableImageError, decode_files
from ml.images.preprocess import Preprocessing
from ml.tables.reading import TableError
from tests.support.images import encode, photo

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


def test_images_are_decoded_once(files: list[Path], store: PackStore) -> None:
    counter = Counter()
    for _ in range(3):
        assert _equal(decode_files(files, PLAIN, store, counter), files)
    assert counter.calls == COUNT
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


@pytest.mark.parametrize(
    "other",
    [
        Preprocessing(3, None, 12, (0.5,) * 3, (0.25,) * 3),
        Preprocessing(3, 20, 16, (0.5,) * 3, (0.25,) * 3),
        Preprocessing(1, None, 16, (0.5,), (0.25,)),
    ],
)
def test_another_way_of_decoding_has_images_of_its_own(
    other: Preprocessing, files: list[Path], store: PackStore
) -> None:
    decode_files(files, PLAIN, store)
    counter = Counter()
    assert _equal(decode_files(files, other, store, counter), files, other)
    assert counter.calls == COUNT
    assert _equal(decode_files(files, PLAIN, store, counter), files)
    assert counter.calls == COUNT


def test_another_decoder_has_images_of_its_own(
    files: list[Path], store: PackStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode_files(files, PLAIN, store)
    monkeypatch.setattr("PIL.__version__", "another one")
    counter = Counter()
    decode_files(files, PLAIN, store, counter)
    assert counter.calls == COUNT


def test_normalisation_is_no_part_of_the_key(files: list[Path], store: PackStore) -> None:
    decode_files(files, PLAIN, store)
    counter = Counter()
    decode_files(files, Preprocessing(3, None, 16, (0.1,) * 3, (0.9,) * 3), store, counter)
    assert counter.calls == 0


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
    assert _equal(decode_files(files, PLAIN, store, counter), files)
    assert counter.calls == COUNT
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
