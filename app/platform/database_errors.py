"""What an error of the database says about trying again."""

from sqlalchemy.exc import DBAPIError, OperationalError

# of PostgreSQL: a lock did not come, a statement took too long, two waited for each other
_BUSY = {"55P03", "57014", "40P01"}


def others_were_busy(exc: DBAPIError) -> bool:
    """Whether others had what somebody waited for, who may wait again."""
    return getattr(exc.orig, "sqlstate", None) in _BUSY or "database is locked" in str(exc.orig)


def may_be_tried_again(exc: DBAPIError) -> bool:
    """Whether the database was away, locked or full, or has ended the connection.

    PostgreSQL ends it where a thread was kept from the processor for too long within a transaction.
    """
    return isinstance(exc, OperationalError) or exc.connection_invalidated
