"""Accounts, keys, one-time passwords and browser sessions."""

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select
from sqlalchemy.orm import Session

from app.accounts.names import look_alike, name_key, normal_name
from app.accounts.passwords import hash_password, verify_password
from app.audit.chain import events
from app.audit.chain.covered_rows import update_columns
from app.audit.chain.keys import AuditKeys
from app.database.advisory_locks import AdvisoryLock, acquire_lock
from app.database.engine import Database, insert_if_absent
from app.database.tables import Account, Annotator, ApiKey, BrowserSession, Invitation, new_id, time_of
from app.http.errors import Conflict, Forbidden, InvalidValue, NotFound, Unauthenticated
from app.http.principal import READING, ROLE_SCOPES, SCOPES, Principal, can_see_more_than_pixels, role_or_key_sees_more
from ml.messages import Message

SESSION_IDLE = timedelta(minutes=30)
SESSION_LIFETIME = timedelta(hours=12)
#: How often a session in use is written back, and so by how much sooner it may end.
SEEN_EVERY = timedelta(minutes=1)
#: Who acts when a command does.
COMMAND_LINE = "command line"


def hash_secret(text: str) -> str:
    """SHA-256 of a secret that is long and random, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


_KEY = (
    select(
        ApiKey.secret_sha256,
        ApiKey.scopes,
        ApiKey.expires_at,
        ApiKey.revoked_at,
        Account.disabled_at,
        Account.id,
        Account.name,
        Account.role,
        Account.language,
    )
    .join(Account, Account.id == ApiKey.account_id)
    .where(ApiKey.id == bindparam("key_id"))
)
_KEY_COLUMNS = len(_KEY.selected_columns)


@cache
def _key_statement(also: tuple[ColumnElement[Any], ...]) -> Select[Any]:
    return _KEY.add_columns(*also)


def _refused_key() -> Unauthenticated:
    return Unauthenticated("the API key is not valid")


def principal_of_key(
    database: Database, token: str, also: tuple[ColumnElement[Any], ...] = ()
) -> tuple[Principal, Sequence[Any]]:
    """Caller behind a bearer key ``sr_<id>_<secret>``, and the values of further columns."""
    parts = token.split("_")
    try:
        if len(parts) != 3 or parts[0] != "sr":
            raise _refused_key()
        key_id = uuid.UUID(hex=parts[1])
    except ValueError as exc:
        raise _refused_key() from exc
    time = database.clock()
    with database.engine.connect() as connection:  # every request of the API comes by here: no session for one row
        row = connection.execute(_key_statement(also), {"key_id": key_id, "today": time.date().isoformat()}).first()
    if row is None:
        raise _refused_key()
    secret, key_scopes, expires_at, *ended, account_id, name, role, language = row[:_KEY_COLUMNS]
    if not hmac.compare_digest(secret, hash_secret(parts[2])) or any(ended):
        raise _refused_key()
    if expires_at is not None and expires_at <= time:
        raise _refused_key()
    scopes = ROLE_SCOPES[role] | frozenset(key_scopes)
    return Principal(account_id, name, role, scopes, language=language), row[_KEY_COLUMNS:]


def principal_of_cookie(session: Session, token: str) -> tuple[Principal, uuid.UUID, bool]:
    """Caller behind a session cookie, its session, and whether the session's last use should be written back."""
    statement = (
        select(BrowserSession, Account)
        .join(Account, Account.id == BrowserSession.account_id)
        .where(BrowserSession.token_sha256 == hash_secret(token))
    )
    row, time = session.execute(statement).first(), time_of(session)
    if row is None or row[0].ended_at is not None:
        raise Unauthenticated("sign in first")
    signed_in, account = row
    if not -SEEN_EVERY <= time - signed_in.seen_at <= SESSION_IDLE or time - signed_in.created_at > SESSION_LIFETIME:
        raise Unauthenticated("the session has ended; sign in again")
    if account.disabled_at is not None:
        raise Unauthenticated("sign in first")
    ends, scopes = signed_in.created_at + SESSION_LIFETIME, ROLE_SCOPES[account.role]
    principal = Principal(account.id, account.name, account.role, scopes, signed_in.id, ends, account.language)
    return principal, signed_in.id, time - signed_in.seen_at > SEEN_EVERY


