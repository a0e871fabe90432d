"""Small files that take a decoder long, or much memory: found by what they say, without opening them."""

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageCms

from app.predictions import inference
from ml.images.image_container_checks import BESIDE_PIXELS, CHUNKS, PACKED_CHUNKS, SEGMENTS, file_facts
from ml.images.picture import BYTES_PER_PIXEL, Picture, estimate_decoding_cost, read_limited
from ml.images.preprocess import MAX_PIXELS, Preprocessing
from tests.support.images import encode, photo
from tests.support.service import Service

CELL = photo(1, 64)
PNG, JPEG = encode(CELL), encode(CELL, "JPEG")


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


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


def with_two_pages() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(CELL).save(buffer, "TIFF", save_all=True, append_images=[Image.fromarray(CELL)])
    return buffer.getvalue()


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
    "two pages": with_two_pages(),
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


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_not_opened_where_others_are_served(
    name: str, shared_service: Service, monkeypatch: pytest.MonkeyPatch, opened_here: list[object]
) -> None:
    given_away: list[int] = []

    def counted(data: bytes, preprocessing: Preprocessing, **options: int) -> Picture:
        given_away.append(options["memory"])
        return read_limited(data, preprocessing, **{**options, "seconds": 2})  # type: ignore[arg-type]

    monkeypatch.setattr(inference, "read_limited", counted)
    answer = shared_service.post("viewer", "/v1/predictions", files={"image": ("x", HOSTILE[name])})
    assert answer.status_code in {200, 413, 415, 422}, answer.text
    assert len(given_away) == 1
    assert given_away[0] <= BYTES_PER_PIXEL * MAX_PIXELS
    assert opened_here == []


def _saved(kind: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(photo(2, 500)).convert(mode).save(buffer, kind, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


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
