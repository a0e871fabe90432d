"""Named locks."""

from collections.abc import Iterable
from enum import IntEnum

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

# first key of these advisory locks, to distinguish them from others
_LOCK_CLASS = 1_397_706_835


class AdvisoryLock(IntEnum):
    """Named locks of transactions."""

    GATE = 2
    READER_MODEL = 3
    RECALIBRATION = 4
    NAMES = 5


def acquire_lock(session: Session, lock: AdvisoryLock) -> None:
    """Acquire a lock and keep it until the end of the transaction."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(_LOCK_CLASS, int(lock))))


# one key of 64 bits: never equal to one of the pairs above
_HOLD = text("SELECT pg_advisory_xact_lock(number) FROM unnest(CAST(:numbers AS bigint[])) AS number")
_HELD = "digests that are held"


def lock_digests(session: Session, digests: Iterable[str]) -> None:
    """Lock these digests until the end of the transaction."""
    # In one statement and one order, so that of two that want the same ones none waits for the other for ever: whoever
    # will need several asks for all of them at once, before anything else that others wait for. Those that are held are
    # not asked for again.
    if session.get_bind().dialect.name != "postgresql":
        return
    held: set[int] = session.info.setdefault(_HELD, set())
    new_numbers = {int.from_bytes(bytes.fromhex(digest)[:8], signed=True) for digest in digests} - held
    if new_numbers:
        session.execute(_HOLD, {"numbers": sorted(new_numbers)})
        held |= new_numbers
