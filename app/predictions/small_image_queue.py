"""Queue of predictions of small images: as many at once as there are cores, in order of arrival.

What such a prediction needs most is the interpreter. Eight threads that ask for it spend a third of their time on
handing it over, and push each other's data out of the caches; whoever waits here costs nothing.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, Generic, TypeVar

from app.http.errors import ServiceOverloaded
from app.http.observability import WAITING

#: At once at most, on any number of cores: more would wait for the interpreter, not for a core.
MAX_CONCURRENT_RUNS = 4
WAIT_SECONDS = 10.0
#: Weight of the newest piece of work in the time that one takes.
_NEWEST = 0.2
_Made = TypeVar("_Made")


class SmallImageQueue:
    """Queue that runs a limited number of short tasks of one event loop at once."""

    def __init__(self, cores: int, queue: int) -> None:
        self.at_once, self._queue = min(cores, MAX_CONCURRENT_RUNS), queue
        self._threads = self._new_threads()
        self._lock = threading.Lock()
        self._under_way, self._seconds = 0, 0.0
        # when what runs has begun
        self._begun_at: dict[int, float] = {}

    @property
    def waiting(self) -> int:
        """Number of waiting tasks."""
        return max(0, self._under_way - self.at_once)

    async def run(self, work: Callable[[], _Made]) -> _Made:
        """Run the work in a thread when its turn comes, and return its result."""
        if self.waiting >= self._queue:
            raise ServiceOverloaded(
                "too many predictions are waiting; try again shortly", self._seconds_for(self.waiting + 1)
            )
        turn = _QueuedWork(self._threads.submit(copy_context().run, self._begun, work))
        WAITING.inc()
        with self._lock:
            self._under_way += 1
        turn.future.add_done_callback(self._ended)
        try:
            return await turn.taken(WAIT_SECONDS) if self.waiting else await asyncio.wrap_future(turn.future)
        except _WaitedTooLongError as exc:
            detail = f"the prediction waited {WAIT_SECONDS:.0f} s; try again shortly"
            raise ServiceOverloaded(detail, self._seconds_for(self.waiting)) from exc

    def close(self) -> None:
        """End the threads, and what waits for one; whoever goes on has others."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads = self._new_threads()

    def _new_threads(self) -> ThreadPoolExecutor:
        """Threads that take what comes in the order in which it came; none is started before there is work for it."""
        return ThreadPoolExecutor(self.at_once, "front")

    def _begun(self, work: Callable[[], _Made]) -> _Made:
        WAITING.dec()
        started, thread = time.perf_counter(), threading.get_ident()
        self._begun_at[thread] = started
        try:
            return work()
        finally:
            del self._begun_at[thread]
            seconds = time.perf_counter() - started
            self._seconds += _NEWEST * (seconds - self._seconds) if self._seconds else seconds

    def _ended(self, future: "Future[Any]") -> None:
        """Free the place once the work has ended: whoever asked for it may be gone before."""
        with self._lock:
            self._under_way -= 1
        if future.cancelled():  # it never began
            WAITING.dec()

    def _seconds_for(self, number: int) -> int | None:
        """Whole seconds that so many take, by recent ones and by what still runs; None before the first."""
        now = time.perf_counter()
        one = max([self._seconds, *(now - begun for begun in list(self._begun_at.values()))])
        return max(1, math.ceil(number * one / self.at_once)) if self._seconds or one > 1 else None


class _WaitedTooLongError(Exception):
    """A turn did not come."""


class _QueuedWork(Generic[_Made]):
    """A task that waits for a thread."""

    def __init__(self, future: "Future[_Made]") -> None:
        self.future, self._given_up = future, False

    async def taken(self, seconds: float) -> _Made:
        """Return the result of the work if it starts in time; started work is not cancelled."""
        late = asyncio.get_running_loop().call_later(seconds, self._give_up)
        try:
            return await asyncio.wrap_future(self.future)
        except asyncio.CancelledError as exc:
            if self._given_up:
                raise _WaitedTooLongError from exc
            raise
        finally:
            late.cancel()

    def _give_up(self) -> None:
        self._given_up = self.future.cancel()
