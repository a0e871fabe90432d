"""Commands that run the service and maintain its database."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.shared import keep_private, paused_garbage_collection, service_context, warn_of_open_home
from ml.cli.shared import Json, emit, say

if TYPE_CHECKING:
    from fastapi import FastAPI

    from app.context import ServiceContext
    from app.database.engine import Database
    from app.settings import Settings

commands = typer.Typer()
db = typer.Typer(no_args_is_help=True, help="Database: bring it up to date, copy it, verify it.")


def _settings_epilog() -> str:
    """List the settings, only for the help of commands that read them: they load half the service."""
    if "--help" not in sys.argv or not ({"serve", "demo", "worker"} & set(sys.argv[1:])):
        return ""
    try:
        from app.settings import settings_help
    except ModuleNotFoundError:  # the command itself says so
        return "The settings are listed here once the extra [serve] is installed."
    return settings_help()


_AcceptOlderHead = Annotated[
    str | None,
    typer.Option(
        metavar="REASON",
        help="Start although the database has lost the last head of the audit log in this home; the reason is "
        "kept in the audit log.",
    ),
]


@commands.command(epilog=_settings_epilog())
def serve(
    host: Annotated[str | None, typer.Option(help="Address (default: SECONDREAD_HOST).")] = None,
    port: Annotated[int | None, typer.Option(help="Port (default: SECONDREAD_PORT).")] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Processes that serve the port (default: SECONDREAD_PROCESSES)."),
    ] = None,
    accept_older_head: _AcceptOlderHead = None,
) -> None:
    """Serve the API and the pages; on SQLite the worker too."""
    from contextlib import nullcontext

    from app.cli.server import build_application, run_server, supervise_processes

    with paused_garbage_collection():
        application = build_application()
    _prepare_service(application, accept_older_head)
    settings: Settings = application.state.context.settings
    address, number = host or settings.host, settings.port if port is None else port
    say(f"secondread: http://{address}:{number}")
    with_worker = settings.worker and settings.sqlalchemy_url.startswith("sqlite")
    with supervise_processes("the worker", _worker_command()) if with_worker else nullcontext():
        run_server(application, address, number, settings.processes if processes is None else processes)


def _prepare_service(application: "FastAPI", accept_older_head: str | None) -> None:
    """Check that the application may serve, and do what must come first."""
    # That is a new database, and erasures that a backup undid.
    from app.audit.anchor import accept_older_head as accept
    from app.audit.installation import claim_database
    from app.database.migration import create_if_new
    from app.maintenance.erasure import repeat_listed_erasures

    create_if_new(application.state.database.engine)
    claim_database(application.state.database, application.state.context.keys.audit, say)
    if accept_older_head is not None:
        accept(application.state.context, accept_older_head)
    application.state.heads.require()
    repeat_listed_erasures(application.state.context)
    _report_device(application.state.context)
    _check_backend(application.state.context)


def _report_device(context: "ServiceContext") -> None:
    """Refuse an unusable device; warn where the CPU replaces it."""
    device, _, fault = context.inference.place().partition(": ")
    if fault:
        say(f"warning: the network runs on the {device.upper()}, since CUDA cannot be used: {fault}")


def _check_backend(context: "ServiceContext") -> None:
    """Refuse an inference backend with another network than the champion's; warn if it is silent."""
    from app.releases.queries import get_champion_alias

    with context.database.read() as session:
        alias = get_champion_alias(session)
    warning = context.inference.check_at_start(alias)
    if warning is not None:
        say(f"warning: {warning}")


def _worker_command() -> list[str]:
    """The one worker of a SQLite database, as a process of lower priority than the server."""
    from app.http.observability import COUNTED_TOGETHER

    command = [sys.executable, "-c", "from app.cli.main import main; main()", "worker", "--parent", str(os.getpid())]
    # what several servers count together is none of its business
    return ["env", "-u", COUNTED_TOGETHER, "nice", "-n", "5", *command]


