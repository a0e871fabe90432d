"""Memory that requests share: whoever finds none left waits for a short time, or is asked to come back."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.platform.errors import Overloaded

WAIT_SECONDS = 10.0
# of malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MIB = 1024**2


class MemoryBudget:
    """A number of bytes, taken and given back.

    Args:
        size: bytes.
        queue: how many may wait for them.
    """

    def __init__(self, size: int, queue: int) -> None:
        self.size, self._left, self._queue, self._waiting = size, size, queue, 0
        self._changed = threading.Condition()

    @contextmanager
    def reserved(self, size: int) -> Iterator[None]:
        """Have some bytes while the block runs; more than there are at all count as all of them.

        Raises:
            Overloaded: too many wait, or it took too long.
        """
        size = min(size, self.size)
        self._take(size)
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()

    def _take(self, size: int) -> None:
        """Take bytes, or wait for them.

        Raises:
            Overloaded: too many wait, or it took too long.
        """
        with self._changed:
            if self._left < size:
                if self._waiting >= self._queue:
                    raise Overloaded("too many pictures are being decoded; try again shortly")
                self._waiting += 1
                try:
                    if not self._changed.wait_for(lambda: self._left >= size, WAIT_SECONDS):
                        raise Overloaded("other pictures are being decoded; try again shortly")
                finally:
                    self._waiting -= 1
            self._left -= size


def give_back_freed_memory() -> None:
    """Have large freed blocks returned to the system, rather than kept by each thread for its next one."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc alone
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MIB)
        mallopt(_M_TRIM_THRESHOLD, 8 * _MIB)
