"""Preprocessing from an encoded image to the network's input.

Decoding gives 8-bit pixels, grey or RGB: upright, opaque, 16-bit grey scaled to
8. A PNG of decoded pixels decodes to the same pixels, bit for bit.
"""

import hashlib
import zlib
from dataclasses import dataclass
from io import BytesIO
from typing import Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ml.documents import from_document, to_document
from ml.util.arrays import FloatArray

Pixels = npt.NDArray[np.uint8]
#: Meaningless turns of an image: ``any``, ``upright`` (small, mirrored), ``fixed``.
Orientation = Literal["upright", "any", "fixed"]

#: Version of decoding and preprocessing; raised when pixels would change.
PREPROCESSING_VERSION = 1
ALLOWED_FORMATS = ("PNG", "JPEG", "TIFF")
MAX_PIXELS = 25_000_000
MAX_SIDE = 8192
MIN_SIDE = 8
DIGEST_BYTES = 32
#: Step of the first look for colour.
_APART = 16
_GREY_MODES = {"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"}

Reason = Literal["empty", "format", "broken", "frames", "too-large", "too-small"]


class ImageRejectedError(ValueError):
    """An image that cannot be read safely."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def decode_image(data: bytes) -> Image.Image:
    """Decode an encoded image to mode L or RGB without metadata."""
    if not data:
        raise ImageRejectedError("empty", "the file is empty")
    try:
        with Image.open(BytesIO(data), formats=ALLOWED_FORMATS) as image:
            _check_header(image)
            image.load()
            return _plain(image)
    except ImageRejectedError:
        raise
    except UnidentifiedImageError as exc:
        raise ImageRejectedError("format", f"not a readable {', '.join(ALLOWED_FORMATS)} file") from exc
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as exc:
        raise ImageRejectedError("too-large", f"larger than {MAX_PIXELS:,} pixels") from exc
    except Exception as exc:  # decoders raise anything
        raise ImageRejectedError("broken", f"the image is damaged: {type(exc).__name__}") from exc


def _check_header(image: Image.Image) -> None:
    width, height = image.size
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        limit = f"at most {MAX_SIDE:,} px a side and {MAX_PIXELS:,} in all"
        raise ImageRejectedError("too-large", f"{width} x {height} pixels; {limit}")
    if min(width, height) < MIN_SIDE:
        raise ImageRejectedError("too-small", f"{width} x {height} pixels; at least {MIN_SIDE} a side")
    try:
        image.seek(1)  # cheaper than n_frames, which walks through all of them
    except EOFError:
        image.seek(0)
    else:
        raise ImageRejectedError("frames", "more than one frame or page; send one image")


def _plain(image: Image.Image) -> Image.Image:
    ImageOps.exif_transpose(image, in_place=True)
    upright = image
    mode = upright.mode
    if mode in {"I", "I;16", "I;16B", "I;16L"}:
        values = np.asarray(upright, dtype=np.int64)
        top = 65535 if values.max(initial=0) > 255 or "16" in mode else 255
        return Image.fromarray((values.clip(0, top) * 255 // top).astype(np.uint8))
    if mode == "F":
        raise ImageRejectedError("format", "floating-point images are not read; send 8 or 16 bits")
    if upright.has_transparency_data:
        layered = upright.convert("RGBA")
        white = Image.new("RGBA", layered.size, (255, 255, 255, 255))
        upright = Image.alpha_composite(white, layered)
    target = "L" if mode in _GREY_MODES else "RGB"
    plain = upright.convert(target)  # a copy in any case
    plain.info.clear()  # metadata of a copy
    return plain


def encode_png(image: Image.Image) -> bytes:
    """Lossless PNG of decoded pixels, without metadata."""
    buffer = BytesIO()
    # in photographs only runs repeat; a full search takes twice the time
    image.save(buffer, "PNG", compress_type=zlib.Z_RLE)
    return buffer.getvalue()


class PreprocessingDocument(TypedDict):
    """A ``Preprocessing`` as JSON values."""

    channels: int
    crop: int | None
    size: int
    mean: list[float]
    std: list[float]
    version: int


@dataclass(frozen=True)
class Preprocessing:
    """Steps between decoded pixels and the network, part of every release card."""

    channels: int  # 1 (grey) or 3 (RGB)
    crop: int | None
    size: int  # side of the network's input in px
    mean: tuple[float, ...]  # one per channel, of pixels scaled to [0, 1]
    std: tuple[float, ...]  # one per channel
    version: int = PREPROCESSING_VERSION  # of this code

    def __post_init__(self) -> None:
        if self.channels not in {1, 3} or len(self.mean) != self.channels or len(self.std) != self.channels:
            raise ValueError(f"channels must be 1 or 3 with one mean and std each, got {self}")
        if self.size < 1 or (self.crop is not None and self.crop < 1) or min(self.std) <= 0:
            raise ValueError(f"size, crop and std must be positive, got {self}")
        if self.version != PREPROCESSING_VERSION:
            raise ValueError(
                f"preprocessing version {self.version} is not {PREPROCESSING_VERSION}, which this code reads"
            )

    def to_dict(self) -> PreprocessingDocument:
        """Return it as JSON values."""
        return cast(PreprocessingDocument, to_document(self))

    @classmethod
    def from_dict(cls, document: PreprocessingDocument) -> "Preprocessing":
        """Read back what ``to_dict`` wrote."""
        return from_document(cls, document)

    def pixels(self, image: Image.Image) -> Pixels:
        """Crop and resize a decoded image to uint8 (H, W, C)."""
        mode = "L" if self.channels == 1 else "RGB"
        image = image if image.mode == mode else image.convert(mode)
        side = min(image.size) if self.crop is None else min(self.crop, *image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        if image.size != (side, side):
            image = image.crop((left, top, left + side, top + side))
        if side % self.size == 0:  # Pillow's filters round twice
            return _block_means(np.asarray(image).reshape(side, side, self.channels), side // self.size)
        filter_ = Image.Resampling.BOX if side > self.size else Image.Resampling.BICUBIC
        image = image.resize((self.size, self.size), filter_)
        return np.asarray(image, dtype=np.uint8).reshape(self.size, self.size, self.channels)

    def scale_and_offset(self) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Factors (C, 1, 1) of input = pixel · scale + offset."""
        mean, std = np.array(self.mean)[:, None, None], np.array(self.std)[:, None, None]
        return (1 / (255 * std)).astype(np.float32), (-mean / std).astype(np.float32)

    def normalise(self, pixels: Pixels) -> npt.NDArray[np.float32]:
        """Network input float32 (N, C, H, W) of uint8 pixels (N, H, W, C)."""
        scale, offset = self.scale_and_offset()
        # into one array, laid out as the network reads it
        planes = np.empty((*pixels.shape[:-3], self.channels, *pixels.shape[-3:-1]), dtype=np.float32)
        np.multiply(np.moveaxis(pixels, -1, -3), scale, out=planes)
        planes += offset
        return planes

    def __call__(self, image: Image.Image) -> npt.NDArray[np.float32]:
        """Network input float32 (C, H, W) of a decoded image."""
        return np.asarray(self.normalise(self.pixels(image)[None])[0])


