"""One database, one key ring: a process that comes with another one is refused before it writes anything.

Coins, partitions and the audit chain follow from the keys. A server that was started with another one by mistake would
toss other coins for the same cases and break the chain, and nothing would show it. So the database keeps a check value
of each key, from which the key cannot be computed.
"""

from collections.abc import Callable
from functools import partial

from sqlalchemy import inspect, select
from sqlalchemy.orm import Session

from app.platform import audit_chain, baseline
from app.platform.database import Database, insert_if_absent
from app.platform.keys import AuditKeys
from app.platform.patience import write_patiently
from app.tables import Installation, time_of

# the oldest events, which were written with the key that the coins and partitions follow from
_OLDEST = 1000
_OTHERS_SIGN = "another process, perhaps one that is starting too, is writing to the database"


class WrongKeyError(ValueError):
    """The keys in use are not those of this database."""


def require_first_key(database: Database, keys: AuditKeys) -> int:
    """Refuse a key ring that does not begin with the keys of this database; nothing is written.

    A database from before there were check values knows its key by its audit chain: most of its oldest events must
    have been written with the first key.

    Args:
        database: with or without tables.
        keys: the keys in use.

    Returns:
        How many keys the database knows.

    Raises:
        WrongKeyError: it is another installation's key, or the ring lacks one that was added by a rotation.
    """
    with database.read() as session:
        known = _check_values(session)
        own = [signer.check for signer in keys.signers[: len(known)]]
        if known == own and (known or _wrote_the_chain(session, keys)):
            return len(known)
    if known[: len(own)] == own and own:
        raise WrongKeyError(
            "the key of this database was rotated, and the key ring in use lacks the new one; nothing was written: "
            "give the ring that `secondread db rotate-key` wrote"
        )
    raise WrongKeyError(
        "the key in use is not the key of this database, and nothing was written: give the key that the database "
        "was made with, by HOME/secret.key, SECONDREAD_SECRET_KEY or SECONDREAD_SECRET_KEY_FILE"
    )


def require_keys(database: Database, keys: AuditKeys) -> bool:
    """Refuse a key ring that is not exactly the one of this database; nothing is written.

    Args:
        database: with or without tables.
        keys: the keys in use.

    Returns:
        Whether the database has its check values.

    Raises:
        WrongKeyError: it is another one.
    """
    n_known = require_first_key(database, keys)
    if len(keys.signers) > max(n_known, 1):
        raise WrongKeyError(
            "the key ring in use has a key that this database does not know yet, and nothing was written: run "
            "`secondread db rotate-key`, which finishes the rotation"
        )
    return n_known > 0


def claim(
    database: Database, keys: AuditKeys, say: Callable[[str], object] = lambda _: None, seconds: float | None = None
) -> None:
    """Refuse keys that are not those of this database; one without check values gets them now.

    Rows from before events carried the digests of rows get a baseline, so that they are covered from now on. Of
    several processes that start at once one writes it, which takes a while where there are many rows; the others wait.

    Args:
        database: with the current schema.
        keys: the keys in use.
        say: told whenever it waits.
        seconds: as of ``write_patiently``.

    Raises:
        WrongKeyError: they are another installation's.
        Unavailable: others do not let go of the key.
    """

    def begin(session: Session) -> None:
        check = keys.signers[0].check
        insert_if_absent(session, Installation, {"id": 1, "key_check": check, "created_at": time_of(session)})
        baseline.write_if_missing(session, keys)

    if not require_keys(database, keys):
        write_patiently(database, begin, _OTHERS_SIGN, say, key="alone", seconds=seconds)
        require_keys(database, keys)  # a process with another key may have been faster
        return
    with database.read() as session:
        covered = baseline.is_there(session)
    if not covered:
        write_patiently(
            database, partial(baseline.write_if_missing, keys=keys), _OTHERS_SIGN, say, key="alone", seconds=seconds
        )


def _check_values(session: Session) -> list[str]:
    if not inspect(session.connection()).has_table(Installation.__tablename__):
        return []
    return list(session.execute(select(Installation.key_check).order_by(Installation.id)).scalars())


def _wrote_the_chain(session: Session, keys: AuditKeys) -> bool:
    if not inspect(session.connection()).has_table("audit_events"):
        return True
    n_events, n_confirmed = audit_chain.confirmed(session, keys, _OLDEST)
    return n_events == 0 or 2 * n_confirmed > n_events