def choose_language(session: Session, principal: Principal, language: str | None) -> None:
    """Remember in which language an account has its pages; None for what its browser asks for."""
    session.get_one(Account, principal.account_id).language = language


def touch_session(session: Session, session_id: uuid.UUID) -> None:
    """Write back that a browser session is in use."""
    session.get_one(BrowserSession, session_id).seen_at = time_of(session)


def _find_account_by_name(session: Session, name: str) -> Account | None:
    return session.execute(select(Account).where(Account.name == normal_name(name))).scalar_one_or_none()


def add_account(
    session: Session, keys: AuditKeys, name: str, role: str, *, actor: str = COMMAND_LINE, guest: bool = False
) -> Account:
    """Make an account."""
    if role not in ROLE_SCOPES:
        raise ValueError(
            Message(
                "unknown role {role}; choose one of {role_scopes}", role=repr(role), role_scopes=", ".join(ROLE_SCOPES)
            )
        )
    name = normal_name(name)
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise ValueError(Message("a name must have 1 to 100 printable characters"))
    refuse_name_in_use(session, name)
    account = Account(name=name, role=role, guest=guest)
    session.add(account)
    session.flush()
    if role == "annotator":  # from now on no outside system can label under this name
        add_annotator(session, name, account.id)
    events.record_event(session, keys, actor=actor, action="account.add", object_id=account.id, details={"role": role})
    return account


def account_to_invite(session: Session, keys: AuditKeys, name: str, *, actor: str) -> Account:
    """The account of an annotator by name, made as that of a guest if there is none."""
    account = _find_account_by_name(session, name)
    if account is None:
        return add_account(session, keys, name, "annotator", actor=actor, guest=True)
    if account.role != "annotator" or account.disabled_at is not None:
        raise Conflict("this name belongs to an account that is disabled or no annotator's; choose another name")
    return account


def link_subject(session: Session, keys: AuditKeys, name: str, subject: str, *, actor: str = COMMAND_LINE) -> None:
    """Let the person of an OpenID subject («issuer subject») sign in to an account."""
    account = _find_account_by_name(session, name)
    if account is None:
        raise NotFound("there is no account {name}", name=repr(name))
    other = session.execute(select(Account).where(Account.oidc_subject == subject)).scalar_one_or_none()
    if other is not None and other.id != account.id:
        raise Conflict("this subject identifier belongs to another account")
    account.oidc_subject = subject
    events.record_event(session, keys, actor=actor, action="account.link", object_id=account.id)


def issue_one_time_password(session: Session, keys: AuditKeys, name: str, *, actor: str = COMMAND_LINE) -> str:
    """Issue a one-time password for an account; ends its sessions and old password."""
    account = _find_account_by_name(session, name)
    if account is None:
        raise NotFound("there is no account {name}", name=repr(name))
    password = "-".join(secrets.token_hex(2) for _ in range(5))
    account.one_time_sha256, account.password_hash = hash_secret(password), None
    _end_sessions(session, account)
    events.record_event(session, keys, actor=actor, action="account.one_time_password", object_id=account.id)
    return password


def begin_session(session: Session, keys: AuditKeys, account: Account, authenticated_at: datetime | None = None) -> str:
    """New browser session of an account; returns its token."""
    token = secrets.token_urlsafe(32)
    times = {"seen_at": time_of(session), "authenticated_at": authenticated_at}
    session.add(BrowserSession(account_id=account.id, token_sha256=hash_secret(token), **times))
    events.record_event(session, keys, actor=account.name, action="session.start", object_id=account.id)
    return token