@commands.command(epilog=_settings_epilog())
def worker(
    take_over: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Queue the jobs again of a worker whose host is gone, and end."),
    ] = None,
    accept_older_head: _AcceptOlderHead = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run jobs: recalibrations, evaluations, imports. On SQLite `serve` starts it; on PostgreSQL run one or more."""
    if take_over is not None:
        _take_over_worker(take_over)
        return
    with paused_garbage_collection():
        from app.audit.anchor import accept_older_head as accept
        from app.http import observability
        from app.settings import collector_variable
        from app.worker import main as work

    observability.configure_logging()
    observability.start_tracing("worker", collector_variable())
    with service_context(check_schema=False, direct=True) as context:  # a worker waits for its database
        if parent is None:  # else `serve` has said so
            warn_of_open_home(context.settings.home)
            _report_device(context)
        if accept_older_head is not None:
            accept(context, accept_older_head)
        work(context, parent)
    observability.stop_tracing()


def _take_over_worker(executor_id: str) -> None:
    from app.jobs.service import take_over_worker

    with service_context(direct=True) as context, context.database.write() as session:
        n_jobs = take_over_worker(session, executor_id)
    say(f"the worker {executor_id} is forgotten; {n_jobs:,} of its jobs are queued again")


@commands.command()
def demo(
    train: Annotated[bool, typer.Option("--train", help="Simulate cells and train on them (a few minutes).")] = False,
    logins: Annotated[bool, typer.Option("--logins/--no-logins", help="Print new one-time passwords.")] = True,
    port: Annotated[int | None, typer.Option(help="Port in the printed address.")] = None,
) -> None:
    """Fill HOME with a demo: 200 real cells, two annotators' labels, a release; adds only what is missing."""
    from app.demo.filling import fill_demo
    from app.demo.people import one_time_passwords

    with service_context(check_schema=False) as context:
        _upgrade_database(context)
        fill_demo(context, say, train=train)
        if not logins:
            return
        address = f"http://{context.settings.host}:{port or context.settings.port}/login"
        say(f"\nSign in at {address}. Each password works once; you then choose a new one.")
        for name, password in one_time_passwords(context).items():
            say(f"  {name:<14}{password or '(password already chosen)'}")
        say("Run `secondread demo` again to get new one-time passwords for accounts without a password.")
        say(f"API key of admin: {context.settings.home / 'demo' / 'api_key'}\n")


@db.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the current schema."""
    with service_context(check_schema=False) as context:
        _upgrade_database(context)
    say("the database is up to date")


def _upgrade_database(context: "ServiceContext") -> None:
    """Run the migrations that the database lacks, and finish what a restored backup left to be done."""
    from app.audit.installation import claim_database
    from app.maintenance.erasure import finish_erasures
    from app.reports.frozen_evaluations import move_into_bucket

    _run_migrations(context)
    claim_database(context.database, context.keys.audit, say)
    move_into_bucket(context)
    unfinished = finish_erasures(context).problem
    if unfinished is not None:
        say(f"the files of the database still contain what was erased: {unfinished}")


@contextmanager
def _open_owner_database(context: "ServiceContext") -> "Iterator[Database]":
    """The database by the role that owns its tables: the service's own may have no rights to them yet."""
    from app.database.engine import Database

    owner = Database(context.settings.owner_sqlalchemy_url)
    try:
        yield owner
    finally:
        owner.engine.dispose()


def _run_migrations(context: "ServiceContext") -> None:
    """Run migrations as the role that owns the tables, once the key is known to be right."""
    from app.audit.installation import require_keys
    from app.database import migration
    from app.database.migration import require_known, upgrade_schema

    serving = context.database.engine
    separate = context.settings.database_owner_url is not None
    with _open_owner_database(context) as owner:
        if separate:
            migration.require_owner(owner.engine)
        require_known(owner.engine)
        require_keys(owner, context.keys.audit)
        upgrade_schema(owner.engine)
        if separate:
            migration.grant_service_role(owner.engine, str(serving.url.username))
    if migration.owns_tables(serving):
        say(
            f"the role {serving.url.username} of DATABASE_URL owns the tables, so that it could take the triggers off "
            "append-only ones; with DATABASE_OWNER_URL another role owns them"
        )


