"""A time by which a training stops, with everything kept that the next call needs."""

import time


class OutOfTimeError(Exception):
    """Time is up; what was done is kept, and the same call goes on from there."""


class Deadline:
    """Some seconds from now.

    Args:
        seconds: until then.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, negative afterwards."""
        return self._end - time.monotonic()

    def end(self) -> None:
        """Let it be now."""
        self._end = time.monotonic()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes so long ends in time."""
        return self.left >= seconds
