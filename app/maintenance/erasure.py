"""Erasure of a patient, and overwriting of deleted data in the files of the database."""

from dataclasses import dataclass

import structlog
from sqlalchemy import Connection, Engine, NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import OperationalError

from app.audit.chain.covered_rows import update_columns
from app.cases.service import cases_with_images
from app.context import ServiceContext
from app.database.advisory_locks import lock_digests
from app.database.engine import sqlite_engine
from app.database.tables import (
    AuditEvent,
    Case,
    CaseTwin,
    Comment,
    Erasure,
    IdempotencyRecord,
    ImportRow,
    Job,
    NetworkOutput,
    ReadRequest,
    Remark,
    Specimen,
    SpecimenRemark,
    SpecimenResult,
)
from app.http.errors import Conflict
from app.imports.service import CHECK, delete_archives, names_cell, open_job_archive
from app.jobs.service import OPEN, JobView, jobs_where
from app.maintenance import erasure_registry
from app.maintenance.cache import sweep_files
from app.metrics.service import discard_all_snapshots

#: Tables whose rows are deleted or changed when a patient is erased.
ERASED_FROM = tuple(
    table.__tablename__
    for table in (
        Case,
        CaseTwin,
        Comment,
        IdempotencyRecord,
        ImportRow,
        NetworkOutput,
        ReadRequest,
        Remark,
        Specimen,
        SpecimenRemark,
        SpecimenResult,
    )
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


def overwrite_deleted_data(url: str) -> str | None:
    """Rewrite the tables so that the files contain no deleted data."""
    if make_url(url).get_backend_name() == "sqlite":
        return _overwrite_sqlite(url)
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        return _overwrite_postgres(connection)


def _overwrite_sqlite(url: str) -> str | None:
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


def _overwrite_postgres(connection: Connection) -> str | None:
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
    """Report of an erasure: the erased rows and files, and those not reached."""

    cases: int
    # removed from the store
    images: int
    remarks: int
    # remembered answers to requests
    answers: int
    import_rows: int
    # of failed and cancelled imports, which are all removed
    archives: int
    # removed; the worker writes others
    snapshots: int
    # other cases that have the same image, so that it stays
    shared: list[str]
    # why the files of the database still contain what was erased; None where they do not
    unfinished: str | None
    # made before, which still have everything, with the time of each
    backups: list[str]

    def lines(self) -> list[str]:
        """The report for people."""
        lines = [
            f"{self.cases} cases are tombstones now; their keys, {self.images} images, {self.remarks} notes and "
            f"comments, {self.import_rows} rows of imports and {self.answers} remembered answers are erased",
            f"{self.archives} archives of failed or cancelled imports and {self.snapshots} snapshots are removed",
        ]
        if self.shared:
            lines.append(f"not removed: an image that other cases have too: {', '.join(self.shared)}")
        if self.unfinished is not None:
            lines.append(f"not finished: {self.unfinished}; the worker tries again every minute")
        lines.append("not reached: exports, releases trained on them, log archives of the database, copies of the disk")
        lines += [f"not reached: the backup {backup}" for backup in self.backups]
        return lines


def erase_patient_everywhere(
    context: ServiceContext, actor: str, name: str, reason: str, *, without_patient: bool = False
) -> ErasureReport:
    """Erase a patient from everything that this installation has."""
    whom = erasure_registry.ErasureTarget(None, name) if without_patient else erasure_registry.ErasureTarget(name, None)
    _require_no_import(context, whom)
    with context.database.write() as session:
        erased = erasure_registry.erase_patient_rows(session, context, actor, whom, reason)
    removed = sum(_remove_image_file(context, digest) for digest in erased.images)
    finished = finish_erasures(context)
    with context.database.read() as session:
        statement = (
            select(AuditEvent).where(AuditEvent.action == BACKUP).order_by(AuditEvent.sequence.desc()).limit(100)
        )
        backups = [
            f"{event.object} ({event.created_at:%Y-%m-%d %H:%M}Z)" for event in session.execute(statement).scalars()
        ]
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


def _remove_image_file(context: ServiceContext, digest: str) -> bool:
    """Remove an image, unless another case with the same file was stored since; whether it was removed."""
    # Whoever stores one holds the digest until the row is there, and looks whether the file still is.
    with context.database.write() as session:
        lock_digests(session, [digest])
        free = not cases_with_images(session, {digest})
        if free:
            context.images.remove(digest)
    return free


def _require_no_import(context: ServiceContext, whom: erasure_registry.ErasureTarget) -> None:
    with context.database.read() as session:
        waiting = [job for job in jobs_where(session, Job.kind.in_(("import", CHECK))) if job.state in OPEN]
        external_ids = set(session.execute(select(Case.external_id).where(*whom.conditions())).scalars())
    for job in waiting:
        if _import_contains_patient(
            context, job, whom, external_ids | ({whom.external_id} if whom.external_id else set())
        ):
            raise Conflict(
                f"the import or check {job.id} is under way and contains this patient, or cannot be read: cancel it or "
                "wait for its end, then erase"
            )


def _import_contains_patient(
    context: ServiceContext, job: JobView, whom: erasure_registry.ErasureTarget, external_ids: set[str]
) -> bool:
    try:
        with open_job_archive(context, job.id, job.parameters.get("check")) as archive:
            fields = [row.fields for row in archive.rows]
            if names_cell(archive, external_ids):
                return True
    except FileNotFoundError:
        return False
    except ValueError:  # an archive, or a file of labels, that cannot be read
        return True
    named = (row.get("patient") == whom.patient for row in fields if whom.patient is not None)
    return any(named) or any(row.get("external_id") in external_ids for row in fields)


@dataclass(frozen=True)
class ErasureFollowUp:
    """Result of the file clean-up after an erasure."""

    # how many were removed
    archives: int = 0
    # how many were removed
    snapshots: int = 0
    # why the tables could not be written anew; None where they were, or had been
    problem: str | None = None


def finish_erasures(context: ServiceContext) -> ErasureFollowUp:
    """Remove files with erased data and overwrite the tables, unless already done."""
    # Of an archive only its manifest says whom it contains, so those of failed and cancelled imports all go: whoever
    # needs one sends it again. What cannot be done now the worker does.
    with context.database.read() as session:
        waiting = list(session.execute(select(Erasure.id).where(Erasure.finished_at.is_(None))).scalars())
    if not waiting:
        return ErasureFollowUp()
    archives, snapshots = delete_archives(context, kept=None), discard_all_snapshots(context.folders)
    sweep_files(context, _INTERRUPTED_SECONDS)
    problem = update_erasure_list(context) or overwrite_deleted_data(context.settings.owner_sqlalchemy_url)
    if problem is not None:
        _log.warning("the files of the database still contain erased rows", reason=problem)
        return ErasureFollowUp(archives, snapshots, problem)
    with context.database.write() as session:
        session.execute(update_columns(Erasure, finished_at=context.clock()).where(Erasure.id.in_(waiting)))
    return ErasureFollowUp(archives, snapshots)


def update_erasure_list(context: ServiceContext) -> str | None:
    """Add missing erasures to the list; return the reason where that fails."""
    try:
        with context.database.read() as session:
            erasure_registry.append_missing_erasures(context.settings.erasure_list, session, context.keys.erasures)
    except (OSError, erasure_registry.ErasureListError) as exc:
        return f"the list of erasures cannot be written ({exc})"
    return None


def repeat_listed_erasures(context: ServiceContext) -> int:
    """Erase what the list names and the database still has, since a backup was brought back in some way."""
    # To be called before anything is served.
    path = context.settings.erasure_list
    if not erasure_registry.has_complete_line(path):
        return 0
    lines = erasure_registry.read_erasure_list(path, context.keys.erasures)
    with context.database.read() as session:
        waiting = erasure_registry.find_unapplied_erasures(session, lines)
    for line in waiting:
        with context.database.write() as session:
            erased = erasure_registry.repeat_erasure(session, context, line)
        for digest in () if erased is None else erased.images:
            _remove_image_file(context, digest)
    if waiting:
        _log.warning("erased again, since a backup was brought back", erasures=len(waiting))
        finish_erasures(context)
    return len(waiting)
