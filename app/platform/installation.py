"""One database, one key: a process that comes with another key is refused before it writes anything.

Coins, partitions and the audit chain follow from the key. A server that was started with another one by mistake would
toss other coins for the same cases and break the chain, and nothing would show it. So the database keeps a check value
of its key, from which the key cannot be computed.
"""

import hashlib
import hmac

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from app.platform import audit_chain, baseline
from app.platform.database import Database, insert_if_absent
from app.tables import Installation, now

_PURPOSE = b"check value of the installation's key"
# the oldest events, which were written with the key that the coins and partitions follow from
_OLDEST = 1000


class WrongKeyError(ValueError):
    """The key in use is not the one of this database."""


def key_check(key: bytes) -> str:
    """Check value of a key, HMAC-SHA256(key, a fixed text) in hexadecimal."""
    return hmac.new(key, _PURPOSE, hashlib.sha256).hexdigest()


def require_key(database: Database, key: bytes) -> bool:
    """Refuse a key that is not the one of this database; nothing is written.

    A database from before there were check values knows its key by its audit chain: most of its oldest events must
    have been written with this key.

    Args:
        database: with or without tables.
        key: the key in use.

    Returns:
        Whether the database has its check value.

    Raises:
        WrongKeyError: it is another installation's key.
    """
    with database.read() as session:
        known = _check_value(session)
        right = _wrote_the_chain(session, key) if known is None else hmac.compare_digest(known, key_check(key))
    if not right:
        raise WrongKeyError(
            "the key in use is not the key of this database, and nothing was written: give the key that the database "
            "was made with, by HOME/secret.key, SECONDREAD_SECRET_KEY or SECONDREAD_SECRET_KEY_FILE"
        )
    return known is not None


def claim(database: Database, key: bytes) -> None:
    """Refuse a key that is not the one of this database; one without a check value gets it now.

    Rows from before events carried the digests of rows get a baseline, so that they are covered from now on.

    Args:
        database: with the current schema.
        key: the key in use.

    Raises:
        WrongKeyError: it is another installation's key.
    """
    if not require_key(database, key):
        with database.write() as session:
            insert_if_absent(session, Installation, {"id": 1, "key_check": key_check(key), "created_at": now()})
            baseline.write_if_missing(session, key)
        require_key(database, key)  # a process with another key may have been faster
        return
    with database.read() as session:
        covered = baseline.is_there(session)
    if not covered:
        with database.write() as session:
            baseline.write_if_missing(session, key)


def _check_value(session: Session) -> str | None:
    if not inspect(session.connection()).has_table(Installation.__tablename__):
        return None
    return session.execute(select(Installation.key_check)).scalar_one_or_none()


def _wrote_the_chain(session: Session, key: bytes) -> bool:
    if not inspect(session.connection()).has_table("audit_events"):
        return True
    n_events, n_confirmed = audit_chain.confirmed(session, key, _OLDEST)
    return n_events == 0 or 2 * n_confirmed > n_events
