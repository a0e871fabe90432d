"""The whole ``secondread`` command: the offline half of ``ml.cli`` and the service's commands."""

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import ml.cli_results  # noqa: F401  registers its commands
from ml.cli import Json, app, emit, run_command, say

if TYPE_CHECKING:
    import subprocess

    from fastapi import FastAPI

    from app.context import Context


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(no_args_is_help=True, help=text)
    app.add_typer(group, name=name)
    return group


db = _group("db", "Database: bring it up to date, verify it.")
release = _group("release", "Releases: add, list, promote.")
user = _group("user", "Accounts of people and machines.")
key = _group("key", "API keys.")
patient = _group("patient", "Patients.")
dataset = _group("dataset", "Collected images and labels.")


@contextmanager
def _parts() -> Iterator["Context"]:
    from app.main import build_context
    from app.settings import Settings

    settings = Settings()
    settings.home.mkdir(parents=True, exist_ok=True)
    context = build_context(settings)
    try:
        yield context
    finally:
        context.database.engine.dispose()


def _settings_epilog() -> str:
    """Settings, read only when somebody asks for the help of ``serve``."""
    if not ({"serve", "demo", "worker"} & set(sys.argv[1:])):
        return ""
    from app.settings import settings_help

    return settings_help()


@app.command(epilog=_settings_epilog())
def serve(
    host: Annotated[str | None, typer.Option(help="Address; SECONDREAD_HOST where left out.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; SECONDREAD_PORT where left out.")] = None,
) -> None:
    """Serve the API and the pages; on SQLite the worker too."""
    from app import observability
    from app.main import create_app
    from app.migrate import require_head
    from app.settings import Settings

    settings = Settings()
    observability.configure_logging()
    application = create_app(settings)
    require_head(application.state.database.engine)
    address, number = host or settings.host, settings.port if port is None else port
    say(f"secondread: http://{address}:{number}")
    helper = _start_worker() if settings.worker and settings.sqlalchemy_url.startswith("sqlite") else None
    try:
        _run_server(application, address, number)
    finally:
        if helper is not None:
            helper.terminate()
            helper.wait()


def _start_worker() -> "subprocess.Popen[bytes]":
    """The one worker of a SQLite database, as a process of lower priority beside the server."""
    import subprocess

    command = [sys.executable, "-c", "from app.cli import main; main()", "worker"]
    return subprocess.Popen(["nice", "-n", "5", *command])  # noqa: S603, S607


def _run_server(application: "FastAPI", address: str, number: int) -> None:
    import uvicorn

    uvicorn.run(
        application,
        host=address,
        port=number,
        log_level="warning",
        access_log=False,
        limit_concurrency=512,
        timeout_graceful_shutdown=20,
        server_header=False,
    )


@app.command(epilog=_settings_epilog())
def worker() -> None:
    """Do jobs: recalibrations, evaluations, imports. On SQLite `serve` starts it; on PostgreSQL run one or more."""
    from app import observability
    from app.migrate import require_head
    from app.worker import main as work

    observability.configure_logging()
    with _parts() as context:
        require_head(context.database.engine)
        work(context)


@app.command()
def demo(
    logins: Annotated[bool, typer.Option("--logins/--no-logins", help="Print new one-time passwords.")] = True,
    port: Annotated[int | None, typer.Option(help="Port to name in the address that is printed.")] = None,
) -> None:
    """Fill HOME with a demo: a release trained on simulated cells, cases, annotators; adds only what is missing."""
    from app import demo as filling
    from app.auth.service import issue_one_time_password
    from app.migrate import upgrade

    with _parts() as context:
        upgrade(context.database.engine)
        filling.ensure_release(context, say)
        with context.database.write() as session:
            filling.ensure_accounts(session, context)
        filling.ensure_cases(context, say)
        if not logins:
            return
        address = f"http://{context.settings.host}:{port or context.settings.port}/login"
        say(f"\nsign in at {address}, each password works once:")
        for name in filling.PEOPLE:
            with context.database.write() as session:
                say(f"  {name:<14}{issue_one_time_password(session, context.secret, name)}")
        say(f"API key of admin: {context.settings.home / 'demo' / 'api_key'}\n")


