"""Heavy reading from a streaming replica, where there is one, and never older than what was committed when asked.

A read for a report asks the primary how far its log goes, and waits for a moment until the replica has come so far. One
that has not, does not answer, or is no replica of this database leaves the reading to the primary, as if there were
none; nobody asks it again for a while. Within the read the replica shows one moment.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import structlog
from fastapi import Depends, Request
from prometheus_client import Counter
from sqlalchemy import inspect, make_url, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.platform import audit_chain
from app.platform.database import Database
from app.tables import Clock, Installation, now

READS = Counter("secondread_report_reads", "Reads for reports, by the database that answered.", ["database"])
#: How long a read waits for the replica to come so far, and how long one that did not is left alone.
WAIT_SECONDS, PAUSE_SECONDS = 1.0, 10.0
#: Reads from the replica at once: as long as one that hangs lets them wait, the others are the primary's.
AT_ONCE = 5
#: What libpq is told, so that a machine that has gone is noticed.
_IMPATIENT = {"connect_timeout": "2", "tcp_user_timeout": "5000"}
_log = structlog.get_logger("secondread")


class Reports:
    """Sessions for reading what takes long.

    Args:
        replica_url: SQLAlchemy URL of the replica; None: there is none.
        clock: of its sessions.
    """

    def __init__(self, replica_url: str | None, clock: Clock = now) -> None:
        self._replica = None if replica_url is None else Database(_hasty(replica_url), clock=clock)
        self._pause_until, self._places = 0.0, threading.BoundedSemaphore(AT_ONCE)

    @contextmanager
    def read(self, primary: Database) -> Iterator[Session]:
        """Session for reading that sees one moment of the replica, or the primary where that cannot be.

        Args:
            primary: the database of the service.

        Raises:
            DBAPIError: the replica went away meanwhile; the next read comes from the primary.
        """
        with ExitStack() as held:
            session = self._on_replica(held, primary)
            READS.labels("primary" if session is None else "replica").inc()
            if session is None:
                yield held.enter_context(primary.read())
                return
            try:
                yield session
            except DBAPIError as exc:
                self._leave_alone(type(exc.orig).__name__)
                raise

    def check_at_start(self, primary: Database) -> str | None:
        """Refuse a replica of another installation.

        Args:
            primary: the database of the service.

        Returns:
            What to warn of where it does not answer yet, None otherwise.

        Raises:
            ValueError: it is another installation's database.
        """
        if self._replica is None:
            return None
        try:
            with self._replica.read() as session:
                there = _installation(session)
        except SQLAlchemyError as exc:
            self._leave_alone(type(exc).__name__)
            return "the database of SECONDREAD_DATABASE_READ_URL does not answer; reports are read from the primary"
        with primary.read() as session:
            here = _installation(session)
        if there != here[: len(there)]:  # a replica that is behind may lack what is new
            raise ValueError(
                "SECONDREAD_DATABASE_READ_URL: it is no replica of the database of SECONDREAD_DATABASE_URL"
            )
        return None

    def close(self) -> None:
        """End the connections that are kept."""
        if self._replica is not None:
            self._replica.engine.dispose()

    def _on_replica(self, held: ExitStack, primary: Database) -> Session | None:
        """Session that has everything that the primary has committed until now; None where there is none.

        Args:
            held: ends the session.
            primary: the database of the service.
        """
        if self._replica is None or time.monotonic() < self._pause_until or not self._places.acquire(blocking=False):
            return None
        held.callback(self._places.release)
        with primary.read() as session:
            log_end = session.execute(text("SELECT pg_current_wal_flush_lsn()::text")).scalar_one()
            head, schema = audit_chain.head_of(session), _schema(session)
        why = "it is behind, or no replica of this database"
        try:
            if _waited_for(self._replica, log_end):
                session = held.enter_context(self._replica.read())
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                # asked in the very moment that is shown: behind one address there may be several replicas
                if audit_chain.holds(session, *head) and _schema(session) == schema:
                    return session
        except SQLAlchemyError as exc:
            why = type(exc).__name__
        held.close()
        self._leave_alone(why)
        return None

    def _leave_alone(self, why: str) -> None:
        self._pause_until = time.monotonic() + PAUSE_SECONDS
        _log.warning("reports are not read from the replica for a while", why=why)


def _waited_for(replica: Database, log_end: str) -> bool:
    """Whether a replica has replayed the primary's log up to there, after a short wait."""
    query = text("SELECT pg_is_in_recovery() AND pg_last_wal_replay_lsn() >= CAST(:log_end AS pg_lsn)")
    deadline, pause = time.monotonic() + WAIT_SECONDS, 0.005
    while True:
        with replica.read() as session:
            if session.execute(query, {"log_end": log_end}).scalar_one():
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


def _schema(session: Session) -> str:
    return str(session.execute(text("SELECT version_num FROM alembic_version")).scalar_one())


def _installation(session: Session) -> list[tuple[object, ...]]:
    """Rows that no other installation has; none of a database without tables."""
    if not inspect(session.connection()).has_table(Installation.__tablename__):
        return []
    columns = (Installation.id, Installation.key_check, Installation.created_at)
    return [tuple(row) for row in session.execute(select(*columns).order_by(Installation.id))]


def _hasty(url: str) -> str:
    """An address at which nobody waits long for a connection, unless it says how long itself."""
    parts = make_url(url)
    parts = parts.set(query=_IMPATIENT | dict(parts.query))
    return parts.render_as_string(hide_password=False)


def get_report_reader(request: Request) -> Iterator[Session]:
    """Reading session of a request that takes long."""
    reports: Reports = request.app.state.reports
    with reports.read(request.app.state.database) as session:
        yield session


ReportReader = Annotated[Session, Depends(get_report_reader, scope="function")]
