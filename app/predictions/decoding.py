"""Decodes uploaded images within a memory budget: cheap ones here, others in sandboxed processes."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.http.errors import InvalidValue, Problem, TooLarge
from app.http.limiter import CHEAP_PICTURES, LARGE_PICTURES, Limiter, LimitPlace
from ml.images.picture import DecodingCost, Picture, estimate_decoding_cost, read_limited, read_picture
from ml.images.preprocess import ImageRejectedError, Preprocessing


class UnsupportedImage(Problem):
    """Not an image format that is read here."""

    status, code, title = 415, "unsupported-image", "Unsupported image"


class BrokenImage(InvalidValue):
    """An image of a known format that cannot be decoded or used."""

    code, title = "broken-image", "Unusable image"


# what a process of its own takes before it decodes anything
_PROCESS_MEMORY = 96 * 1024**2
_SECONDS = 20
_KINDS = {"too-large": TooLarge, "format": UnsupportedImage}


class ImageDecoder:
    """Decoder of uploaded images with a memory budget."""

    def __init__(self, memory: int) -> None:
        self.large, self.cheap = Limiter(LARGE_PICTURES, memory), Limiter(CHEAP_PICTURES)

    @contextmanager
    def opened(
        self, data: bytes, preprocessing: Preprocessing, *, png: bool = False, cost: DecodingCost | None = None
    ) -> Iterator[Picture]:
        """Decode an image; its memory is reserved until the block ends."""
        cost = cost or estimate_decoding_cost(data)
        limiter = self.cheap if cost.cheap else self.large
        with LimitPlace(limiter, cost.memory if cost.cheap else cost.memory + _PROCESS_MEMORY):
            try:
                if cost.cheap:
                    picture = read_picture(data, preprocessing, png=png)
                else:
                    picture = read_limited(data, preprocessing, png=png, memory=cost.memory, seconds=_SECONDS)
            except ImageRejectedError as exc:
                raise _KINDS.get(exc.reason, BrokenImage)(str(exc)) from exc
            yield picture
