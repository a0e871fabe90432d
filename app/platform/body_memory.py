"""Memory for bodies that are being read or used: whoever finds none left waits, without having read a byte."""

import asyncio

from app.platform.errors import Overloaded


class BodyMemory:
    """A number of bytes on one event loop, taken and given back.

    Args:
        size: bytes.

    Attributes:
        left: bytes that nobody has.
        waiting: those who wait for some.
    """

    def __init__(self, size: int) -> None:
        self.size = self.left = size
        self.waiting: list[asyncio.Future[None]] = []

    async def take(self, size: int, seconds: float) -> int:
        """Take bytes, or wait for them; what fits is not kept waiting by what does not.

        Args:
            size: bytes; more than there are at all count as all of them.
            seconds: to wait at most.

        Returns:
            How many were taken, to be given back.

        Raises:
            Overloaded: it took too long.
        """
        size = min(size, self.size)
        if self.left < size:
            try:
                async with asyncio.timeout(seconds):
                    await self._wait_for(size)
            except TimeoutError as exc:
                raise Overloaded("too many uploads are under way; try again shortly") from exc
        self.left -= size
        return size

    async def _wait_for(self, size: int) -> None:
        """Look again at every change until so many bytes are left."""
        while self.left < size:
            change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiting.append(change)
            try:
                await change
            finally:
                self.waiting.remove(change)

    def give_back(self, size: int) -> None:
        """Give bytes back, and have everybody who waits look again."""
        self.left += size
        for change in self.waiting:
            if not change.done():
                change.set_result(None)
