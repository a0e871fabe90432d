"""Decoding uploaded pictures within a budget of memory: cheap ones here, others in limited processes of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from app.http.errors import BrokenImage, TooLarge, UnsupportedImage
from app.http.limits import MemoryBudget
from ml.images.limited import read_limited
from ml.images.picture import Cost, Picture, cost_of, read_picture
from ml.images.preprocess import ImageRejectedError, Preprocessing

#: Bytes for the cheap pictures that are decoded at the same time; one takes 40 MB at most.
CHEAP_MEMORY = 256 * 1024**2
# what a process of its own takes before it decodes anything
_PROCESS_MEMORY = 96 * 1024**2
_CHEAP_QUEUE, _QUEUE = 8, 2
_SECONDS = 20
_KINDS = {"too-large": TooLarge, "format": UnsupportedImage}


class Pictures:
    """Where pictures are decoded.

    Args:
        memory: bytes for all that are not cheap, together.
    """

    def __init__(self, memory: int) -> None:
        self._memory, self._cheap = MemoryBudget(memory, _QUEUE), MemoryBudget(CHEAP_MEMORY, _CHEAP_QUEUE)

    @contextmanager
    def opened(
        self, data: bytes, preprocessing: Preprocessing, *, png: bool = False, cost: Cost | None = None
    ) -> Iterator[Picture]:
        """A decoded picture; its memory counts until the block ends.

        Args:
            data: of the file.
            preprocessing: of the release that predicts it.
            png: whether it is wanted as a PNG too, with hash and digest: what is stored.
            cost: of decoding it, where it is known already.

        Raises:
            TooLarge: too many pixels.
            UnsupportedImage: not a format that is read.
            BrokenImage: empty, damaged, too small or with several frames.
            Overloaded: too many pictures are being decoded.
        """
        cost = cost or cost_of(data)
        budget = self._cheap if cost.cheap else self._memory
        with budget.reserved(cost.memory if cost.cheap else cost.memory + _PROCESS_MEMORY):
            try:
                if cost.cheap:
                    picture = read_picture(data, preprocessing, png=png)
                else:
                    picture = read_limited(data, preprocessing, png=png, memory=cost.memory, seconds=_SECONDS)
            except ImageRejectedError as exc:
                raise _KINDS.get(exc.reason, BrokenImage)(str(exc)) from exc
            yield picture
