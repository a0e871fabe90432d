"""Signing in by a password: throttled by address and name, hashed next to the requests, written only on success."""

import hmac
import uuid
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.auth.passwords import verified
from app.auth.service import begin_session, digest_of, normal_name
from app.auth.throttle import SignInThrottle
from app.database.engine import Database
from app.database.tables import Account
from ml.messages import Message

# one sentence for every reason, which gives nobody away
_REFUSED = Message(
    "wrong name or password, a password that was used before, or too many attempts: then wait a few minutes"
)


@dataclass(frozen=True)
class SignIn:
    """What a sign-in came to.

    Attributes:
        token: of a session; None where it was refused.
        refused: why.
        used_up: the password was for one time only: whoever signed in needs one of their own.
    """

    token: str | None
    refused: str = ""
    used_up: bool = False


@dataclass(frozen=True)
class _Known:
    """An account's secrets as they were read."""

    account_id: uuid.UUID
    password_hash: str | None
    one_time_sha256: str | None


async def sign_in(
    database: Database, keys: AuditKeys, throttle: SignInThrottle, address: str, name: str, password: str
) -> SignIn:
    """Begin a browser session by a local password, or by a one-time password, which is used up.

    An unknown name takes as long as a known one.

    Args:
        database: of the service.
        keys: of the audit chain.
        throttle: wrong passwords so far.
        address: of the caller.
        name: as it was typed.
        password: as it was typed.

    Raises:
        Overloaded: too many are signing in.
    """
    name = normal_name(name)
    if throttle.must_wait(address, name):
        return SignIn(None, _REFUSED)
    known = await run_in_threadpool(_read, database, name)
    right = await verified(None if known is None else known.password_hash, password)
    begun = None
    if known is not None and (right or _is_one_time(known.one_time_sha256, password)):
        begun = await run_in_threadpool(_begin, database, keys, known, password)
    if begun is not None:
        throttle.succeeded(address, name)
        return begun
    if throttle.failed(address, name) and known is not None:
        await run_in_threadpool(_note_throttling, database, keys, known)
    return SignIn(None, _REFUSED)


def _is_one_time(stored: str | None, password: str) -> bool:
    return stored is not None and hmac.compare_digest(stored, digest_of(password.strip().lower()))


def _read(database: Database, name: str) -> _Known | None:
    """Secrets of an account that may sign in, None for a name without one."""
    with database.read() as session:
        account = session.execute(select(Account).where(Account.name == name)).scalar_one_or_none()
        if account is None or account.disabled_at is not None:
            return None
        return _Known(account.id, account.password_hash, account.one_time_sha256)


def _begin(database: Database, keys: AuditKeys, known: _Known, password: str) -> SignIn | None:
    """Begin the session, unless the password has been changed or used up since it was read."""
    with database.write() as session:
        account = _locked(session, known)
        if account.disabled_at is not None:
            return None
        used_up = _is_one_time(account.one_time_sha256, password)
        if used_up:
            account.one_time_sha256 = None
        elif account.password_hash is None or account.password_hash != known.password_hash:
            return None
        return SignIn(begin_session(session, keys, account), used_up=used_up)


def _locked(session: Session, known: _Known) -> Account:
    return session.get_one(Account, known.account_id, with_for_update=True)


def _note_throttling(database: Database, keys: AuditKeys, known: _Known) -> None:
    """Record that somebody guesses at an account: once per row of wrong passwords."""
    with database.write() as session:
        name = session.get_one(Account, known.account_id).name
        events.record(session, keys, actor=name, action="account.throttle", object_id=known.account_id)
