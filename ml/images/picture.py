"""Stored form of an uploaded image, and its decoding in a limited process.

The process reads the file on stdin and answers with a line of JSON, the
network's pixels and the PNG.
"""

import json
import sys
from dataclasses import asdict, dataclass

import numpy as np
from PIL import Image

from ml.images.image_container_checks import file_facts
from ml.images.preprocess import (
    MAX_PIXELS,
    ImageRejectedError,
    Pixels,
    Preprocessing,
    decode_image,
    encode_png,
    pixel_digest,
)
from ml.util.sandbox import LimitError, limit_this_process, run_limited

#: Bytes per pixel: at most 27 while decoding (transparent TIFF), and the PNG twice.
BYTES_PER_PIXEL = 36
#: A picture of at most so many pixels of 8 bits is cheap, if its file is plain.
CHEAP_PIXELS = 1_000_000
_HASH_SIDE = 8


@dataclass(frozen=True)
class Picture:
    """A decoded picture, without its pixels."""

    width: int  # in px
    height: int  # in px
    pixels: Pixels  # network pixels (size, size, C)
    image_hash: int = 0  # only with a PNG
    digest: bytes = b""  # of the decoded pixels; only with a PNG
    png: bytes = b""  # without metadata


@dataclass(frozen=True)
class DecodingCost:
    """Cost of decoding an image."""

    memory: int  # bytes
    cheap: bool  # enough for the serving process


def estimate_decoding_cost(data: bytes) -> DecodingCost:
    """Estimate an image's decoding cost from its header; 0 for no image."""
    facts = file_facts(data)
    if facts is None:
        return DecodingCost(0, True)  # decoding says so
    n_pixels = min(facts.width * facts.height or MAX_PIXELS, MAX_PIXELS)  # more are refused
    return DecodingCost(BYTES_PER_PIXEL * n_pixels, facts.plain and 0 < n_pixels <= CHEAP_PIXELS)


def read_picture(data: bytes, preprocessing: Preprocessing, *, png: bool) -> Picture:
    """Decode a picture."""
    image = decode_image(data)
    pixels = preprocessing.pixels(image)
    if not png:
        return Picture(image.width, image.height, pixels)
    digest = pixel_digest(image)
    return Picture(image.width, image.height, pixels, difference_hash(image), digest, encode_png(image))


def difference_hash(image: Image.Image) -> int:
    """64-bit difference hash of 8 × 8 coarse cells (Krawetz 2013)."""
    coarse = np.asarray(image.convert("L").resize((_HASH_SIDE + 1, _HASH_SIDE), Image.Resampling.BOX), dtype=np.int16)
    bits = (coarse[:, 1:] > coarse[:, :-1]).ravel()
    return int.from_bytes(np.packbits(bits).tobytes(), "big", signed=True)


def hash_distance(first: int, other: int) -> int:
    """Number of bits in which two hashes differ.

    >>> hash_distance(0, -1)
    64
    """
    return ((first ^ other) & (2**64 - 1)).bit_count()


@dataclass(frozen=True)
class _Header:
    """First line of the answer: an error, or the picture's shape."""

    reason: str = ""
    message: str = ""
    width: int = 0
    height: int = 0
    image_hash: int = 0
    digest: str = ""
    shape: tuple[int, ...] = ()


def read_limited(data: bytes, preprocessing: Preprocessing, *, png: bool, memory: int, seconds: int) -> Picture:
    """Decode a picture in a separate process."""
    request = {"preprocessing": preprocessing.to_dict(), "png": png, "memory": memory, "seconds": seconds}
    try:
        answer = run_limited("ml.images.picture", json.dumps(request), data=data, seconds=2 * seconds)
    except LimitError as exc:
        what = "took longer than it may" if exc.slow else "failed, or took more memory or time than its size allows"
        raise ImageRejectedError("broken", f"decoding {what}") from exc
    line, newline, rest = answer.partition(b"\n")
    if not newline:
        raise ImageRejectedError("broken", "decoding failed")
    header = _Header(**json.loads(line))
    if header.reason:
        raise ImageRejectedError(header.reason, header.message)  # type: ignore[arg-type]
    size = int(np.prod(header.shape))
    pixels = np.frombuffer(rest, dtype=np.uint8, count=size).reshape(header.shape)
    digest = bytes.fromhex(header.digest)
    return Picture(header.width, header.height, pixels, header.image_hash, digest, rest[size:])


def main() -> None:
    """Read the picture on stdin; the arguments say how."""
    request = json.loads(sys.argv[1])
    data = sys.stdin.buffer.read()
    limit_this_process(request["memory"], request["seconds"])
    try:
        picture = read_picture(data, Preprocessing.from_dict(request["preprocessing"]), png=request["png"])
    except ImageRejectedError as exc:
        _answer(_Header(exc.reason, str(exc)))
        return
    size = picture.width, picture.height
    header = _Header("", "", *size, picture.image_hash, picture.digest.hex(), picture.pixels.shape)
    _answer(header, np.ascontiguousarray(picture.pixels).tobytes(), picture.png)


def _answer(header: _Header, *parts: bytes) -> None:
    sys.stdout.buffer.write(json.dumps(asdict(header)).encode() + b"\n")
    for part in parts:
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
