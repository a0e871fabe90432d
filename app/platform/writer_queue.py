"""Who writes next to a SQLite database: the writers of one process take turns, in the order in which they came.

SQLite has one writer at a time, and whoever finds it taken sleeps for a while and tries again: the one who has waited
for the longest time is not the next, and nobody writes while all sleep. Other processes still meet at the lock itself.
"""

import threading
from collections import deque


class WriterQueue:
    """A queue of those who wait to write.

    Args:
        seconds: for which somebody waits at most.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._lock = seconds, threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Event] = deque()

    def enter(self) -> bool:
        """Take the turn, or wait until whoever leaves hands it over; whether it came in time."""
        with self._lock:
            if not self._taken:
                self._taken = True
                return True
            turn = threading.Event()
            self._waiting.append(turn)
        turn.wait(self._seconds)
        with self._lock:
            if turn.is_set():  # perhaps at the last moment
                return True
            self._waiting.remove(turn)
            return False

    def leave(self) -> None:
        """Hand the turn over to whoever has waited for the longest time."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken = False


class Place:
    """The turn of one session, which may begin and end several transactions, from any thread.

    Args:
        queue: of the database.
    """

    def __init__(self, queue: WriterQueue) -> None:
        self._queue, self._mine = queue, False

    def take(self) -> bool:
        """Wait for the turn; whether it came in time."""
        self._mine = self._mine or self._queue.enter()
        return self._mine

    def give_back(self) -> None:
        """Let the next one write, where it is this session's turn."""
        if self._mine:
            self._mine = False
            self._queue.leave()
