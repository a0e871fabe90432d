"""Adapter to DBOS, the durable job engine, on the service's own database.

A request enqueues in its own transaction, so DBOS's tables lie in the same database: in the schema ``dbos`` on
PostgreSQL, in the same file on SQLite. There DBOS gets an engine of its own, of the same library and the same journal
mode as the service's: two SQLite libraries in one process cancel each other's locks, and the service's own engine
begins transactions where DBOS begins them itself. Everything private of DBOS that the service uses stands in this file.
"""

import threading
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, ColumnClause, Engine, NullPool, TableClause, column, select, table, update
from sqlalchemy.orm import Session

from app.database.engine import postgres_engine, sqlite_engine
from app.http import traces

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions

#: Name and version under which workflows are stored. The version stays: what is interrupted under one release of the
#: service continues under the next, because a job finds out by itself what it has done.
APPLICATION, APPLICATION_VERSION = "secondread", "1"
_SCHEMA = "dbos"
#: DBOS's tables, those that refer to others first.
TABLES = (
    "operation_outputs",
    "notifications",
    "workflow_events",
    "workflow_events_history",
    "streams",
    "event_dispatch_kv",
    "workflow_schedules",
    "application_versions",
    "queues",
    "workflow_input",
    "workflow_output",
    "workflow_status",
    "dbos_migrations",
)
_COLUMNS = (
    "workflow_uuid",
    "name",
    "status",
    "executor_id",
    "recovery_attempts",
    "created_at",
    "updated_at",
    "started_at_epoch_ms",
    "completed_at",
    "owner_xid",
    "queue_name",
    "deduplication_id",
)
_OPEN = ("ENQUEUED", "DELAYED", "PENDING")
#: Connections of the job engine above the usual ones.
_OVERFLOW = 5


def system_engine(url: str, *, pooled: bool = True) -> Engine:
    """Engine for DBOS itself, which begins its transactions on its own."""
    pool = None if pooled else NullPool
    if url.startswith("sqlite"):
        return sqlite_engine(url, isolation_level="IMMEDIATE", busy_seconds=30, poolclass=pool)
    return postgres_engine(url, overflow=_OVERFLOW, poolclass=pool)


def workflow_table(dialect: str) -> TableClause:
    """DBOS's table of workflows, as far as the service reads it."""
    return table("workflow_status", *map(column, _COLUMNS), schema=None if dialect == "sqlite" else _SCHEMA)


def read_traceparent(session: Session, workflow_id: str) -> str:
    """Traceparent of the request that asked for a workflow, empty where it was not traced."""
    attributes: ColumnClause[Any] = column("attributes", JSON)
    workflows = workflow_table(session.get_bind().dialect.name)
    query = select(attributes).select_from(workflows).where(workflows.c.workflow_uuid == workflow_id)
    stored_attributes = session.execute(query).scalar_one()
    return str(stored_attributes.get(traces.TRACEPARENT, "")) if isinstance(stored_attributes, dict) else ""


def output_table(dialect: str) -> TableClause:
    """DBOS's table of results and errors, as far as the service reads it."""
    columns: list[ColumnClause[Any]] = [column(name) for name in ("workflow_uuid", "output", "error")]
    return table("workflow_output", *columns, schema=None if dialect == "sqlite" else _SCHEMA)


def _make_dbos_client(engine: Engine) -> "DBOSClient":
    from dbos import DBOSClient, DBOSPortableJSONSerializer

    return DBOSClient(
        system_database_engine=engine,
        dbos_system_schema=_SCHEMA,
        serializer=DBOSPortableJSONSerializer(),
        application_name=APPLICATION,
        lazy=True,
        retry_connection_errors=False,  # a request answers that the database is away, it does not wait
    )


def create_tables(url: str) -> None:
    """Bring DBOS's own tables up to date; a private call, because its public one opens SQLite with another library."""
    engine = system_engine(url)
    try:
        _make_dbos_client(engine)._sys_db.run_migrations()
    finally:
        engine.dispose()


def requeue_dead_worker_jobs(executor_id: str) -> int:
    """Queue again what a dead executor left, in the launched DBOS of this process; a private call."""
    from dbos import DBOS

    return len(DBOS._recover_pending_workflows([executor_id]))


def cancel_workflows(session: Session, workflow_ids: list[str]) -> int:
    """Cancel workflows in the caller's transaction; one that has ended stays as it is."""
    # It writes what DBOS's own call writes in a transaction of its own, which on SQLite would wait for the caller's;
    # when a cancelled workflow was begun stays, too.
    workflows, ended = workflow_table(session.get_bind().dialect.name), round(time.time() * 1000)
    cancelled = {"status": "CANCELLED", "owner_xid": None, "queue_name": None, "deduplication_id": None}
    changed = session.execute(
        update(workflows)
        .where(workflows.c.workflow_uuid.in_(workflow_ids), workflows.c.status.in_(_OPEN))
        .values(cancelled | {"updated_at": ended, "completed_at": ended})
        .returning(workflows.c.workflow_uuid)
    )
    return len(changed.all())


def stop_scheduler() -> None:
    """Keep the launched DBOS of this process from enqueueing schedules, for a process that does not serve them."""
    # A private call: the event that ends the scheduler's thread is the last one that the launch makes.
    from dbos._dbos import _get_dbos_instance

    _get_dbos_instance().background_thread_stop_events[-1].set()


class JobQueue:
    """Enqueues and cancels workflows, from any process of the service."""

    def __init__(self, url: str) -> None:
        self._url, self._made, self._making = url, None, threading.Lock()  # type: tuple[str, DBOSClient | None, Any]

    @property
    def client(self) -> "DBOSClient":
        """DBOS's client, made when it is first needed: importing it takes a while."""
        with self._making:
            if self._made is None:
                self._made = _make_dbos_client(system_engine(self._url, pooled=False))
            return self._made

    def enqueue(self, session: Session, kind: str, workflow_id: str, *arguments: Any) -> None:
        """Enqueue a workflow in the caller's transaction: a rollback leaves nothing."""
        options: EnqueueOptions = {"queue_name": kind, "workflow_name": kind, "workflow_id": workflow_id}
        trace = traces.get_trace_headers()
        if trace:
            options["attributes"] = dict(trace)
        self.client.enqueue_in_transaction(session, options, *arguments)
