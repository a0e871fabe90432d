"""Writing what can wait: a lock that does not come in time is tried again."""

import time
from collections.abc import Callable
from typing import Literal, TypeVar

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.platform.database import Database
from app.platform.errors import Unavailable

# how long somebody waits for others who have the rows, an erasure say, and how long between two tries
_PATIENCE, _PAUSE = 60.0, 0.2
# of PostgreSQL: a lock did not come, a statement took too long, two waited for each other
_OTHERS_WERE_BUSY = {"55P03", "57014", "40P01"}
_Result = TypeVar("_Result")


def write_patiently(
    database: Database,
    work: Callable[[Session], _Result],
    busy: str,
    say: Callable[[str], object] = lambda _: None,
    *,
    key: Literal["shared", "alone"] = "shared",
) -> _Result:
    """Write in a transaction of its own, as soon as nobody else has what it needs.

    Args:
        database: to write to.
        work: writes; is called again after a lock that did not come in time.
        busy: what others are doing then, as "others are using the rows of earlier cases".
        say: told whenever it waits.
        key: as of ``Database.write``.

    Raises:
        Unavailable: others have had it for too long.
        OperationalError: the database is away.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            with database.write(key) as session:  # of what it writes its end makes an event
                return work(session)
        except OperationalError as exc:
            if not _others_were_busy(exc):
                raise
            if time.monotonic() > until:
                raise Unavailable(f"{busy}; try again shortly") from exc
        say(f"waiting: {busy}")
        time.sleep(_PAUSE)


def _others_were_busy(exc: OperationalError) -> bool:
    return getattr(exc.orig, "sqlstate", None) in _OTHERS_WERE_BUSY or "database is locked" in str(exc.orig)
