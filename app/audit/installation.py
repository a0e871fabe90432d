"""Binds a database to its key ring; a process with other keys is refused before it writes."""

from collections.abc import Callable

from sqlalchemy import exists, inspect, select
from sqlalchemy.orm import Session

from app.audit.chain.events import lock_head, write_baseline
from app.audit.chain.keys import AuditKeys
from app.database.engine import Database, insert_if_absent, write_with_retry
from app.database.tables import AuditEvent, Installation, time_of

_OTHERS_SIGN = "another process, perhaps one that is starting too, is writing to the database"


class WrongKeyError(ValueError):
    """The keys in use are not those of this database."""


def require_first_key(database: Database, keys: AuditKeys) -> int:
    """Refuse a key ring that does not begin with the keys of this database; nothing is written."""
    with database.read() as session:
        stored_checks = _check_values(session)
        own = [signer.check for signer in keys.signers[: len(stored_checks)]]
        if stored_checks == own and (stored_checks or not _has_events(session)):
            return len(stored_checks)
    if stored_checks[: len(own)] == own and own:
        raise WrongKeyError(
            "the key of this database was rotated, and the key ring in use lacks the new one; nothing was written: "
            "give the ring that `secondread db rotate-key` wrote"
        )
    raise WrongKeyError(
        "the key in use is not the key of this database, and nothing was written: give the key that the database "
        "was made with, by HOME/secret.key, SECONDREAD_SECRET_KEY or SECONDREAD_SECRET_KEY_FILE"
    )


def require_keys(database: Database, keys: AuditKeys) -> bool:
    """Refuse a key ring that is not exactly the one of this database; nothing is written."""
    n_known = require_first_key(database, keys)
    if len(keys.signers) > max(n_known, 1):
        raise WrongKeyError(
            "the key ring in use has a key that this database does not know yet, and nothing was written: run "
            "`secondread db rotate-key`, which finishes the rotation"
        )
    return n_known > 0


def claim_database(
    database: Database, keys: AuditKeys, say: Callable[[str], object] = lambda _: None, seconds: float | None = None
) -> None:
    """Bind the key ring to the database, or refuse keys that are not the database's."""
    # The rows that came with the tables get a baseline then. Of several processes that start at once one writes it, and
    # the others wait.

    def begin(session: Session) -> None:
        lock_head(session)  # of several processes one goes on, and no event comes before the baseline
        check = keys.signers[0].check
        if insert_if_absent(session, Installation, {"id": 1, "key_check": check, "created_at": time_of(session)}):
            write_baseline(session, keys)

    if not require_keys(database, keys):
        write_with_retry(database, begin, _OTHERS_SIGN, say, seconds=seconds)
        require_keys(database, keys)  # a process with another key may have been faster


def _check_values(session: Session) -> list[str]:
    if not inspect(session.connection()).has_table(Installation.__tablename__):
        return []
    return list(session.execute(select(Installation.key_check).order_by(Installation.id)).scalars())


def _has_events(session: Session) -> bool:
    if not inspect(session.connection()).has_table(AuditEvent.__tablename__):
        return False
    return bool(session.execute(select(exists(select(AuditEvent.sequence)))).scalar())
