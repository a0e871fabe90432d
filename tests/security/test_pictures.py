"""Pictures within a budget: hostile files are not opened where others are served, and too many are asked back."""

import os
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import numpy as np
import pytest
from PIL import Image, ImageCms

from app.http.limiter import CHEAP_PICTURES, MAX_UPLOAD, Limiter
from app.predictions import inference
from app.predictions.inference import ImageDecoder
from ml.images import image_container_checks
from ml.images.image_container_checks import BESIDE_PIXELS, CHUNKS, PACKED_CHUNKS, SEGMENTS, file_facts
from ml.images.picture import BYTES_PER_PIXEL, CHEAP_PIXELS, Picture, estimate_decoding_cost, read_limited, read_picture
from ml.images.preprocess import MAX_PIXELS, ImageRejectedError, Preprocessing
from tests.support.images import CORPUS, animated, chunk, encode, photo, png
from tests.support.process import Installation
from tests.support.sabotage import undone
from tests.support.service import Service, cell_png
from tests.support.waiting import patient, wait_until

PREPROCESSING = Preprocessing(3, None, 32, (0.5,) * 3, (0.25,) * 3)
MIB = 1024**2


def deep_png(side: int) -> bytes:
    """A PNG of 16-bit RGBA that is small as a file: nothing but one colour."""
    packer, row = zlib.compressobj(9), b"\0" + b"\x12\x34" * (4 * side)
    pixels = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return png(side, side, pixels, bits=16, kind=6)


def jpeg_of_scans(n: int, side: int = 300) -> bytes:
    """A progressive JPEG whose last scan is sent ``n`` times more: 34 bytes that go over all blocks."""
    data = encode(np.full((side, side), 128, dtype=np.uint8), "JPEG", progressive=True, quality=50)
    last = data[data.rfind(b"\xff\xc4", 0, data.rfind(b"\xff\xda")) : -2]
    return data[:-2] + n * last + data[-2:]


LARGE = {
    "JPEG of many scans": jpeg_of_scans(100),
    "RGB of more than a megapixel": encode(photo(1, 1010)),
    "JPEG of more than a megapixel": encode(photo(1, 1010), "JPEG"),
    "16-bit RGBA": deep_png(300),
    "16-bit grey": CORPUS["16-bit grey"][0],
    "16-bit grey TIFF": CORPUS["16-bit grey TIFF"][0],
}


@pytest.mark.parametrize("name", LARGE)
def test_a_process_of_its_own_reads_what_this_one_would(name: str) -> None:
    data = LARGE[name]
    cost = estimate_decoding_cost(data)
    assert not cost.cheap
    here = read_picture(data, PREPROCESSING, png=True)
    there = read_limited(data, PREPROCESSING, png=True, memory=cost.memory, seconds=20)
    assert (there.width, there.height, there.image_hash) == (here.width, here.height, here.image_hash)
    np.testing.assert_array_equal(there.pixels, here.pixels)
    assert there.png == here.png
    assert read_limited(data, PREPROCESSING, png=False, memory=cost.memory, seconds=20).png == b""


def test_pictures_of_up_to_a_megapixel_of_8_bits_are_cheap() -> None:
    names = ("plain PNG", "plain JPEG", "plain TIFF", "grey", "RGB with alpha", "CMYK", "palette with alpha")
    assert [name for name in names if not estimate_decoding_cost(CORPUS[name][0]).cheap] == []
    assert estimate_decoding_cost(encode(photo(1, 1000))).cheap
    assert estimate_decoding_cost(b"no picture") == estimate_decoding_cost(b"")  # decoding says what is wrong
    assert 4 * estimate_decoding_cost(encode(photo(1, 1000))).memory <= Limiter(CHEAP_PICTURES).size
    assert CHEAP_PIXELS == 1_000_000


