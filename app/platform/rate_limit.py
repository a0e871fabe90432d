"""How many requests one caller may send per minute, counted in this process."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from app.platform.errors import RateLimited

_SECONDS = 60.0


class RateLimit:
    """In no sixty seconds more than so many requests per caller, wherever these seconds begin.

    Args:
        per_minute: requests of one caller; 0 for no limit.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock, self._lock = per_minute, clock, threading.Lock()
        #: when each caller's requests of the last minute came; who asked least recently is first
        self._came: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, caller: str) -> None:
        """Count a request, unless it is refused.

        Raises:
            RateLimited: it is one too many; says when the next one is welcome.
        """
        if not self._limit:
            return
        with self._lock:
            now = self._clock()
            came = self._came.setdefault(caller, deque())
            self._came.move_to_end(caller)
            while came and came[0] <= now - _SECONDS:
                came.popleft()
            self._forget_who_is_gone(now)
            if len(came) < self._limit:
                came.append(now)
                return
            wait = came[0] + _SECONDS - now
        raise RateLimited(f"more than {self._limit} requests per minute; slow down", max(1, math.ceil(wait)))

    def _forget_who_is_gone(self, now: float) -> None:
        while len(self._came) > 1 and next(iter(self._came.values()))[-1] <= now - _SECONDS:
            self._came.popitem(last=False)
