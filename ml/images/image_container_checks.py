"""Container checks of image files: structure and declared sizes, undecoded.

A small file may name one tile a thousand times, so that opening it is as slow
as decoding it. So checks only go forward, in few steps. A file that is unusual
in any way is not plain, and is decoded in a process that can be ended.
"""

import struct
from contextlib import suppress
from dataclasses import dataclass

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
# 42, or 43 with longer numbers, in either order of bytes
_TIFF_ORDERS, _TIFF_VERSIONS = {b"II", b"MM"}, {b"*\0", b"\0*", b"+\0", b"\0+"}
#: Bytes of a file that are not packed pixels: profiles, previews, notes.
BESIDE_PIXELS = 512 * 1024
_PNG_HEAD = 33
#: Chunks of a PNG; those with pixels have eight kilobytes, as a rule.
CHUNKS = 2048
#: Chunks that are unpacked, a megabyte each at most: colour profiles and notes.
PACKED_CHUNKS = 8
_PACKED_KINDS = {b"iCCP", b"zTXt", b"iTXt"}
#: Segments of a JPEG before its pixels, and scans, each over all blocks.
SEGMENTS, SCANS = 512, 64
# markers with a length: frames, tables, scans, applications, remarks
_SEGMENT_KINDS = ({*range(0xC0, 0xF0)} - {0xC8, *range(0xD0, 0xDA)}) | {0xFE}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SCAN = 0xDA
#: Entries of a TIFF's directory, and strips or tiles.
ENTRIES, PARTS = 256, 16_384
#: Pixels of all tiles: as many times the picture's, or of a large tile.
TILED, TILE = 4, 2**18
#: None, LZW, both deflates, runs; others unpack to any size.
_PACKINGS = {1, 5, 8, 32946, 32773}
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
_WHOLE = {3: "H", 4: "I"}
_WIDTH, _HEIGHT, _BITS, _PACKING, _SAMPLES, _ROWS, _PLANES, _TILE_WIDTH, _TILE_HEIGHT = (
    256, 257, 258, 259, 277, 278, 284, 322, 323,
)  # fmt: skip
_STRIPS_AT, _STRIP_BYTES, _TILES_AT, _TILE_BYTES = 273, 279, 324, 325
_DEEP, _MOST_SAMPLES = 8, 5


@dataclass(frozen=True)
class FileFacts:
    """Facts that an image file declares about itself."""

    width: int = 0  # in px; 0 where it was not found
    height: int = 0  # in px; 0 where it was not found
    plain: bool = False  # of usual structure, at most 8 bits


def file_facts(data: bytes) -> FileFacts | None:
    """Read the facts that a file declares; None for a format that is not read."""
    if data.startswith(_PNG):
        return _png_facts(data)
    if data.startswith(_JPEG):
        return _jpeg_facts(data)
    if data[:2] in _TIFF_ORDERS and data[2:4] in _TIFF_VERSIONS:
        return _tiff_facts(data)
    return None


def _png_facts(data: bytes) -> FileFacts:
    if len(data) < _PNG_HEAD or data[12:16] != b"IHDR":
        return FileFacts()
    width, height, bits = struct.unpack_from(">IIB", data, 16)
    at, beside, packed, heads = len(_PNG), 0, 0, 0
    for _ in range(CHUNKS):
        if at + 8 > len(data):
            break
        length, kind = struct.unpack_from(">I4s", data, at)
        heads += kind == b"IHDR"  # a second one would count
        packed += kind in _PACKED_KINDS
        beside += 0 if kind == b"IDAT" else length
        at += 12 + length
        if kind == b"IEND":  # nothing behind it is read
            few = packed <= PACKED_CHUNKS and beside <= BESIDE_PIXELS
            return FileFacts(width, height, bits <= _DEEP and heads == 1 and few)
    return FileFacts(width, height)


def _jpeg_facts(data: bytes) -> FileFacts:
    at, width, height = 2, 0, 0
    for _ in range(SEGMENTS):
        if at + 9 > len(data):
            break
        mark, kind, length = struct.unpack_from(">BBH", data, at)
        if mark != 0xFF or kind not in _SEGMENT_KINDS:
            break  # padding is read byte by byte
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
        at += 2 + length
        if kind == _SCAN:
            # packed pixels never look like the marker of a scan
            return FileFacts(width, height, at <= BESIDE_PIXELS and data.count(b"\xff\xda") <= SCANS)
    return FileFacts(width, height)


def _tiff_facts(data: bytes) -> FileFacts:
    width, height, plain = 0, 0, False
    # it is short, incomplete, or has wrong numbers
    with suppress(struct.error, KeyError, ValueError, ZeroDivisionError):
        directory = _Directory(data)
        (width,), (height,) = directory.numbers(_WIDTH), directory.numbers(_HEIGHT)
        plain = directory.is_plain and _is_plain_tiff(directory, width, height)
    return FileFacts(width, height, plain)


def _is_plain_tiff(directory: "_Directory", width: int, height: int) -> bool:
    (samples,) = directory.numbers(_SAMPLES, (1,))
    if samples > _MOST_SAMPLES or max(directory.numbers(_BITS, (1,))) > _DEEP:
        return False
    (packing,), (planes,) = directory.numbers(_PACKING, (1,)), directory.numbers(_PLANES, (1,))
    number = samples if planes == 2 else 1
    if directory.has(_TILE_WIDTH):
        (across,), (down,) = directory.numbers(_TILE_WIDTH), directory.numbers(_TILE_HEIGHT)
        number *= -(-width // across) * -(-height // down)
        pixels = number * across * down // (samples if planes == 2 else 1)
        kinds = _TILES_AT, _TILE_BYTES
    else:
        (rows,) = directory.numbers(_ROWS, (height,))
        number *= -(-height // rows)
        pixels, kinds = width * height, (_STRIPS_AT, _STRIP_BYTES)
    if packing not in _PACKINGS or number > PARTS or pixels > max(TILED * width * height, TILE):
        return False
    places, lengths = (directory.numbers(kind) for kind in kinds)
    # the rest may be directories of thousands of entries
    beside = directory.size - sum(lengths)
    return len(places) == len(lengths) == number and 0 <= beside <= BESIDE_PIXELS


class _Directory:
    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)
        self._order = "<" if data[:2] == b"II" else ">"
        version, at = self._unpack("HI", 2)
        (number,) = self._unpack("H", at)
        self._entries: dict[int, tuple[int, int, int]] = {}
        for index in range(min(number, ENTRIES)):
            place = at + 2 + 12 * index
            kind, of, count = self._unpack("HHI", place)
            size = _SIZES.get(of, 1) * count
            self._entries[kind] = of, count, place + 8 if size <= 4 else self._unpack("I", place + 8)[0]
        (following,) = self._unpack("I", at + 2 + 12 * min(number, ENTRIES))
        #: Whether it is the only one, of few entries, each of them once.
        self.is_plain = version == 42 and len(self._entries) == number and following == 0

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(self._order + form, self._data, at)

    def has(self, kind: int) -> bool:
        """Whether there is an entry."""
        return kind in self._entries

    def numbers(self, kind: int, without: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """The whole numbers of an entry."""
        if without is not None and kind not in self._entries:
            return without
        of, count, at = self._entries[kind]
        if not 0 < count <= PARTS:
            raise ValueError(count)
        return self._unpack(f"{count}{_WHOLE[of]}", at)