def choose_password(session: Session, keys: AuditKeys, principal: Principal, present: str, wanted: str) -> None:
    """Set one's own local password; every other session of the account ends."""
    stored = _stored_hash(session, principal)
    if stored is not None and not verify_password(stored, present):
        raise WrongPassword("the current password is wrong")
    try:
        chosen = hash_password(wanted)
    except ValueError as exc:
        raise InvalidValue(str(exc)) from exc
    account = session.get_one(Account, principal.account_id, with_for_update=True)
    if account.password_hash != stored:
        raise Conflict("the password has been changed; sign in again")
    account.password_hash = chosen
    _end_sessions(session, account, principal.session_id)
    events.record_event(session, keys, actor=account.name, action="account.password", object_id=account.id)


def needs_password(session: Session, principal: Principal) -> bool:
    """Whether somebody could not sign in again: no password of their own, and no single sign-on."""
    account = session.get_one(Account, principal.account_id)
    return account.password_hash is None and account.oidc_subject is None


def _end_sessions(session: Session, account: Account, kept: uuid.UUID | None = None) -> None:
    going_on = BrowserSession.account_id == account.id, BrowserSession.ended_at.is_(None)
    for signed_in in session.execute(select(BrowserSession).where(*going_on)).scalars():
        if signed_in.id != kept:
            signed_in.ended_at = time_of(session)


def _stored_hash(session: Session, principal: Principal) -> str | None:
    """Hash of one's own password; the transaction ends, so that nothing is locked while a password is hashed."""
    stored = session.get_one(Account, principal.account_id).password_hash
    session.rollback()
    return stored


