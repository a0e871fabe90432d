"""Erasure of a patient, and overwriting of deleted data in the files of the database.

A deleted row stays readable in its file until something else takes its place. SQLite overwrites it at once
(``secure_delete``), but pages that were split keep copies, and the write-ahead log its own; PostgreSQL only marks it.
"""

from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from app.cases.queries import cases_with_images
from app.context import Context
from app.database.engine import sqlite_engine
from app.database.sql.advisory_locks import hold_digests
from app.database.tables import (
    AuditEvent,
    Case,
    CaseTwin,
    Erasure,
    IdempotencyRecord,
    ImportRow,
    Job,
    NetworkOutput,
    ReadRequest,
    Remark,
)
from app.http.errors import Conflict
from app.imports.archive_storage import opened
from app.imports.import_job import CHECK, delete_archives
from app.imports.zip_contents import ArchiveError
from app.jobs.queries import OPEN, JobView, jobs_where
from app.maintenance.erasure_registry import (
    ErasureListError,
    Whom,
    add_missing,
    erase_again,
    erase_patient,
    is_begun,
    outstanding,
    read_list,
)
from app.maintenance.sweep import sweep_files
from app.metrics.snapshot import discard_all

#: Tables whose rows are deleted or changed when a patient is erased.
ERASED_FROM = tuple(
    table.__tablename__ for table in (Case, CaseTwin, IdempotencyRecord, ImportRow, NetworkOutput, ReadRequest, Remark)
)
_OWNED = (
    "SELECT count(*) = 0 FROM pg_class WHERE relname = ANY(:tables) AND relnamespace = current_schema()::regnamespace "
    "AND NOT pg_has_role(current_user, relowner, 'USAGE')"
)
# transactions that may still read what was deleted before the number was taken: it would be copied
_OLDER = (
    "SELECT count(*) FROM (SELECT backend_xmin AS oldest FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid() UNION ALL "
    "SELECT transaction FROM pg_prepared_xacts WHERE database = current_database() UNION ALL "
    "SELECT xmin FROM pg_replication_slots) AS readers WHERE age(oldest) > age(CAST(:number AS xid))"
)
_LOCK_MS = 2000
_SQLITE_SECONDS = 1.0


