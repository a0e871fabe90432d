"""Links waiting audit events on PostgreSQL, so that writers do not wait for each other.

A writer draws a stamp for its event from a counter, after it has written the rows that the event reports, and commits.
The sealer, one at a time, links all events that are committed and wait, in the order of their stamps. Why that order is
right: let Y rest on X, because X was committed before Y's transaction began, or because Y's transaction changed a row
after X's had. Then X was committed before Y drew its stamp, so the stamp of X is smaller, and whoever sees Y sees X. So
X is linked in an earlier batch than Y, or before it in the same one. A transaction that stays open holds nobody up: its
event comes when it is committed, after everything that did not wait for it.
"""

import threading
from dataclasses import dataclass
from itertools import islice

import structlog
from sqlalchemy import exists, func, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain import events as chain_events
from app.audit.chain.keys import AuditKeys
from app.database.engine import Database
from app.database.tables import AuditEvent, time_of

#: How often the sealer looks.
SECONDS = 0.2
#: How long events may wait before it is worth asking who holds the sealer up.
PATIENCE_SECONDS = 1.0
_BATCH = 200
# beyond that many nobody needs to know how many wait
_COUNTED = 100_000
# how long a sealer rests that found its chain cut
_LOST_SECONDS = 60.0
_LINK = text(
    "UPDATE audit_events SET sequence = links.sequence, digest = links.digest, link_signature = links.signature FROM "
    "unnest(CAST(:stamps AS bigint[]), CAST(:sequences AS integer[]), CAST(:digests AS text[]), "
    "CAST(:signatures AS text[])) AS links(stamp, sequence, digest, signature) WHERE audit_events.stamp = links.stamp"
)
# of this version's schema, with which alone a worker starts
_WAITING = select(AuditEvent.__table__).where(AuditEvent.sequence.is_(None)).order_by(AuditEvent.stamp)
_WAITING = _WAITING.execution_options(yield_per=_BATCH)
# who keeps the sealer from the head, or from the events; those of a moment are sealers themselves
_HOLDERS = text(
    "SELECT DISTINCT pid, coalesce(nullif(application_name, ''), usename), xact_start "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'relation' AND granted AND "
    "(relation = 'audit_head'::regclass AND mode <> 'AccessShareLock' OR relation = 'audit_events'::regclass AND "
    "mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) "
    "AND pid <> pg_backend_pid() AND "
    # of another role's process a service does not learn since when
    "coalesce(xact_start, '-infinity') < clock_timestamp() - interval '1 second' ORDER BY pid"
)
_log = structlog.get_logger("secondread")


def link_waiting_batch(session: Session, keys: AuditKeys, *, wait: bool = True) -> int:
    """Link events that wait, the oldest stamps first, at most 200; those that are not as they were signed stay."""
    head = chain_events.lock_head(session, keys, wait=wait) if chain_events.is_linked_later(session) else None
    if head is None:
        return 0
    # one statement, after the lock: it sees everything that the sealer before has linked, and one moment
    signer = keys.signers[-1]
    with session.execute(_WAITING) as rows:
        them = map(chain_events.event_from_row, rows.mappings())
        events = list(islice((event for event in them if chain_events.is_as_signed_by(signer, event)), _BATCH))
    for event in events:
        chain_events.append_event(head, event, keys)
    if events:
        links = {
            "stamps": [event.stamp for event in events],
            "sequences": [event.sequence for event in events],
            "digests": [event.digest for event in events],
            "signatures": [event.link_signature for event in events],
        }
        session.execute(_LINK, links)
    return len(events)


def link_all_waiting(database: Database, keys: AuditKeys) -> int:
    """Link everything that waits; gives its number."""
    n_linked = 0
    while True:
        with database.write() as session:
            n_batch = link_waiting_batch(session, keys)
        n_linked += n_batch
        if n_batch < _BATCH:
            return n_linked


@dataclass(frozen=True)
class WaitingEvents:
    """Events that wait to be linked."""

    # how many, 100,000 for more
    n_events: int
    # for how long the oldest has waited; 0 where none waits
    seconds: float


def count_waiting_events(session: Session) -> WaitingEvents:
    """Events that wait to be linked: on SQLite none."""
    them = AuditEvent.sequence.is_(None)
    oldest = session.execute(
        select(AuditEvent.created_at).where(them).order_by(AuditEvent.stamp).limit(1)
    ).scalar_one_or_none()
    some = select(AuditEvent.stamp).where(them).limit(_COUNTED).subquery()
    n_events = session.execute(select(func.count()).select_from(some)).scalar_one()
    return WaitingEvents(n_events, 0.0 if oldest is None else max((time_of(session) - oldest).total_seconds(), 0.0))


def explain_link_delay(session: Session, n_workers: int) -> str | None:
    """Explain why events have waited for more than a second; None where none has."""
    wait = count_waiting_events(session)
    if wait.n_events == 0 or wait.seconds < PATIENCE_SECONDS:
        return None
    sentence = f"{wait.n_events:,} audit events wait to be linked, the oldest for {wait.seconds:,.0f} s: "
    holders = session.execute(_HOLDERS).all() if events.is_linked_later(session) else []
    if holders:
        names = ", ".join(f"process {pid} ({name})" for pid, name, _ in holders)
        return sentence + f"the chain is locked by {names}"
    return sentence + ("no worker lives" if n_workers == 0 else "the workers' log says why")


class ChainLost(ValueError):
    """The chain does not contain any more what this process has linked."""


class ChainLinker:
    """A thread that links what waits, several times per second; of several processes one at a time does."""

    # It links nothing to a chain that has lost the head which it linked last: whoever took links away and removed an
    # event would have the rest signed anew by it. After a restart only heads that are kept outside show that.

    def __init__(self, url: str, keys: AuditKeys) -> None:
        self._database, self._keys = Database(url, keys), keys
        self._head: tuple[int, str] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)

    def start(self) -> None:
        """Begin, on PostgreSQL; on SQLite nothing waits."""
        if self._database.engine.dialect.name == "postgresql":
            self._thread.start()

    def stop(self) -> None:
        """End after the batch at hand."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._database.engine.dispose()

    def _run(self) -> None:
        while not self._stopping.wait(SECONDS):
            try:
                while self.link() == _BATCH and not self._stopping.is_set():
                    pass
            except events.KeyRotated:  # the worker notices, and begins anew with the new ring
                _log.warning("the key was rotated; this process links no more events")
                return
            except ChainLost as exc:
                _log.error("events wait to be linked", reason=str(exc))
                self._stopping.wait(_LOST_SECONDS)
            except SQLAlchemyError as exc:
                _log.warning("events wait to be linked: the database refuses", error=type(exc).__name__)
                self._stopping.wait(1.0)

    def link(self) -> int:
        """Link a batch of what waits, unless another sealer is about to; gives its number."""
        with self._database.read() as session:
            if not session.execute(select(exists().where(AuditEvent.sequence.is_(None)))).scalar():
                return 0
        with self._database.write(key="unused") as session:  # who puts another one in force has locked the head
            if self._head is not None and not events.contains_head(session, *self._head):
                raise ChainLost(f"the audit chain has lost the head {self._head[0]}; run `secondread db verify`")
            n_linked = link_waiting_batch(session, self._keys, wait=False)
            head = events.read_head(session)
        self._head = head
        return n_linked
