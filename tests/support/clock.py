"""The clock of a service under test."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from app.database.tables import utc_now


class SettableClock:
    """A clock that is right until a test sets it."""

    def __init__(self) -> None:
        self.stopped_at: datetime | None = None
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return utc_now() + self.ahead if self.stopped_at is None else self.stopped_at

    @contextmanager
    def off_by(self, shift: timedelta) -> Iterator[None]:
        """Let the clock be wrong until the end of the block."""
        self.ahead = shift
        yield
        self.ahead = timedelta()