@pytest.mark.slow
@pytest.mark.ci
@undone("T4", "a JPEG of many scans is decoded where it can be ended", image_container_checks, "SCANS", 10**9)
def test_a_jpeg_that_goes_over_its_blocks_for_minutes_is_stopped(
    shared_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 MB of scans of a megapixel took minutes of a thread that nobody could end."""
    monkeypatch.setattr(inference, "_SECONDS", 1)
    data = jpeg_of_scans(100_000, 1000)
    assert len(data) < MAX_UPLOAD
    assert not estimate_decoding_cost(data).cheap
    answer = shared_service.post("viewer", "/v1/predictions", files={"image": ("x", data)})
    assert (answer.status_code, "time" in answer.text or "longer" in answer.text) == (422, True), answer.text
    ordinary = encode(photo(1, 300), "JPEG", progressive=True)
    assert 1 < ordinary.count(b"\xff\xda") < 20
    assert estimate_decoding_cost(ordinary).cheap


@pytest.mark.slow
def test_memory_and_time_of_the_process_are_limited() -> None:
    data = deep_png(4000)
    with pytest.raises(ImageRejectedError):
        read_limited(data, PREPROCESSING, png=False, memory=100 * MIB, seconds=20)
    noise = np.random.default_rng(0).integers(0, 256, (4900, 4900, 3), dtype=np.uint8)
    with pytest.raises(ImageRejectedError, match=r"memory or time|took longer"):
        read_limited(
            encode(noise, compress_level=1),
            PREPROCESSING,
            png=True,
            memory=estimate_decoding_cost(data).memory * 2,
            seconds=1,
        )


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (LARGE["RGB of more than a megapixel"][:-300_000], 422),
        (encode(photo(1, 1010), "TIFF")[:-9000], 422),
        (CORPUS["26 megapixels"][0], 413),
        (CORPUS["floating point TIFF"][0], 415),
        (animated("TIFF"), 422),
        (b"", 422),
    ],
)
def test_what_cannot_be_read_is_said_as_before(shared_service: Service, data: bytes, status: int) -> None:
    answer = shared_service.post("viewer", "/v1/predictions", files={"image": ("x", data)})
    assert answer.status_code == status, answer.text


@pytest.fixture
def given_away(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory that each process of its own is given to read a picture."""
    given: list[int] = []

    def counted(data: bytes, preprocessing: Preprocessing, **options: int) -> Picture:
        given.append(options["memory"])
        return read_limited(data, preprocessing, **{**options, "seconds": 2})  # type: ignore[arg-type]

    monkeypatch.setattr(inference, "read_limited", counted)
    return given


def test_cheap_pictures_start_no_process_and_large_ones_do(service: Service, given_away: list[int]) -> None:
    assert service.upload("cheap", cell_png(1)).status_code == 201
    assert given_away == []
    large = LARGE["16-bit RGBA"]
    case = service.add_case("large", large)
    assert len(given_away) == 1
    assert (case["width"], case["height"]) == (300, 300)
    stored = service.get("viewer", f"/v1/cases/{case['id']}/image").content
    assert stored == read_picture(large, PREPROCESSING, png=True).png


def test_a_failure_gives_the_memory_back() -> None:
    port = ImageDecoder(1024**3)
    for data in (LARGE["RGB of more than a megapixel"][:-300_000], CORPUS["truncated PNG"][0]):
        with pytest.raises(Exception, match="damaged"), port.opened(data, PREPROCESSING):
            pass
    assert (port.cheap.count_use(), port.large.count_use()) == ((0, 0), (0, 0))


@contextmanager
def watched_memory(pid: int) -> Iterator[list[int]]:
    """Resident bytes of a process and its children before a block, and the most that they were within it."""
    seen, over = [memory_of(pid)] * 2, threading.Event()

    def watch() -> None:
        while not over.is_set():
            seen[1] = max(seen[1], memory_of(pid))
            time.sleep(0.02)

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        yield seen
        over.set()
        watching.result()


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children that live now."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if int(folder.name) == pid or parent == pid:
                total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    return total


@pytest.mark.parametrize(
    "clients", [pytest.param(16, marks=pytest.mark.slow), pytest.param(64, marks=pytest.mark.heavy)]
)
def test_clients_with_pictures_of_25_megapixels_are_served_or_asked_to_come_back(
    tmp_path: Path, tiny_release: Path, clients: int
) -> None:
    data, small = deep_png(5000), encode(photo(3, 1000))
    assert len(data) < MIB
    assert estimate_decoding_cost(data).memory == 36 * MAX_PIXELS
    with Installation(tmp_path / "home") as made:
        keys = made.prepare(tiny_release, viewer="viewer")
        made.environment["SECONDREAD_WORKER"] = "false"
        made.start()
        assert made.server is not None
        headers = {"Authorization": f"Bearer {keys['viewer']}", "Content-Type": "application/octet-stream"}

        def send(body: bytes) -> int:
            address = f"{made.address}/v1/predictions"
            return httpx2.post(address, content=body, headers=headers, timeout=patient(300)).status_code

        assert send(small) == 200
        pid = made.server.pid
        with watched_memory(pid) as seen, ThreadPoolExecutor(clients + 16) as pool:
            answers = Counter(pool.map(send, [data] * clients + [small] * 16))
        before, peak = seen
        assert set(answers) == {200, 429}, answers
        assert answers[429] >= clients * 5 / 8, answers
        assert peak - before < 1024**3 + Limiter(CHEAP_PICTURES).size + 300 * MIB, f"{(peak - before) / MIB:,.0f} MiB"
        assert peak - before > 300 * MIB  # a large one was decoded indeed
        assert send(small) == 200
        wait_until(
            lambda: memory_of(pid) - before < 200 * MIB, what=lambda: f"{memory_of(pid) / MIB:,.0f} MiB are kept"
        )


CELL = photo(1, 64)
PNG, JPEG = encode(CELL), encode(CELL, "JPEG")


def png_with(chunks: bytes) -> bytes:
    """Chunks between a PNG's header and its pixels."""
    return PNG[:33] + chunks + PNG[33:]


def jpeg_with(segments: bytes) -> bytes:
    """Segments behind a JPEG's first one."""
    behind = 4 + int.from_bytes(JPEG[4:6], "big")
    return JPEG[:behind] + segments + JPEG[behind:]


def tiled(
    width: int, height: int, across: int, down: int, *, packing: int = 8, bits: tuple[int, int, int] = (8, 8, 8)
) -> bytes:
    """A TIFF of tiles that are all the same one, with the bytes of it that there are."""
    packed = zlib.compress(bytes(3 * across * down), 9)
    n = -(-width // across) * -(-height // down)
    entries = 11
    behind = 8 + 2 + 12 * entries + 4
    places, lengths = behind + 8, behind + 8 + 4 * n
    at = lengths + 4 * n
    rows = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, 3, behind),
        (259, 3, 1, packing),
        (262, 3, 1, 2),
        (277, 3, 1, 3),
        (284, 3, 1, 1),
        (322, 4, 1, across),
        (323, 4, 1, down),
        (324, 4, n, places if n > 1 else at),
        (325, 4, n, lengths if n > 1 else len(packed)),
    ]
    directory = b"".join(
        struct.pack("<HHI", *row[:3])
        + (struct.pack("<HH", row[3], 0) if row[1:3] == (3, 1) else struct.pack("<I", row[3]))
        for row in rows
    )
    parts = struct.pack("<I", at) * n + struct.pack("<I", len(packed)) * n
    head = b"II*\0" + struct.pack("<IH", 8, entries)
    return head + directory + bytes(4) + struct.pack("<HHHH", *bits, 0) + parts + packed


