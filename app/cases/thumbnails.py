"""Small copies of stored images, for lists of many cells."""

from io import BytesIO

from PIL import Image

#: Pixels of the longer side.
SIZE = 160


def shrink_image(png: bytes) -> bytes:
    """A WebP of at most ``SIZE`` pixels a side, from a PNG that the service has encoded itself."""
    with Image.open(BytesIO(png), formats=["PNG"]) as image:
        image.thumbnail((SIZE, SIZE))
        small = BytesIO()
        image.convert("RGB").save(small, "WEBP", quality=80)
    return small.getvalue()
