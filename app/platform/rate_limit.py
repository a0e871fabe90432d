"""How many requests one caller may send per minute, counted in this process."""

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

from app.platform.errors import RateLimited
from ml.messages import Message

_SECONDS = 60.0


class RateLimit:
    """In no sixty seconds more than so many requests per caller, wherever these seconds begin.

    Args:
        per_minute: requests of one caller; 0 for no limit.
        clock: seconds that never go back.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._clock, self._lock = per_minute, clock, threading.Lock()
        #: until when each caller's requests of the last minute count; who asked least recently is first
        self._until: OrderedDict[str, deque[float]] = OrderedDict()

    def count(self, caller: str) -> None:
        """Count a request, unless it is refused.

        Raises:
            RateLimited: it is one too many; says when the next one is welcome.
        """
        if not self._limit:
            return
        with self._lock:
            now = self._clock()
            until = self._until.setdefault(caller, deque())
            self._until.move_to_end(caller)
            while until and until[0] <= now:
                until.popleft()
            self._forget_who_is_gone(now)
            if len(until) < self._limit:
                until.append(now + _SECONDS)
                return
            wait = until[0] - now
        raise RateLimited(
            Message("more than {limit} requests per minute; slow down", limit=self._limit), max(1, math.ceil(wait))
        )

    def _forget_who_is_gone(self, now: float) -> None:
        while len(self._until) > 1 and next(iter(self._until.values()))[-1] <= now:
            self._until.popitem(last=False)