def strips(n: int) -> bytes:
    """A TIFF of 64 x 64 px whose one strip is named ``n`` times."""
    data = encode(CELL, "TIFF")
    at = struct.unpack_from("<I", data, 4)[0]
    (entries,) = struct.unpack_from("<H", data, at)
    changed = bytearray(data)
    for place in range(at + 2, at + 2 + 12 * entries, 12):
        kind, _, count, value = struct.unpack_from("<HHII", data, place)
        if kind in {273, 279}:
            assert count == 1
            struct.pack_into("<HHII", changed, place, kind, 4, n, len(changed))
            changed += struct.pack("<I", value) * n
    return bytes(changed)


PROFILE = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1024**2 - 1), 9))
HOSTILE = {
    # ten kilobytes took six seconds, thirty took twenty-three
    "tiles that reach far beyond the picture": tiled(8192, 122, 16, 2**17),
    "a picture of 64 px in a tile of 16,384": tiled(64, 64, 4096, 4096),
    "the same packed tile for all of them": tiled(1000, 1000, 16, 16),
    "tiles of no size": tiled(64, 64, 64, 64).replace(
        struct.pack("<HHI", 322, 4, 1) + b"\x40", struct.pack("<HHI", 322, 4, 1) + b"\0"
    ),
    "tiles in JPEG": tiled(64, 64, 64, 64, packing=7),
    "tiles in LZMA": tiled(64, 64, 64, 64, packing=34925),
    "samples of 16 bits": tiled(64, 64, 64, 64, bits=(8, 16, 8)),
    "a strip that is named a thousand times": strips(1000),
    "strips without number": strips(100_000),
    "two pages": encode(CELL, "TIFF", save_all=True, append_images=[Image.fromarray(CELL)]),
    "much beside the pixels": encode(CELL, "TIFF") + bytes(BESIDE_PIXELS),
    "a TIFF of large numbers": b"II+\0" + encode(CELL, "TIFF")[4:],
    "a directory behind the end": b"MM\0*\x7f\xff\xff\xff" + bytes(100),
    # each is unpacked: a kilobyte of the file to a megabyte
    "many colour profiles": png_with((PACKED_CHUNKS + 1) * PROFILE),
    "colour profiles behind the pixels": PNG[:-12] + (PACKED_CHUNKS + 1) * PROFILE + PNG[-12:],
    "empty chunks": png_with(CHUNKS * chunk(b"aaAa")),
    "empty chunks of pixels": png_with(CHUNKS * chunk(b"IDAT")),
    "large notes": png_with(chunk(b"tEXt", b"a\0" + BESIDE_PIXELS * b"b")),
    "a second header": png_with(chunk(b"IHDR", struct.pack(">IIBBBBB", 5000, 5000, 8, 2, 0, 0, 0))),
    "a PNG without an end": PNG[:-12],
    # Pillow goes through these one by one, or byte by byte
    "empty segments": jpeg_with(SEGMENTS * b"\xff\xe5\0\x02"),
    "padding": jpeg_with(1000 * b"\xff"),
    "what is no segment": jpeg_with(1000 * b"a"),
    "markers without a length": jpeg_with(1000 * b"\xff\xd0"),
    "large segments": jpeg_with(9 * (b"\xff\xed\xff\xff" + bytes(65533))),
    "a JPEG without pixels": JPEG[: JPEG.index(b"\xff\xda")],
}