@db.command("verify")
def db_verify(
    against: Annotated[
        str | None,
        typer.Option(help="Head of an earlier check (NUMBER:DIGEST), or a file of heads, kept outside the database."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the audit chain, the rows it explains, every image and release; exit status 1 if anything is wrong."""
    from app.audit.verify import verify_all

    with service_context() as context, context.database.read_moment() as session:
        report = verify_all(session, context, against)
    lines = [] if report.unproven is None else [f"not proven complete: {report.unproven}"]
    lines += [f"{report.n_events:,} audit events, {report.n_images:,} images, {report.n_releases:,} releases"]
    lines += [*report.faults, *report.restores, report.verdict, f"head: {report.head}"]
    lines += [f"signature of the head: {report.signature}", f"public key: {report.public_key}"]
    lines += [f"not compared: {what}" for what in report.not_compared]
    emit(report.to_dict(), as_json, "\n".join(lines))
    if report.faults:
        raise SystemExit(1)


@db.command("backup")
def db_backup(
    out: Annotated[Path, typer.Argument(help="New folder; keep it secret, it contains the key.")],
) -> None:
    """Copy database, images, releases and evaluations while the service runs."""
    from app.audit.anchor import HeadFile
    from app.audit.chain import events
    from app.maintenance.backup import write_backup
    from app.maintenance.erasure import BACKUP, update_erasure_list

    with service_context() as context:
        HeadFile(context).require()
        problem = update_erasure_list(context)
        written = write_backup(context, out)
        with context.database.write() as session:  # so that an erasure can name the backups that still have everything
            details = {"head": written["head"]}
            events.record_event(
                session,
                context.keys.audit,
                actor="command line",
                action=BACKUP,
                object_id=out.resolve().name[:100],
                details=details,
            )
    say(f"{written['n_files']:,} files, {written['n_bytes'] / 1e6:,.1f} MB in {out}")
    say(f"head: {written['head']}")
    kept = f"list of erasures: {context.settings.erasure_list}; keep a copy elsewhere for `db restore`"
    say(kept if problem is None else f"warning: {problem}")
    for digest in written["damaged"]:
        say(f"image {digest} is damaged, here and in the backup; upload the same image again")


@db.command("rotate-key")
def db_rotate_key(
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log.")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the new key ring to this file and change nothing yet; for keys that are set elsewhere."
        ),
    ] = None,
) -> None:
    """Add a key to the key ring: it signs new entries of the audit log; random draws and partitions stay the same."""
    from app.audit.rotation import rotate_key, write_ring

    with service_context(check_schema=False, direct=True) as context:
        if out is not None:
            write_ring(context, out)
            say(
                f"{out}: the key ring with a new key; replace the current key ring with it, then run this command again"
            )
            return
        rotation = rotate_key(context, reason, say)
    say(f"the audit log is now signed with key {rotation.n_keys}; public key: {rotation.public_key}")
    say("Give the public key to everyone who checks proofs. Make a backup: older backups lack the new key.")
    say("Restart every server with the new key ring; until then it refuses to write (503). Workers that read the ring")
    say("from a file restart by themselves. Other workers are refused until they have the new ring.")


@db.command("restore")
def db_restore(
    source: Annotated[Path, typer.Argument(help="Folder that `db backup` wrote.")],
    without_list: Annotated[
        bool,
        typer.Option(
            "--without-list", help="Restore without a list of erasures; patients erased after the backup return."
        ),
    ] = False,
) -> None:
    """Bring a backup back into a new, empty HOME (and an empty PostgreSQL database); then `db verify`."""
    from app.audit.anchor import record_restore
    from app.audit.chain import events
    from app.audit.rotation import apply_key_ring
    from app.jobs.service import cancel_open_jobs
    from app.maintenance.backup import check_backup, require_erasure_list, restore_backup
    from app.settings import read_settings
    from app.storage.bucket import BucketStore

    keep_private()
    settings = read_settings()
    ring = settings.existing_ring()
    check_backup(source)
    if not without_list:
        require_erasure_list(source, settings.erasure_list, settings.head_file)
    bucket = None if settings.bucket_url is None else BucketStore(settings.bucket_url)
    url = settings.owner_sqlalchemy_url
    n_files, of_backup = restore_backup(source, settings.home, settings.images_folder, url, ring, bucket)
    with service_context(check_schema=False, ring=of_backup) as context:  # a backup may lack migrations
        with _open_owner_database(context) as owner, owner.read() as session:
            head = events.read_head_text(session)
        _upgrade_database(context)
        apply_key_ring(context, ring or of_backup, "the backup was made before the key was rotated", say)
    with service_context() as context:  # erases again what the list names
        record_restore(context, head)
        n_jobs = cancel_open_jobs(context)
    if n_jobs:
        say(f"{n_jobs:,} jobs were running at the time of the backup and are cancelled; retry them on the page Jobs")
    say(f"{n_files:,} files restored; now run `secondread db verify`")