def overwrite(url: str) -> str | None:
    """Write the tables anew, so that the files contain nothing but the rows that there are; no transaction may be open.

    Args:
        url: SQLAlchemy URL, on PostgreSQL of the role that owns the tables.

    Returns:
        None, or why it could not be done now.
    """
    if make_url(url).get_backend_name() == "sqlite":
        return _sqlite(url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        return _postgres(connection)


def _sqlite(url: str) -> str | None:
    engine: Engine = sqlite_engine(url, busy_seconds=_SQLITE_SECONDS, poolclass=NullPool)
    with engine.connect() as connection:
        try:
            for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                row = connection.exec_driver_sql(statement)
                if statement != "VACUUM" and row.scalar_one():
                    return "somebody reads the database, so that its write-ahead log stays"
        except OperationalError as exc:
            return f"the database is in use ({exc.orig})"
    return None


def _postgres(connection: Connection) -> str | None:
    if not connection.execute(text(_OWNED), {"tables": list(ERASED_FROM)}).scalar_one():
        return f"the role {connection.engine.url.username} does not own the tables; set DATABASE_OWNER_URL"
    number = connection.execute(text("SELECT CAST(CAST(pg_current_xact_id() AS xid) AS text)")).scalar_one()
    if connection.execute(text(_OLDER), {"number": number}).scalar_one():
        return "a transaction that began earlier may still read what was erased"
    quote = connection.dialect.identifier_preparer.quote
    try:
        connection.execute(text(f"SET lock_timeout = {_LOCK_MS}"))
        for table in ERASED_FROM:
            connection.execute(text(f"VACUUM (FULL, ANALYZE) {quote(table)}"))
    except OperationalError as exc:
        return f"the database is in use ({str(exc.orig).splitlines()[0]})"
    return None


#: Action of the event that says that a backup was made.
BACKUP = "db.backup"
# no request and no batch of an import takes so long
_INTERRUPTED_SECONDS = 3600.0
_log = structlog.get_logger("secondread")


@dataclass(frozen=True)
class ErasureReport:
    """What was erased, and what was not reached.

    Attributes:
        cases: tombstones that stay.
        images: removed from the store.
        remarks: notes and reasons.
        answers: remembered answers to requests.
        import_rows: rows of imports.
        archives: of failed and cancelled imports, which are all removed.
        snapshots: removed; the worker writes others.
        shared: other cases that have the same image, so that it stays.
        unfinished: why the files of the database still contain what was erased; None where they do not.
        backups: made before, which still have everything, with the time of each.
    """

    cases: int
    images: int
    remarks: int
    answers: int
    import_rows: int
    archives: int
    snapshots: int
    shared: list[str]
    unfinished: str | None
    backups: list[str]

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [
            f"{self.cases} cases are tombstones now; their keys, {self.images} images, {self.remarks} notes, "
            f"{self.import_rows} rows of imports and {self.answers} remembered answers are erased",
            f"{self.archives} archives of failed or cancelled imports and {self.snapshots} snapshots are removed",
        ]
        if self.shared:
            lines.append(f"not removed: an image that other cases have too: {', '.join(self.shared)}")
        if self.unfinished is not None:
            lines.append(f"not finished: {self.unfinished}; the worker tries again every minute")
        lines.append("not reached: exports, releases trained on them, log archives of the database, copies of the disk")
        lines += [f"not reached: the backup {backup}" for backup in self.backups]
        return lines


def forget_patient(
    context: Context, actor: str, name: str, reason: str, *, without_patient: bool = False
) -> ErasureReport:
    """Erase a patient from everything that this installation has.

    Args:
        context: parts of the service.
        actor: who, for the audit.
        name: pseudonym as it was uploaded.
        reason: why; kept in the audit.
        without_patient: whether the name is the external id of a case that was uploaded without a patient.

    Raises:
        NotFound: nothing is known of this patient.
        Conflict: an import that is under way contains them, or the reason names them.
    """
    whom = Whom(None, name) if without_patient else Whom(name, None)
    _require_no_import(context, whom)
    with context.database.write() as session:
        erased = erase_patient(session, context, actor, whom, reason)
    removed = sum(_removed(context, digest) for digest in erased.images)
    finished = finish_erasures(context)
    with context.database.read() as session:
        backups = _backups(session)
    return ErasureReport(
        cases=len(erased.cases),
        images=removed,
        remarks=erased.n_remarks,
        answers=erased.n_answers,
        import_rows=len(erased.import_rows),
        archives=finished.archives,
        snapshots=finished.snapshots,
        shared=[str(case_id) for case_id in erased.shared],
        unfinished=finished.problem,
        backups=backups,
    )


def _removed(context: Context, digest: str) -> bool:
    """Remove an image, unless another case with the same file was stored since; whether it was removed.

    Whoever stores one holds the digest until the row is there, and looks whether the file still is.
    """
    with context.database.write(key="unused") as session:
        hold_digests(session, [digest])
        free = not cases_with_images(session, {digest})
        if free:
            context.images.remove(digest)
    return free


def _require_no_import(context: Context, whom: Whom) -> None:
    """Refuse while an import would bring the patient back.

    Raises:
        Conflict: it is named.
    """
    with context.database.read() as session:
        waiting = [job for job in jobs_where(session, Job.kind.in_(("import", CHECK))) if job.state in OPEN]
        known = set(session.execute(select(Case.external_id).where(*whom.conditions())).scalars())
    for job in waiting:
        if _contains(context, job, whom, known | ({whom.external_id} if whom.external_id else set())):
            raise Conflict(
                f"the import or check {job.id} is under way and contains this patient, or cannot be read: cancel it or "
                "wait for its end, then erase"
            )


def _contains(context: Context, job: JobView, whom: Whom, external_ids: set[str]) -> bool:
    try:
        with opened(context, job.id, job.parameters.get("check")) as archive:
            fields = [row.fields for row in archive.rows]
    except FileNotFoundError:
        return False
    except ArchiveError:
        return True
    named = (row.get("patient") == whom.patient for row in fields if whom.patient is not None)
    return any(named) or any(row.get("external_id") in external_ids for row in fields)


@dataclass(frozen=True)
class Finished:
    """What followed the transactions of erasures.

    Attributes:
        archives: how many were removed.
        snapshots: how many were removed.
        problem: why the tables could not be written anew; None where they were, or had been.
    """

    archives: int = 0
    snapshots: int = 0
    problem: str | None = None


def finish_erasures(context: Context) -> Finished:
    """Remove the files that may contain what was erased, and write the tables anew, unless that was done already.

    Of an archive only its manifest says whom it contains, so those of failed and cancelled imports all go: whoever
    needs one sends it again. What cannot be done now the worker does.
    """
    with context.database.read() as session:
        waiting = list(session.execute(select(Erasure.id).where(Erasure.finished_at.is_(None))).scalars())
    if not waiting:
        return Finished()
    archives, snapshots = delete_archives(context, kept=None), discard_all(context.folders)
    sweep_files(context, _INTERRUPTED_SECONDS)
    problem = listing_problem(context) or overwrite(context.settings.owner_sqlalchemy_url)
    if problem is not None:
        _log.warning("the files of the database still contain erased rows", reason=problem)
        return Finished(archives, snapshots, problem)
    with context.database.write() as session:
        session.execute(update(Erasure).where(Erasure.id.in_(waiting)).values(finished_at=context.clock()))
    return Finished(archives, snapshots)


def listing_problem(context: Context) -> str | None:
    """Add what the list of erasures lacks; why that cannot be done now."""
    try:
        with context.database.read() as session:
            add_missing(context.settings.erasure_list, session, context.keys.erasures)
    except (OSError, ErasureListError) as exc:
        return f"the list of erasures cannot be written ({exc})"
    return None


def erase_again_as_listed(context: Context) -> int:
    """Erase what the list names and the database still has, since a backup was brought back in some way.

    To be called before anything is served.

    Returns:
        Number of erasures.

    Raises:
        ErasureListError: the list is not of this installation.
    """
    path = context.settings.erasure_list
    if not is_begun(path):
        return 0
    lines = read_list(path, context.keys.erasures)
    with context.database.read() as session:
        waiting = outstanding(session, lines)
    for line in waiting:
        with context.database.write() as session:
            erased = erase_again(session, context, line)
        for digest in () if erased is None else erased.images:
            _removed(context, digest)
    if waiting:
        _log.warning("erased again, since a backup was brought back", erasures=len(waiting))
        finish_erasures(context)
    return len(waiting)


def _backups(session: Session) -> list[str]:
    """Names of backups that were made so far, the newest first, with the time of each."""
    made = select(AuditEvent).where(AuditEvent.action == BACKUP).order_by(AuditEvent.stamp.desc()).limit(100)
    return [f"{event.object} ({event.created_at:%Y-%m-%d %H:%M}Z)" for event in session.execute(made).scalars()]
