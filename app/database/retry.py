"""Writing what can wait: a lock that does not come in time is tried again."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.database.engine import Database
from app.http.errors import Unavailable, others_were_busy, took_too_long

# how long somebody waits for others who have the rows, an erasure say, and how long between two tries
_PATIENCE, _PAUSE = 60.0, 0.2
_Result = TypeVar("_Result")


def write_patiently(
    database: Database,
    work: Callable[[Session], _Result],
    busy: str,
    say: Callable[[str], object] = lambda _: None,
    *,
    key: Literal["shared", "alone"] = "shared",
    seconds: float | None = None,
) -> _Result:
    """Write in a transaction of its own, as soon as nobody else has what it needs.

    Args:
        database: to write to.
        work: writes; is called again after a lock that did not come in time.
        busy: what others are doing then, as "others are using the rows of earlier cases".
        say: told so whenever it waits.
        key: as of ``Database.write``.
        seconds: how long it waits; a minute where left out, and 0 to try once.

    Raises:
        Unavailable: others have had it for too long.
        OperationalError: the database is away.
    """
    until = time.monotonic() + (_PATIENCE if seconds is None else seconds)
    while True:
        try:
            with database.write(key) as session:  # of what it writes its end makes an event
                return work(session)
        except OperationalError as exc:
            # who has the key alone waits for nobody else: what takes them too long is their own work
            if not (others_were_busy(exc) or (key == "shared" and took_too_long(exc))):
                raise
            if time.monotonic() >= until:
                raise Unavailable("others have been using what this needs for too long; try again shortly") from exc
        say(f"waiting: {busy}")
        time.sleep(_PAUSE)
