"""What an error of the database says about trying again."""

from sqlalchemy.exc import DBAPIError, OperationalError

# of PostgreSQL: a lock did not come, two waited for each other
_LOCKED = {"55P03", "40P01"}


def others_were_busy(exc: DBAPIError) -> bool:
    """Whether others had what somebody waited for, who may wait again."""
    return getattr(exc.orig, "sqlstate", None) in _LOCKED or "database is locked" in str(exc.orig)


def took_too_long(exc: DBAPIError) -> bool:
    """Whether PostgreSQL ended a statement for its time, of which waiting for rows, one after the other, is a part."""
    return getattr(exc.orig, "sqlstate", None) == "57014"


def may_be_tried_again(exc: DBAPIError) -> bool:
    """Whether the database was away, locked or full, or has ended the connection.

    PostgreSQL ends it where a thread was kept from the processor for too long within a transaction.
    """
    return isinstance(exc, OperationalError) or exc.connection_invalidated
