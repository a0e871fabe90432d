"""Stored form of an uploaded image, and the cost of decoding it."""

from dataclasses import dataclass

from ml.images.image_container_checks import file_facts
from ml.images.image_statistics import difference_hash
from ml.images.pixel_digest import pixel_digest
from ml.images.preprocess import MAX_PIXELS, Pixels, Preprocessing, decode_image, encode_png

#: Bytes of memory per pixel: 27 at most of any kind while it is decoded, laid on white, converted and packed (measured,
#: transparent TIFF), and its PNG twice where it is handed over.
BYTES_PER_PIXEL = 36
#: A picture of at most so many pixels of 8 bits is cheap, if its file is plain.
CHEAP_PIXELS = 1_000_000


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
class DecodingCost:
    """Cost of decoding an image.

    Attributes:
        memory: bytes.
        cheap: whether it is little enough for a process that serves others meanwhile.
    """

    memory: int
    cheap: bool


def estimate_decoding_cost(data: bytes) -> DecodingCost:
    """Estimate an image's decoding cost from its file header; a file that is no image costs nothing.

    Nothing is opened for it: what is not cheap may be made to take minutes of whoever opens it.
    """
    facts = file_facts(data)
    if facts is None:
        return DecodingCost(0, True)  # decoding says so
    n_pixels = min(facts.width * facts.height or MAX_PIXELS, MAX_PIXELS)  # more are refused before they are decoded
    return DecodingCost(BYTES_PER_PIXEL * n_pixels, facts.plain and 0 < n_pixels <= CHEAP_PIXELS)


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