@pytest.fixture
def opened_here(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What this process opens."""
    opened: list[object] = []
    real = Image.open

    def noted(file: object, **options: object) -> Image.Image:
        opened.append(file)
        return real(file, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Image, "open", noted)
    return opened


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_not_opened_where_others_are_served(
    name: str, shared_service: Service, given_away: list[int], opened_here: list[object]
) -> None:
    answer = shared_service.post("viewer", "/v1/predictions", files={"image": ("x", HOSTILE[name])})
    assert answer.status_code in {200, 413, 415, 422}, answer.text
    assert len(given_away) == 1
    assert given_away[0] <= BYTES_PER_PIXEL * MAX_PIXELS
    assert opened_here == []


def _saved(kind: str, mode: str = "RGB", **options: object) -> bytes:
    return encode(Image.fromarray(photo(2, 500)).convert(mode), kind, **options)


def _profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def _exif() -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a microscope"
    return exif.tobytes()


ORDINARY: dict[str, Callable[[], bytes]] = {
    "PNG with profile and EXIF": lambda: _saved("PNG", icc_profile=_profile(), exif=_exif()),
    "PNG with a palette": lambda: _saved("PNG", "P"),
    "PNG of one bit": lambda: _saved("PNG", "1"),
    "JPEG with profile and EXIF": lambda: _saved("JPEG", icc_profile=_profile(), exif=_exif(), comment="a cell"),
    "progressive JPEG": lambda: _saved("JPEG", progressive=True),
    "JPEG of four colours": lambda: _saved("JPEG", "CMYK"),
    **{
        f"TIFF packed by {packing}": lambda packing=packing: _saved("TIFF", compression=packing)
        for packing in (None, "tiff_lzw", "tiff_deflate", "tiff_adobe_deflate", "packbits")
    },
    "TIFF of four colours": lambda: _saved("TIFF", "CMYK"),
    "TIFF with transparency": lambda: _saved("TIFF", "RGBA"),
    "TIFF of one bit": lambda: _saved("TIFF", "1"),
    "TIFF with metadata": lambda: _saved("TIFF", icc_profile=_profile(), exif=_exif(), description="a cell"),
    "TIFF of one tile": lambda: tiled(500, 500, 512, 512),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_what_programs_write_is_plain(name: str, opened_here: list[object]) -> None:
    data = ORDINARY[name]()
    found = file_facts(data)
    assert found is not None
    assert (found.width, found.height, found.plain) == (500, 500, True)
    assert estimate_decoding_cost(data).cheap
    assert opened_here == []


def test_what_a_decoder_thinks_of_a_picture_is_not_written_to_the_log() -> None:
    """Of tags that reach beyond the file Pillow warns one by one."""
    picture = bytearray(encode(CELL, "TIFF"))
    at = struct.unpack_from("<I", picture, 4)[0]
    (entries,) = struct.unpack_from("<H", picture, at)
    struct.pack_into("<HHII", picture, at + 2 + 12 * (entries - 1), 65000, 7, 10**9, 0)
    code = "import sys; from app.http.observability import configure_logging; from ml.images import preprocess\n"
    for said, first in ((True, ""), (False, "configure_logging()\n")):
        done = subprocess.run(
            [sys.executable, "-c", f"{code}{first}preprocess.decode_image(sys.stdin.buffer.read())"],
            input=bytes(picture),
            capture_output=True,
            check=True,
        )
        assert (b"UserWarning" in done.stderr) == said, done.stderr


@pytest.mark.parametrize(
    "data", [PNG, JPEG, encode(CELL, "TIFF"), tiled(64, 64, 64, 64)], ids=["png", "jpeg", "tiff", "tiles"]
)
def test_no_byte_of_a_file_makes_looking_at_it_fail(data: bytes) -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        changed = bytearray(data[: rng.integers(1, len(data) + 1)])
        for place in rng.integers(0, min(len(changed), 400), 3):
            changed[place] = rng.integers(256)
        cost = estimate_decoding_cost(bytes(changed))
        assert 0 <= cost.memory <= BYTES_PER_PIXEL * MAX_PIXELS
