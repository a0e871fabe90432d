"""Accounts, keys, one-time passwords and browser sessions."""

import hashlib
import hmac
import secrets
import uuid
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from app import audit
from app.auth.principal import ROLE_SCOPES, SCOPES, Principal
from app.errors import Conflict, NotFound, Unauthenticated
from app.tables import Account, ApiKey, BrowserSession, now

SESSION_IDLE = timedelta(minutes=30)
SESSION_LIFETIME = timedelta(hours=12)
# how often a session in use is written back
_SEEN_EVERY = timedelta(minutes=1)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _principal(account: Account, scopes: frozenset[str]) -> Principal:
    return Principal(account.id, account.name, account.role, scopes)


def principal_of_key(session: Session, token: str) -> Principal:
    """Caller behind a bearer key ``sr_<id>_<secret>``.

    Raises:
        Unauthenticated: unknown, revoked, expired or disabled; which of them is not told.
    """
    refused = Unauthenticated("the API key is not valid")
    parts = token.split("_")
    try:
        if len(parts) != 3 or parts[0] != "sr":
            raise refused
        key = session.get(ApiKey, uuid.UUID(hex=parts[1]))
    except ValueError as exc:
        raise refused from exc
    if key is None or not hmac.compare_digest(key.secret_sha256, _sha256(parts[2])):
        raise refused
    account = session.get_one(Account, key.account_id)
    if key.revoked_at is not None or account.disabled_at is not None:
        raise refused
    if key.expires_at is not None and key.expires_at <= now():
        raise refused
    return _principal(account, ROLE_SCOPES[account.role] | frozenset(key.scopes))


def principal_of_cookie(session: Session, token: str) -> tuple[Principal, uuid.UUID, bool]:
    """Caller behind a session cookie, its session, and whether the session's last use should be written back.

    Raises:
        Unauthenticated: unknown, ended, idle for too long or too old.
    """
    found = session.execute(
        select(BrowserSession).where(BrowserSession.token_sha256 == _sha256(token))
    ).scalar_one_or_none()
    time = now()
    if found is None or found.ended_at is not None:
        raise Unauthenticated("sign in first")
    if time - found.seen_at > SESSION_IDLE or time - found.created_at > SESSION_LIFETIME:
        raise Unauthenticated("the session has ended; sign in again")
    account = session.get_one(Account, found.account_id)
    if account.disabled_at is not None:
        raise Unauthenticated("sign in first")
    return _principal(account, ROLE_SCOPES[account.role]), found.id, time - found.seen_at > _SEEN_EVERY


def touch_session(session: Session, session_id: uuid.UUID) -> None:
    """Write back that a browser session is in use."""
    session.get_one(BrowserSession, session_id).seen_at = now()


def _account(session: Session, name: str) -> Account | None:
    return session.execute(select(Account).where(Account.name == name)).scalar_one_or_none()


def add_account(session: Session, secret: bytes, name: str, role: str) -> Account:
    """Make an account.

    Raises:
        Conflict: the name is taken.
        ValueError: an unknown role or an unusable name.
    """
    if role not in ROLE_SCOPES:
        raise ValueError(f"unknown role {role!r}; there are {', '.join(ROLE_SCOPES)}")
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise ValueError("a name must have 1 to 100 printable characters")
    if _account(session, name) is not None:
        raise Conflict("an account of this name exists")
    account = Account(name=name, role=role)
    session.add(account)
    session.flush()
    audit.record(
        session, secret, actor="command line", action="account.add", object_id=account.id, details={"role": role}
    )
    return account


def issue_one_time_password(session: Session, secret: bytes, name: str) -> str:
    """New one-time password of an account; an earlier unused one stops working.

    Raises:
        NotFound: no such account.
    """
    account = _account(session, name)
    if account is None:
        raise NotFound(f"there is no account {name!r}")
    password = "-".join(secrets.token_hex(2) for _ in range(5))
    account.one_time_sha256 = _sha256(password)
    audit.record(session, secret, actor="command line", action="account.one_time_password", object_id=account.id)
    return password


def sign_in(session: Session, secret: bytes, name: str, password: str) -> str:
    """Use up a one-time password and return the token of a new browser session.

    Raises:
        Unauthenticated: wrong name or password, or it was used before.
    """
    account = _account(session, name.strip())
    stored = account.one_time_sha256 if account is not None and account.disabled_at is None else None
    matches = hmac.compare_digest(stored or "-" * 64, _sha256(password.strip().lower()))
    if account is None or stored is None or not matches:
        raise Unauthenticated("wrong name or password, or the password was used before")
    account.one_time_sha256 = None
    token = secrets.token_urlsafe(32)
    session.add(BrowserSession(account_id=account.id, token_sha256=_sha256(token), seen_at=now()))
    audit.record(session, secret, actor=account.name, action="session.start", object_id=account.id)
    return token


def sign_out(session: Session, token: str) -> None:
    """End a browser session."""
    found = session.execute(
        select(BrowserSession).where(BrowserSession.token_sha256 == _sha256(token))
    ).scalar_one_or_none()
    if found is not None:
        found.ended_at = now()


def add_key(
    session: Session, secret: bytes, name: str, scopes: list[str], expires_at: datetime | None = None
) -> tuple[ApiKey, str]:
    """New API key of an account; the token is shown once and never stored.

    Raises:
        NotFound: no such account.
        ValueError: an unknown scope, or scopes for a role that has its own.
    """
    account = _account(session, name)
    if account is None:
        raise NotFound(f"there is no account {name!r}")
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown:
        raise ValueError(f"unknown scope {unknown[0]!r}; there are {', '.join(SCOPES)}")
    if scopes and account.role == "annotator":
        raise ValueError("a key of an annotator takes no scopes: they would end the blindness of its reads")
    value = secrets.token_hex(32)
    key = ApiKey(account_id=account.id, secret_sha256=_sha256(value), scopes=sorted(scopes), expires_at=expires_at)
    session.add(key)
    session.flush()
    details = {"account": name, "scopes": key.scopes}
    audit.record(session, secret, actor="command line", action="key.add", object_id=key.id, details=details)
    return key, f"sr_{key.id.hex}_{value}"


def revoke_key(session: Session, secret: bytes, key_id: uuid.UUID) -> None:
    """Make a key useless from now on.

    Raises:
        NotFound: no such key.
    """
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("there is no such key")
    if key.revoked_at is None:
        key.revoked_at = now()
        audit.record(session, secret, actor="command line", action="key.revoke", object_id=key.id)
