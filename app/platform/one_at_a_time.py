"""What only one transaction at a time may do, or many at once while nobody does the opposite.

On PostgreSQL each is an advisory lock that ends with the transaction, so it works through a pooler. On SQLite only one
transaction writes at a time anyway.
"""

from enum import IntEnum

from sqlalchemy import func, select
from sqlalchemy.orm import Session

# first key of these advisory locks, to distinguish them from others
_LOCK_CLASS = 1_397_706_835


class Turn(IntEnum):
    """What transactions take turns at.

    Attributes:
        KEY: signing with the present key, which many do at once, or putting another one in force.
        GATE: counting the attempts on a champion.
        READER_MODEL: numbering the models of annotators.
        RECALIBRATION: asking for the recalibration that is due.
    """

    KEY = 1
    GATE = 2
    READER_MODEL = 3
    RECALIBRATION = 4


def take_turn(session: Session, turn: Turn, *, shared: bool = False) -> None:
    """Wait until nobody else has this turn; it is given back at the end of the transaction.

    Args:
        session: writing session.
        turn: which.
        shared: together with others who share it.
    """
    if session.get_bind().dialect.name == "postgresql":
        lock = func.pg_advisory_xact_lock_shared if shared else func.pg_advisory_xact_lock
        session.execute(select(lock(_LOCK_CLASS, int(turn))))
