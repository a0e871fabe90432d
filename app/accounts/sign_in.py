"""Sign-in: cross-site checks, throttling of wrong passwords, sessions."""

import hmac
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from fastapi import Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from app.accounts.names import normal_name
from app.accounts.passwords import verify_password_async
from app.accounts.people import WrongPassword, begin_session, confirm_password, hash_secret
from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.database.engine import Database
from app.database.tables import Account, BrowserSession, time_of
from app.http.errors import Forbidden, RateLimited
from app.http.limiter import FIRST_WAIT, FREE_TRIES, LONGEST_WAIT
from app.http.principal import Principal, network_of, public_origin
from ml.messages import Message


class CrossSite(Forbidden):
    """A browser sent a form from another site."""

    code, title = "cross-site-request", "Cross-site request"


def refuse_cross_site(request: Request) -> None:
    """Refuse a form or script of another site that rides on a signed-in browser."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None and site not in {"same-origin", "none"}:
        raise CrossSite("cross-site request rejected")
    own = {f"{request.url.scheme}://{request.headers.get('host', '')}".lower(), public_origin(request)}
    if origin is not None and origin.lower() not in own:
        raise CrossSite("cross-site request rejected; behind a proxy, set PUBLIC_URL or TRUSTED_PROXIES")


#: Pairs of address and name that are remembered; the one that was seen longest ago makes room.
REMEMBERED = 50_000


@dataclass
class _FailedAttempts:
    """Wrong passwords in a row, and the time (monotonic) before which no password is looked at."""

    count: int = 0
    until: float = 0.0


class SignInThrottle:
    """Throttle of sign-ins after wrong passwords."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pairs: OrderedDict[tuple[str, str], _FailedAttempts] = OrderedDict()
        self._changing = threading.Lock()

    def must_wait(self, address: str, name: str) -> bool:
        """Whether passwords of this address for this name are not looked at now."""
        with self._changing:
            failures = self._pairs.get((network_of(address), name))
            return failures is not None and failures.until > self._clock()

    def failed(self, address: str, name: str) -> bool:
        """Count a wrong password."""
        pair = (network_of(address), name)
        with self._changing:
            failures = self._pairs.setdefault(pair, _FailedAttempts())
            self._pairs.move_to_end(pair)
            failures.count += 1
            if failures.count >= FREE_TRIES:
                wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(failures.count - FREE_TRIES, 30))
                failures.until = self._clock() + wait
            while len(self._pairs) > REMEMBERED:
                self._pairs.popitem(last=False)
            return failures.count == FREE_TRIES

    def succeeded(self, address: str, name: str) -> None:
        """Forget the wrong passwords of a person who has signed in."""
        with self._changing:
            self._pairs.pop((network_of(address), name), None)


# one sentence for every reason, which gives nobody away
_REFUSED = Message("wrong name or password, a used one-time password, or too many attempts (then wait a few minutes)")


@dataclass(frozen=True)
class SignInResult:
    """Result of a sign-in."""

    # of a session; None where it was refused
    token: str | None
    refused: str = ""
    # the password was for one time only: whoever signed in needs one of their own
    used_up: bool = False


@dataclass(frozen=True)
class _AccountSecrets:
    """An account's secrets as they were read."""

    account_id: uuid.UUID
    password_hash: str | None
    one_time_sha256: str | None


async def sign_in(
    database: Database, keys: AuditKeys, throttle: SignInThrottle, address: str, name: str, password: str
) -> SignInResult:
    """Begin a browser session by a local password, or by a one-time password, which is used up."""
    # An unknown name takes as long as a known one.
    name = normal_name(name)
    if throttle.must_wait(address, name):
        return SignInResult(None, _REFUSED)
    account_secrets = await run_in_threadpool(_read_account_secrets, database, name)
    right = await verify_password_async(None if account_secrets is None else account_secrets.password_hash, password)
    begun = None
    if account_secrets is not None and (right or _is_one_time(account_secrets.one_time_sha256, password)):
        begun = await run_in_threadpool(_begin_session_if_unchanged, database, keys, account_secrets, password)
    if begun is not None:
        throttle.succeeded(address, name)
        return begun
    if throttle.failed(address, name) and account_secrets is not None:
        await run_in_threadpool(_note_throttling, database, keys, account_secrets.account_id)
    return SignInResult(None, _REFUSED)


def _is_one_time(stored: str | None, password: str) -> bool:
    return stored is not None and hmac.compare_digest(stored, hash_secret(password.strip().lower()))


def _read_account_secrets(database: Database, name: str) -> _AccountSecrets | None:
    with database.read() as session:
        account = session.execute(select(Account).where(Account.name == name)).scalar_one_or_none()
        if account is None or account.disabled_at is not None:
            return None
        return _AccountSecrets(account.id, account.password_hash, account.one_time_sha256)


def _begin_session_if_unchanged(
    database: Database, keys: AuditKeys, known: _AccountSecrets, password: str
) -> SignInResult | None:
    """Begin the session, unless the password has been changed or used up since it was read."""
    with database.write() as session:
        account = session.get_one(Account, known.account_id, with_for_update=True)
        if account.disabled_at is not None:
            return None
        used_up = _is_one_time(account.one_time_sha256, password)
        if used_up:
            account.one_time_sha256 = None
        elif account.password_hash is None or account.password_hash != known.password_hash:
            return None
        return SignInResult(begin_session(session, keys, account), used_up=used_up)


def _note_throttling(database: Database, keys: AuditKeys, account_id: uuid.UUID) -> None:
    """Record password guessing at an account, once per series of wrong passwords."""
    with database.write() as session:
        name = session.get_one(Account, account_id).name
        events.record_event(session, keys, actor=name, action="account.throttle", object_id=account_id)


#: How long after a sign-in at an OpenID provider a person may sign, and by how much its clock may be ahead.
FRESH, AHEAD = timedelta(minutes=5), timedelta(minutes=1)


class SignInTooOld(Forbidden):
    """Somebody signs whose last sign-in at the provider is too long ago."""

    code, title = "sign-in-too-old", "Sign in again"


def is_sign_in_fresh(session: Session, principal: Principal) -> bool | None:
    """Whether the last sign-in at the provider is recent enough to sign; None if the account has no single sign-on."""
    if session.get_one(Account, principal.account_id).oidc_subject is None:
        return None
    at = session.get_one(BrowserSession, principal.session_id).authenticated_at
    return at is not None and -AHEAD <= time_of(session) - at <= FRESH


def confirm_signer(request: Request, session: Session, principal: Principal, password: str | None) -> None:
    """Make sure that the person is there who signs: by password, throttled as at sign-in, or by a fresh sign-in.

    The transaction ends, so that nothing is locked while a password is hashed.
    """
    if principal.session_id is None:
        raise Forbidden("API keys never sign; a person signs, in a browser")
    fresh = None if password else is_sign_in_fresh(session, principal)
    if fresh is not None:
        session.rollback()
        if not fresh:
            raise SignInTooOld("sign in again at your provider; a signature needs a sign-in of the last 5 minutes")
        return
    address = "" if request.client is None else request.client.host
    throttle: SignInThrottle = request.app.state.sign_in_throttle
    if throttle.must_wait(address, principal.name):
        raise RateLimited("too many wrong passwords; wait a few minutes")
    try:
        confirm_password(session, principal, password)
    except WrongPassword:
        if password and throttle.failed(address, principal.name):
            context = request.app.state.context
            _note_throttling(context.database, context.keys.audit, principal.account_id)
        raise
    throttle.succeeded(address, principal.name)
