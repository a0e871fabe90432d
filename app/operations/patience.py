"""Writing what can wait: a lock that does not come in time is tried again."""

import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.context import Context
from app.platform.errors import Unavailable

# how long somebody waits for others who have the rows, an erasure say, and how long between two tries
_PATIENCE, _PAUSE = 60.0, 0.2
_Result = TypeVar("_Result")


def write_patiently(context: Context, work: Callable[[Session], _Result], say: Callable[[str], object]) -> _Result:
    """Write in a transaction of its own, as soon as nobody else has the rows.

    Args:
        context: parts of the service.
        work: writes; is called again after a lock that did not come in time.
        say: told whenever it waits.

    Raises:
        Unavailable: somebody has had them for too long.
        OperationalError: the database is away.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            with context.database.write() as session:  # of what it writes its end makes an event
                return work(session)
        except OperationalError as exc:
            if exc.connection_invalidated:
                raise
            if time.monotonic() > until:
                raise Unavailable("others are using the rows of earlier cases; try again shortly") from exc
        say("earlier images: waiting for others who are using their rows")
        time.sleep(_PAUSE)