@app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="Folder or zip of images, with or without manifest.csv.")],
    account: Annotated[str, typer.Option(help="Account that the cases are stored by.")] = "admin",
    as_json: Json = False,
) -> None:
    """Import many images as cases; doing it again adds what is missing.

    Columns of manifest.csv: file, external_id and, if wanted, patient, site, metadata (a JSON object of texts).
    """  # noqa: DOC501
    from app.imports.command import import_local

    with _parts() as context:
        result = import_local(context, source, account, say)
    lines = [f"{result['created']:,} created, {result['known']:,} known, {result['failed']:,} failed"]
    lines += [f"row {row['row']}: {row['external_id']}: {row['detail']}" for row in result["failures"]]
    emit(result, as_json, "\n".join(lines))
    if result["failed"]:
        raise SystemExit(1)


@db.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the present schema."""
    from app.migrate import upgrade
    from app.planning import plan_missing

    with _parts() as context:
        upgrade(context.database.engine)
        planned = plan_missing(context.database)
    say("the database is up to date" + (f"; reads of {planned:,} earlier cases are planned" if planned else ""))


@db.command("verify")
def db_verify(as_json: Json = False) -> None:
    """Check the audit chain, every stored image and every release; exit status 1 if anything is wrong."""  # noqa: DOC501
    from app.verify import verify_all

    with _parts() as context, context.database.read() as session:
        report = verify_all(session, context)
    lines = [f"{report['n_events']:,} audit events, {report['n_images']:,} images, {report['n_releases']:,} releases"]
    emit(report, as_json, "\n".join([*lines, *report["faults"]] if report["faults"] else [*lines, "all intact"]))
    if report["faults"]:
        raise SystemExit(1)


@db.command("backup")
def db_backup(out: Annotated[Path, typer.Argument(help="Folder to make; keep it secret, it holds the key.")]) -> None:
    """Copy database, images, releases and evaluations while the service runs."""
    from app.backup import backup

    with _parts() as context:
        written = backup(context, out)
    say(f"{written['n_files']:,} files, {written['n_bytes'] / 1e6:,.1f} MB in {out}")


@db.command("restore")
def db_restore(source: Annotated[Path, typer.Argument(help="Folder that `db backup` made.")]) -> None:
    """Bring a backup back into a new, empty HOME (and an empty PostgreSQL database); then `db verify`."""
    from app.backup import restore
    from app.settings import Settings

    settings = Settings()
    n_files = restore(source, settings.home, settings.images_folder, settings.sqlalchemy_url)
    say(f"{n_files:,} files restored; now run `secondread db verify`")


@release.command("add")
def release_add(path: Annotated[Path, typer.Argument(help="Release folder.")], as_json: Json = False) -> None:
    """Verify a release, copy it and make it known; the first one is served at once."""
    from app.releases.adding import add_release
    from app.releases.service import describe

    with _parts() as context, context.database.write() as session:
        row, new = add_release(session, context.secret, path, context.settings.releases_folder)
        shown = describe(session, row)
    emit(shown.model_dump(mode="json"), as_json, f"{shown.id}  {shown.name}{'' if new else '  (known already)'}")


@release.command("list")
def release_list(as_json: Json = False) -> None:
    """List releases, newest first."""
    from app.releases.queries import all_releases
    from app.releases.service import describe

    with _parts() as context, context.database.read() as session:
        rows = [describe(session, row) for row in all_releases(session)]
    lines = [
        f"{row.id}  {row.created_at:%Y-%m-%d %H:%M}Z  {','.join(row.aliases) or '-':<10}  {row.name}" for row in rows
    ]
    emit([row.model_dump(mode="json") for row in rows], as_json, "\n".join(lines) or "no releases")


@release.command("promote")
def release_promote(
    release_id: Annotated[uuid.UUID, typer.Argument(help="Release to serve.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit.")],
) -> None:
    """Make a release champion; promoting an earlier one is the rollback."""
    from app.releases.service import move_alias

    with _parts() as context, context.database.write() as session:
        alias = move_alias(session, context, "command line", "champion", release_id, reason, None)
    say(f"champion is {release_id}, revision {alias.revision}")


@app.command()
def recalibrate(
    method: Annotated[str, typer.Option(help="none, temperature, vector or matrix; the change plan allows which.")] = (
        "temperature"
    ),
    since: Annotated[datetime | None, typer.Option(help="Only cases stored at this UTC time or later.")] = None,
    as_json: Json = False,
) -> None:
    """Fit a candidate release on the labels collected so far and judge it against the champion; promotes nothing."""
    from app.releases.command import recalibrate_here

    with _parts() as context:
        result = recalibrate_here(context, method, None if since is None else since.replace(tzinfo=UTC))
    gate = result["gate"]
    lines = [f"candidate {result['release']}: the gate {'passed' if gate['passed'] else 'refused'}", *gate["reasons"]]
    for name, before in result["champion"].items():
        after = result["candidate"][name]
        if before["value"] is not None and after["value"] is not None:
            lines.append(f"  {name:<9} {before['value']:.4f} -> {after['value']:.4f}")
    emit(result, as_json, "\n".join(lines))


@user.command("add")
def user_add(
    name: Annotated[str, typer.Argument(help="Name to sign in with.")],
    role: Annotated[str, typer.Option(help="viewer, annotator, admin or service.")],
) -> None:
    """Make an account; people get a one-time password."""
    from app.auth.service import add_account, issue_one_time_password

    with _parts() as context, context.database.write() as session:
        add_account(session, context.secret, name, role)
        password = None if role == "service" else issue_one_time_password(session, context.secret, name)
    emit(None, False, f"{name}: {role}" if password is None else f"{name}: one-time password {password}")


@user.command("password")
def user_password(name: Annotated[str, typer.Argument(help="Account.")]) -> None:
    """Print a new one-time password."""
    from app.auth.service import issue_one_time_password

    with _parts() as context, context.database.write() as session:
        password = issue_one_time_password(session, context.secret, name)
    emit(None, False, f"{name}: one-time password {password}")


@user.command("link")
def user_link(
    name: Annotated[str, typer.Argument(help="Account.")],
    subject: Annotated[str, typer.Option(help="`sub` that the OpenID provider gives this person.")],
) -> None:
    """Let a person sign in by single sign-on (SECONDREAD_OIDC_ISSUER)."""  # noqa: DOC501
    from app.auth.service import link_subject

    with _parts() as context, context.database.write() as session:
        if context.settings.oidc_issuer is None:
            raise typer.BadParameter("set SECONDREAD_OIDC_ISSUER first")
        link_subject(session, context.secret, name, f"{context.settings.oidc_issuer} {subject}")
    say(f"{name} may sign in by {context.settings.oidc_issuer}")


@user.command("disable")
def user_disable(
    name: Annotated[str, typer.Argument(help="Account.")],
    undo: Annotated[bool, typer.Option("--undo", help="Let it in again.")] = False,
) -> None:
    """Let an account in no more: its password, sessions and keys stop working at once."""
    from app.auth.service import set_disabled

    with _parts() as context, context.database.write() as session:
        set_disabled(session, context.secret, name, disabled=not undo)
    say(f"{name} is {'let in again' if undo else 'disabled'}")


@user.command("list")
def user_list(as_json: Json = False) -> None:
    """List accounts."""
    from sqlalchemy import select

    from app.tables import Account

    with _parts() as context, context.database.read() as session:
        accounts = session.execute(select(Account).order_by(Account.name)).scalars().all()
    rows = [{"name": a.name, "role": a.role, "disabled": a.disabled_at is not None} for a in accounts]
    emit(rows, as_json, "\n".join(f"{row['name']:<30} {row['role']}" for row in rows) or "no accounts")


@patient.command("erase")
def patient_erase(
    name: Annotated[str, typer.Argument(help="Pseudonym of the patient, as uploaded.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit.")],
) -> None:
    """Erase images, features and identifiers of a patient; labels stay, unlinked."""
    from app.erasure import erase_patient

    with _parts() as context:
        with context.database.write() as session:
            count, images = erase_patient(session, context, "command line", name, reason)
        for digest in images:
            context.images.remove(digest)
    say(f"{count} cases erased, {len(images)} images removed; erase them from backups too")


@key.command("add")
def key_add(
    name: Annotated[str, typer.Argument(help="Account the key belongs to.")],
    scope: Annotated[list[str] | None, typer.Option(help="Scope of a service key; may be repeated.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires; never where left out.")] = None,
    as_json: Json = False,
) -> None:
    """Make an API key and print it, this once."""
    from app.auth.service import add_key

    expires = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with _parts() as context, context.database.write() as session:
        row, token = add_key(session, context.secret, name, scope or [], expires)
    emit({"id": str(row.id), "account": name, "scopes": row.scopes, "token": token}, as_json, token)


@key.command("list")
def key_list(as_json: Json = False) -> None:
    """List API keys, without their secrets."""
    from sqlalchemy import select

    from app.tables import Account, ApiKey

    with _parts() as context, context.database.read() as session:
        found = session.execute(
            select(ApiKey, Account).join(Account, Account.id == ApiKey.account_id).order_by(ApiKey.id)
        ).all()
    rows = [
        {
            "id": str(one.id),
            "account": account.name,
            "scopes": one.scopes,
            "created_at": one.created_at.isoformat(),
            "expires_at": one.expires_at.isoformat() if one.expires_at else None,
            "revoked": one.revoked_at is not None,
        }
        for one, account in found
    ]
    lines = [
        f"{one.id}  {account.name:<20} {'valid' if one.revoked_at is None else 'revoked'}  {' '.join(one.scopes)}"
        for one, account in found
    ]
    emit(rows, as_json, "\n".join(lines) or "no keys")


@key.command("revoke")
def key_revoke(key_id: Annotated[uuid.UUID, typer.Argument(help="Key, as listed.")]) -> None:
    """Make a key useless from now on."""
    from app.auth.service import revoke_key

    with _parts() as context, context.database.write() as session:
        revoke_key(session, context.secret, key_id)
    say(f"key {key_id} is revoked")


@dataset.command("export")
def dataset_export(
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    partition: Annotated[
        Literal["all", "calibration", "evaluation"], typer.Option(help="all, calibration or evaluation.")
    ] = "all",
    kind: Annotated[Literal["csv", "parquet"], typer.Option("--format", help="Of the tables.")] = "csv",
    images: Annotated[bool, typer.Option("--images/--no-images", help="Write the images too.")] = True,
    as_json: Json = False,
) -> None:
    """Write collected labels, predictions, images and the audit as tables and files."""
    from app.export import export_dataset

    with _parts() as context, context.database.read() as session:
        counts = export_dataset(session, context, out, partition, kind=kind, images=images)
    emit(counts, as_json, f"{counts['n_cases']:,} cases and {counts['n_labels']:,} labels in {out}")


def main() -> None:
    """Entry point of the command line."""
    run_command(app, _service_errors)


def _service_errors(exc: Exception) -> str | None:
    """One line for the service's own errors and those of the database; None for anything else."""
    if "app.errors" not in sys.modules:
        return None
    from sqlalchemy.exc import DBAPIError

    from app.errors import Problem

    if isinstance(exc, Problem):
        return exc.detail
    if isinstance(exc, DBAPIError):
        return f"the database refused: {exc.orig}"
    return None
