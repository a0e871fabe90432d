"""Encoded images, good and bad, that uploads and the command line must survive."""

import struct
import zlib
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image


def encode(array: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = BytesIO()
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def photo(seed: int = 0, size: int = 64) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


def exif_rotated() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "CANARY-PATIENT-NAME"
    return encode(photo(1), "JPEG", exif=exif, quality=95)


def palette_with_alpha() -> bytes:
    return encode(Image.fromarray(photo(2)).convert("P"), "PNG", transparency=3)


def animated(kind: str) -> bytes:
    frames = [Image.fromarray(photo(seed)) for seed in range(3)]
    return encode(frames[0], kind, save_all=True, append_images=frames[1:])


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, pixels: bytes, *, bits: int = 8, kind: int = 2) -> bytes:
    """A PNG of packed pixels, whatever its header promises."""
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND")


def pixel_bomb(width: int, height: int) -> bytes:
    """A small PNG whose header promises many pixels."""
    return png(width, height, zlib.compress(b"\x00" * 1000))


#: name -> (bytes, reason it is rejected for, or None where it is read)
CORPUS: dict[str, tuple[bytes, str | None]] = {
    "plain PNG": (encode(photo()), None),
    "plain JPEG": (encode(photo(), "JPEG"), None),
    "plain TIFF": (encode(photo(), "TIFF"), None),
    "grey": (encode(photo()[..., 0]), None),
    "16-bit grey": (encode(photo()[..., 0].astype(np.uint16) * 257), None),
    "16-bit grey TIFF": (encode(photo()[..., 0].astype(np.uint16) * 257, "TIFF"), None),
    "black and white": (encode(Image.fromarray(photo()).convert("1")), None),
    "grey with alpha": (encode(Image.fromarray(photo()).convert("LA")), None),
    "RGB with alpha": (encode(Image.fromarray(photo()).convert("RGBA")), None),
    "CMYK": (encode(Image.fromarray(photo()).convert("CMYK"), "JPEG"), None),
    "palette with alpha": (palette_with_alpha(), None),
    "EXIF-rotated": (exif_rotated(), None),
    "empty file": (b"", "empty"),
    "text renamed .png": (b"This is not a picture.\n" * 20, "format"),
    "truncated JPEG": (encode(photo(), "JPEG")[:-900], "broken"),
    "truncated PNG": (encode(photo())[:-3000], "broken"),
    "header only": (encode(photo())[:33], "format"),
    "1x1 pixel": (encode(photo(size=1)), "too-small"),
    "floating point TIFF": (encode(photo()[..., 0].astype(np.float32), "TIFF"), "format"),
    "GIF": (encode(photo(), "GIF"), "format"),
    "animated GIF": (animated("GIF"), "format"),
    "animated PNG": (animated("PNG"), "frames"),
    "TIFF of three pages": (animated("TIFF"), "frames"),
    "BMP": (encode(photo(), "BMP"), "format"),
    "EPS renamed .png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "format"),
    "26 megapixels": (pixel_bomb(5100, 5100), "too-large"),
    "169 megapixels": (pixel_bomb(13_000, 13_000), "too-large"),
    "400 megapixels": (pixel_bomb(20_000, 20_000), "too-large"),
    "one long side": (pixel_bomb(9000, 10), "too-large"),
}