def _block_means(pixels: Pixels, factor: int) -> Pixels:
    if factor == 1:
        return pixels
    side, channels, area = len(pixels) // factor, pixels.shape[-1], factor**2
    # whole numbers: sums are exact; down first: long rows are summed fast
    wide = np.uint16 if 255 * area + area // 2 <= np.iinfo(np.uint16).max else np.uint32
    columns = pixels.reshape(side, factor, -1).sum(axis=1, dtype=wide).reshape(side, side, factor, channels)
    sums = np.einsum("hwfc->hwc", columns)
    return np.asarray((sums + wide(area // 2)) // wide(area), dtype=np.uint8)


def fit_normalisation(pixels: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of pixels (N, H, W, C)."""
    flat = pixels.reshape(-1, pixels.shape[-1])
    counts = [np.bincount(flat[:, c], minlength=256) for c in range(flat.shape[1])]
    values = np.arange(256) / 255
    means: list[FloatArray] = [(c * values).sum() / c.sum() for c in counts]
    stds = [np.sqrt((c * (values - m) ** 2).sum() / c.sum()) for c, m in zip(counts, means, strict=True)]
    return tuple(round(float(m), 4) for m in means), tuple(max(round(float(s), 4), 1e-3) for s in stds)


def pixel_digest(image: Image.Image | Pixels) -> bytes:
    """SHA-256 of a decoded picture, equal for every lossless file of it."""
    pixels = np.asarray(image, dtype=np.uint8)
    if pixels.ndim == 3 and _is_grey(pixels[::_APART, ::_APART]) and _is_grey(pixels):
        pixels = pixels[..., 0]
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(f"secondread pixels {width} {height} {pixels.ndim}\n".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def _is_grey(pixels: Pixels) -> bool:
    return bool((pixels == pixels[..., :1]).all())
