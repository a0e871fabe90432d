"""Commands about people: accounts, keys, patients."""

import uuid
from datetime import timedelta
from typing import Annotated

import typer

from app.cli.shared import service_context
from ml.cli.shared import Json, emit, say

user = typer.Typer(no_args_is_help=True, help="Accounts of people and machines.")
key = typer.Typer(no_args_is_help=True, help="API keys.")
patient = typer.Typer(no_args_is_help=True, help="Patients.")


@user.command("add")
def user_add(
    name: Annotated[str, typer.Argument(help="Name to sign in with.")],
    role: Annotated[str, typer.Option(help="viewer, annotator, admin or service.")],
) -> None:
    """Create an account; people get a one-time password."""
    from app.accounts.people import add_account, issue_one_time_password

    with service_context() as context, context.database.write() as session:
        add_account(session, context.keys.audit, name, role)
        password = None if role == "service" else issue_one_time_password(session, context.keys.audit, name)
    emit(None, False, f"{name}: {role}" if password is None else f"{name}: one-time password {password}")


@user.command("password")
def user_password(name: Annotated[str, typer.Argument(help="Account.")]) -> None:
    """Print a new one-time password."""
    from app.accounts.people import issue_one_time_password

    with service_context() as context, context.database.write() as session:
        password = issue_one_time_password(session, context.keys.audit, name)
    emit(None, False, f"{name}: one-time password {password}")


@user.command("link")
def user_link(
    name: Annotated[str, typer.Argument(help="Account.")],
    subject: Annotated[str, typer.Option(help="`sub` that the OpenID provider gives this person.")],
) -> None:
    """Let a person sign in by single sign-on (SECONDREAD_OIDC_ISSUER)."""
    from app.accounts.people import link_subject

    with service_context() as context, context.database.write() as session:
        if context.settings.oidc_issuer is None:
            raise typer.BadParameter("set SECONDREAD_OIDC_ISSUER first")
        link_subject(session, context.keys.audit, name, f"{context.settings.oidc_issuer} {subject}")
    say(f"{name} may sign in by {context.settings.oidc_issuer}")


@user.command("disable")
def user_disable(
    name: Annotated[str, typer.Argument(help="Account.")],
    undo: Annotated[bool, typer.Option("--undo", help="Enable it again.")] = False,
) -> None:
    """Disable an account: its password, sessions and keys stop working at once."""
    from app.accounts.people import set_disabled

    with service_context() as context, context.database.write() as session:
        set_disabled(session, context.keys.audit, name, disabled=not undo)
    say(f"{name} is {'enabled again' if undo else 'disabled'}")


@user.command("list")
def user_list(as_json: Json = False) -> None:
    """List accounts."""
    from sqlalchemy import select

    from app.database.tables import Account

    with service_context() as context, context.database.read() as session:
        accounts = session.execute(select(Account).order_by(Account.name)).scalars().all()
    rows = [{"name": a.name, "role": a.role, "disabled": a.disabled_at is not None} for a in accounts]
    emit(rows, as_json, "\n".join(f"{row['name']:<30} {row['role']}" for row in rows) or "no accounts")


@patient.command("erase")
def patient_erase(
    name: Annotated[str, typer.Argument(help="Pseudonym of the patient, as uploaded.")],
    reason: Annotated[str, typer.Option(help="Why; kept in the audit log, so it must not name the patient.")],
    without_patient: Annotated[
        bool, typer.Option("--case", help="NAME is the external id of a cell without a patient.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask first.")] = False,
    as_json: Json = False,
) -> None:
    """Erase a patient: images, features, identifiers, notes, archives. Labels stay, unlinked. Nothing undoes it."""
    from dataclasses import asdict

    from app.maintenance.erasure import erase_patient_everywhere

    if not yes:
        typer.confirm(f"Erase everything about {name}? Nothing can bring it back.", abort=True, err=True)
    with service_context() as context:
        report = erase_patient_everywhere(context, "command line", name, reason, without_patient=without_patient)
    emit(asdict(report), as_json, "\n".join(report.lines()))


@key.command("add")
def key_add(
    name: Annotated[str, typer.Argument(help="Account the key belongs to.")],
    scope: Annotated[list[str] | None, typer.Option(help="Scope of a service key; may be repeated.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires (default: never).")] = None,
    as_json: Json = False,
) -> None:
    """Make an API key and print it, this once."""
    from app.accounts.people import add_key

    with service_context() as context, context.database.write() as session:
        expires = None if days is None else context.clock() + timedelta(days=days)
        row, token = add_key(session, context.keys.audit, name, scope or [], expires)
    emit({"id": str(row.id), "account": name, "scopes": row.scopes, "token": token}, as_json, token)


@key.command("list")
def key_list(as_json: Json = False) -> None:
    """List API keys, without their secrets."""
    from sqlalchemy import select

    from app.database.tables import Account, ApiKey

    with service_context() as context, context.database.read() as session:
        keys = session.execute(
            select(ApiKey, Account).join(Account, Account.id == ApiKey.account_id).order_by(ApiKey.id)
        ).all()
    rows = [
        {
            "id": str(api_key.id),
            "account": account.name,
            "scopes": api_key.scopes,
            "created_at": api_key.created_at.isoformat(),
            "expires_at": api_key.expires_at.isoformat() if api_key.expires_at else None,
            "revoked": api_key.revoked_at is not None,
        }
        for api_key, account in keys
    ]
    lines = [
        f"{api_key.id}  {account.name:<20} "
        f"{'valid' if api_key.revoked_at is None else 'revoked'}  {' '.join(api_key.scopes)}"
        for api_key, account in keys
    ]
    emit(rows, as_json, "\n".join(lines) or "no keys")


@key.command("revoke")
def key_revoke(key_id: Annotated[uuid.UUID, typer.Argument(help="Key, as listed.")]) -> None:
    """Revoke a key."""
    from app.accounts.people import revoke_key

    with service_context() as context, context.database.write() as session:
        revoke_key(session, context.keys.audit, key_id)
    say(f"key {key_id} is revoked")