class WrongPassword(Forbidden):
    """The password that a step asks for is not the caller's."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.faults = {"password": detail}


def confirm_password(session: Session, principal: Principal, password: str | None) -> None:
    """Make sure that it is still the person who signed in; API keys prove themselves with every request."""
    if principal.session_id is None and password is None:
        return
    stored = _stored_hash(session, principal)
    if stored is None and principal.session_id is not None:
        raise WrongPassword("this step needs your password; choose one first")
    if not verify_password(stored, password or ""):
        raise WrongPassword("the password is missing or wrong; enter it again")


def set_disabled(session: Session, keys: AuditKeys, name: str, *, disabled: bool, actor: str = COMMAND_LINE) -> None:
    """Disable an account, which ends its sessions at once, or enable it."""
    account = _find_account_by_name(session, name)
    if account is None:
        raise NotFound("there is no account {name}", name=repr(name))
    account.disabled_at = time_of(session) if disabled else None
    if disabled:
        _end_sessions(session, account)
        open_links = (Invitation.account_id == account.id, Invitation.used_at.is_(None))
        session.execute(update_columns(Invitation, used_at=time_of(session)).where(*open_links))
    action = "account.disable" if disabled else "account.enable"
    events.record_event(session, keys, actor=actor, action=action, object_id=account.id)


def sign_out(session: Session, token: str) -> None:
    """End a browser session."""
    statement = select(BrowserSession).where(BrowserSession.token_sha256 == hash_secret(token))
    signed_in = session.execute(statement).scalar_one_or_none()
    if signed_in is not None:
        signed_in.ended_at = time_of(session)


def add_key(
    session: Session,
    keys: AuditKeys,
    name: str,
    scopes: list[str],
    expires_at: datetime | None = None,
    *,
    actor: str = COMMAND_LINE,
) -> tuple[ApiKey, str]:
    """New API key of an account; the token is shown once and never stored."""
    account = _find_account_by_name(session, name)
    if account is None:
        raise NotFound("there is no account {name}", name=repr(name))
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown:
        raise ValueError(
            Message("unknown scope {unknown}; choose from {scopes}", unknown=repr(unknown[0]), scopes=", ".join(SCOPES))
        )
    _require_blind_or_seeing(session, account, scopes)
    value = secrets.token_hex(32)
    key = ApiKey(account_id=account.id, secret_sha256=hash_secret(value), scopes=sorted(scopes), expires_at=expires_at)
    session.add(key)
    session.flush()
    details = {"account": account.name, "scopes": key.scopes}
    events.record_event(session, keys, actor=actor, action="key.add", object_id=key.id, details=details)
    return key, f"sr_{key.id.hex}_{value}"


def _require_blind_or_seeing(session: Session, account: Account, scopes: list[str]) -> None:
    """Refuse a key by which an account would both read cases and see more of them than their pixels."""
    keys = session.execute(select(ApiKey.scopes).where(ApiKey.account_id == account.id)).scalars()
    together = ROLE_SCOPES[account.role].union(scopes, *keys)
    if READING in together and can_see_more_than_pixels(together):
        raise ValueError(
            Message(
                "annotators read blinded, so their keys, even revoked ones, may have only the scope "
                "{reading}; use two accounts",
                reading=READING,
            )
        )


def revoke_key(session: Session, keys: AuditKeys, key_id: uuid.UUID, *, actor: str = COMMAND_LINE) -> None:
    """Revoke a key."""
    key = session.get(ApiKey, key_id)
    if key is None:
        raise NotFound("there is no such key")
    if key.revoked_at is None:
        key.revoked_at = time_of(session)
        events.record_event(session, keys, actor=actor, action="key.revoke", object_id=key.id)


def all_accounts(session: Session) -> list[Account]:
    """Every account, by name."""
    return list(session.execute(select(Account).order_by(Account.name)).scalars())


def last_sign_ins(session: Session) -> dict[uuid.UUID, datetime]:
    """Time of the last browser sign-in of each account."""
    newest = select(BrowserSession.account_id, func.max(BrowserSession.created_at)).group_by(BrowserSession.account_id)
    return {row[0]: row[1] for row in session.execute(newest)}


def has_accounts(session: Session) -> bool:
    """Whether anyone has an account."""
    return session.execute(select(Account.id).limit(1)).first() is not None


def count_annotators(session: Session) -> int:
    """Number of annotators who may sign in and read whatever waits."""
    of_annotator = (Account.role == "annotator", Account.disabled_at.is_(None), Account.guest.is_(False))
    annotators = select(func.count()).where(*of_annotator)
    return session.execute(annotators).scalar_one()


def had_annotators(session: Session) -> bool:
    """Whether an annotator has an account, be it disabled; else outside systems alone have annotators."""
    accounts = select(Account.id).where(Account.role == "annotator", Account.guest.is_(False)).limit(1)
    return session.execute(accounts).first() is not None


def keys_by_account(session: Session) -> dict[uuid.UUID, list[ApiKey]]:
    """API keys of each account that has any, oldest first."""
    keys: dict[uuid.UUID, list[ApiKey]] = {}
    for key in session.execute(select(ApiKey).order_by(ApiKey.id)).scalars():
        keys.setdefault(key.account_id, []).append(key)
    return keys


def account_of_key(session: Session, key_id: uuid.UUID) -> uuid.UUID:
    """The account of a key that exists."""
    return session.get_one(ApiKey, key_id).account_id


def existing_account(session: Session, account_id: uuid.UUID) -> Account:
    """An account that must exist."""
    account = session.get(Account, account_id)
    if account is None:
        raise InvalidValue("there is no such account")
    return account


def annotator_of_account(session: Session, account_id: uuid.UUID) -> Annotator | None:
    """The annotator of an account, None if it is no annotator's."""
    statement = select(Annotator).where(Annotator.account_id == account_id)
    return session.execute(statement).scalar_one_or_none()


_LOCKED = (
    select(Annotator, Account.role, ApiKey.scopes)
    .join(Account, Account.id == Annotator.account_id)
    .outerjoin(ApiKey, ApiKey.account_id == Account.id)
    .where(Annotator.account_id == bindparam("account_id"))
    .with_for_update(of=Annotator)
)


