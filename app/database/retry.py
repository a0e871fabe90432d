"""Retries low-priority writes on lock timeouts."""

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.database.engine import Database
from app.http.errors import ServiceUnavailable, is_lock_conflict

# how long somebody waits for others who have the rows, an erasure say, and how long between two tries
_PATIENCE, _PAUSE = 60.0, 0.2
_Result = TypeVar("_Result")


def write_with_retry(
    database: Database,
    work: Callable[[Session], _Result],
    busy: str,
    say: Callable[[str], object] = lambda _: None,
    *,
    seconds: float | None = None,
) -> _Result:
    """Write in an own transaction, retried while locks are held elsewhere."""
    until = time.monotonic() + (_PATIENCE if seconds is None else seconds)
    while True:
        try:
            with database.write() as session:  # of what it writes its end makes an event
                return work(session)
        except OperationalError as exc:
            if not is_lock_conflict(exc):  # a statement that takes too long is own work, not waiting
                raise
            if time.monotonic() >= until:
                raise ServiceUnavailable(
                    "others have been using what this needs for too long; try again shortly"
                ) from exc
        say(f"waiting: {busy}")
        time.sleep(_PAUSE)
