"""How many requests one caller may send per minute, counted in this process."""

import math
import time

from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import SlidingWindowCounterRateLimiter

from app.platform.errors import RateLimited


class RateLimit:
    """A sliding window per caller.

    Args:
        per_minute: requests of one caller; 0 for no limit.
    """

    def __init__(self, per_minute: int) -> None:
        self._limit = RateLimitItemPerMinute(per_minute) if per_minute else None
        self._windows = SlidingWindowCounterRateLimiter(MemoryStorage())

    def count(self, caller: str) -> None:
        """Count a request.

        Raises:
            RateLimited: it is one too many; says when the next one is welcome.
        """
        if self._limit is None or self._windows.hit(self._limit, caller):
            return
        reset = self._windows.get_window_stats(self._limit, caller).reset_time
        raise RateLimited(
            f"more than {self._limit.amount} requests per minute; slow down", max(1, math.ceil(reset - time.time()))
        )