def locked_annotator(session: Session, account_id: uuid.UUID) -> tuple[Annotator, bool] | None:
    """The annotator of an account, locked, so that one person's requests come one after the other."""
    rows = session.execute(_LOCKED, {"account_id": account_id}).all()
    if not rows:
        return None
    return rows[0][0], any(role_or_key_sees_more(role, scopes) for _, role, scopes in rows)


def read_own_annotator(session: Session, principal: Principal) -> Annotator:
    """The caller as annotator, made at their first read."""
    annotator = annotator_of_account(session, principal.account_id)
    return annotator or add_annotator(session, principal.name, principal.account_id)


def reading_annotators(session: Session, *, guests: bool = False) -> list[Annotator]:
    """Annotators who can be asked for a read: people with an enabled account whose reads are blind, ordered."""
    # Guests are asked by name only.
    statement = (
        select(Annotator, Account.role, ApiKey.scopes)
        .join(Account, Account.id == Annotator.account_id)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .where(Account.role == "annotator", Account.disabled_at.is_(None), Account.guest.in_({False, guests}))
        .order_by(Annotator.id)
    )
    sees_more: dict[Annotator, bool] = {}
    for annotator, role, scopes in session.execute(statement):
        sees_more[annotator] = sees_more.get(annotator, False) or role_or_key_sees_more(role, scopes)
    return [annotator for annotator, sees in sees_more.items() if not sees]


def add_annotator(session: Session, name: str, account_id: uuid.UUID | None) -> Annotator:
    """Make an annotator, or find the one that another request is making."""
    values = {"id": new_id(), "created_at": time_of(session), "name": name, "account_id": account_id}
    insert_if_absent(session, Annotator, values)
    annotator = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one()
    if annotator.account_id != account_id:
        raise Forbidden("this name belongs to another annotator; choose another one")
    return annotator


def outside_annotator(session: Session, name: str) -> Annotator:
    """The annotator whom an outside system names, made at the first label; never the person of an account."""
    known = find_outside_annotator(session, name)
    if known is None:
        acquire_lock(session, AdvisoryLock.NAMES)
        known = find_outside_annotator(session, name)
    return known or add_annotator(session, normal_name(name), None)


def find_outside_annotator(session: Session, name: str) -> Annotator | None:
    """The annotator whom an outside system names, None before the first label; refuses the person of an account."""
    name = normal_name(name)
    if not name:
        raise InvalidValue("the name of the annotator is empty")
    known = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one_or_none()
    if known is not None and known.account_id is None:
        return known
    for account in session.execute(select(Account.name)).scalars():
        if name_key(account) == name_key(name):
            raise Forbidden("this annotator has an account here and must give labels through their own reads")
        if look_alike(account, name):
            raise Forbidden("this name looks like the name of an account here (Unicode TR 39); choose another one")
    for other in session.execute(select(Annotator).where(Annotator.account_id.is_(None))).scalars():
        if name_key(other.name) == name_key(name):
            return other
    return None


def refuse_name_in_use(session: Session, name: str) -> None:
    """Refuse a new account's name that an account or an outside annotator has, or that looks like it."""
    acquire_lock(session, AdvisoryLock.NAMES)
    outside = select(Annotator.name).where(Annotator.account_id.is_(None))
    for other in session.execute(select(Account.name)).scalars():
        if name_key(other) == name_key(name):
            raise Conflict("an account with this name exists")
        if look_alike(other, name):
            raise Conflict("this name looks like the account {name}; choose another one", name=repr(other))
    for other in session.execute(outside).scalars():
        if look_alike(other, name):
            raise Conflict("an external system uses the name {name} for labels; choose another one", name=repr(other))


def account_sees_more(session: Session, account_id: uuid.UUID) -> bool:
    """Whether an account may or might once see more of cases than their pixels, by its role or any key."""
    # Which of two keys a request comes with says nothing about what its person has seen.
    statement = (
        select(Account.role, ApiKey.scopes)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .where(Account.id == account_id)
    )
    return any(role_or_key_sees_more(role, scopes) for role, scopes in session.execute(statement))
