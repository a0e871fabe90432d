"""What the service keeps of an uploaded picture, and what it costs to find out."""

from dataclasses import dataclass
from io import BytesIO

from PIL import Image

from ml.images.image_statistics import difference_hash
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import ALLOWED_FORMATS, Pixels, Preprocessing, decode_image, encode_png

#: Bytes of memory per pixel: 27 at most of any kind while it is decoded, laid on white, converted and packed (measured,
#: transparent TIFF), and its PNG twice where it is handed over.
BYTES_PER_PIXEL = 36
#: A picture of at most so many pixels of 8 bits is cheap, unless it is a JPEG of many scans.
CHEAP_PIXELS = 1_000_000
#: Scans of a JPEG that is cheap; each goes over all its blocks, and where nothing follows takes 34 bytes of the file:
#: twelve megabytes of them would be decoded for minutes. Progressive files by usual programs have about ten.
CHEAP_SCANS = 64
_START_OF_SCAN = b"\xff\xda"
_TIFF_BITS = 258
_PNG_BITS_AT = 24


@dataclass(frozen=True)
class Picture:
    """A decoded picture, without its pixels.

    Attributes:
        width: in px.
        height: in px.
        pixels: what the network sees of it, uint8 (size, size, C).
        image_hash: difference hash; 0 where no PNG was asked for.
        digest: SHA-256 of the decoded pixels (``pixel_digest``); empty where no PNG was asked for.
        png: its pixels as a PNG without metadata; empty where nobody asked for it.
    """

    width: int
    height: int
    pixels: Pixels
    image_hash: int = 0
    digest: bytes = b""
    png: bytes = b""


@dataclass(frozen=True)
class Cost:
    """What decoding takes.

    Attributes:
        memory: bytes.
        cheap: whether it is little enough for a process that serves others meanwhile.
    """

    memory: int
    cheap: bool


def cost_of(data: bytes) -> Cost:
    """What decoding a picture takes, by its header alone; a file that is no picture costs nothing more."""
    try:
        with Image.open(BytesIO(data), formats=ALLOWED_FORMATS) as image:
            n_pixels, cheap = image.width * image.height, not _is_deep(image, data) and not _has_many_scans(image, data)
    except Exception:  # whatever it is, decoding says it better
        return Cost(0, True)
    return Cost(BYTES_PER_PIXEL * n_pixels, n_pixels <= CHEAP_PIXELS and cheap)


def _is_deep(image: Image.Image, data: bytes) -> bool:
    """Whether a sample has more than 8 bits."""
    if image.format == "PNG":
        return data[_PNG_BITS_AT] > 8
    if image.format == "TIFF":
        bits = image.tag_v2.get(_TIFF_BITS, (1,))  # type: ignore[attr-defined]
        return bool(max(bits if isinstance(bits, tuple) else (bits,)) > 8)
    return False


def _has_many_scans(image: Image.Image, data: bytes) -> bool:
    """Whether decoding takes longer than the pixels let expect; packed values never look like the marker of a scan."""
    return image.format == "JPEG" and data.count(_START_OF_SCAN) > CHEAP_SCANS


def read_picture(data: bytes, preprocessing: Preprocessing, *, png: bool) -> Picture:
    """Decode a picture.

    Args:
        data: PNG, JPEG or TIFF file.
        preprocessing: of the release that predicts it.
        png: whether it is wanted as a PNG too, to be stored; hash and digest, which only what is stored needs, cost
            more than decoding.

    Raises:
        ImageRejectedError: it cannot be read safely.
    """
    image = decode_image(data)
    pixels = preprocessing.pixels(image)
    if not png:
        return Picture(image.width, image.height, pixels)
    digest = pixel_digest(image)
    return Picture(image.width, image.height, pixels, difference_hash(image), digest, encode_png(image))
