"""Accounts of the demo, the key of its API, and one-time passwords. Running it again changes nothing."""

from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.accounts import people as auth
from app.context import Context
from app.database.tables import Account

#: Accounts of the demo and their roles.
PEOPLE = {"admin": "admin", "viewer": "viewer", "annotator-1": "annotator", "annotator-2": "annotator"}
#: Account that uploads.
ROBOT = "demo"

Say = Callable[[str], None]


def ensure_accounts(session: Session, context: Context) -> None:
    """Accounts of the demo, the uploading robot included, and an API key in HOME/demo/api_key."""
    present = set(session.execute(select(Account.name)).scalars())
    for name, role in {**PEOPLE, ROBOT: "service"}.items():
        if name not in present:
            auth.add_account(session, context.keys.audit, name, role)
    path = context.settings.home / "demo" / "api_key"
    if not path.is_file():
        _, token = auth.add_key(session, context.keys.audit, "admin", [])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(token + "\n")


def one_time_passwords(context: Context) -> dict[str, str | None]:
    """New one-time passwords of the people of the demo; None for those who have chosen a password, which they keep."""
    passwords: dict[str, str | None] = {}
    with context.database.write() as session:
        for account in session.execute(select(Account).where(Account.name.in_(PEOPLE))).scalars().all():
            chosen = account.password_hash is not None
            passwords[account.name] = (
                None if chosen else auth.issue_one_time_password(session, context.keys.audit, account.name)
            )
    return {name: passwords[name] for name in PEOPLE}
