"""Annotators: the person of an account, or a reader named by an outside system."""

import uuid
from contextlib import suppress

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from app.accounts.names import look_alike, name_key, normal_name
from app.database.advisory_locks import AdvisoryLock, acquire_lock
from app.database.engine import insert_if_absent
from app.database.tables import Account, Annotator, ApiKey, new_id, time_of
from app.http.errors import Conflict, Forbidden, InvalidValue
from app.http.principal import Principal, role_or_key_sees_more
from ml.messages import Message


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


def reading_annotators(session: Session) -> list[Annotator]:
    """Annotators who can be asked for a read: people with an enabled account whose reads are blind, ordered."""
    # Whoever has not read yet becomes an annotator here.
    statement = (
        select(Account.id, Account.name, Account.role, ApiKey.scopes)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .where(Account.role == "annotator", Account.disabled_at.is_(None))
        .order_by(Account.id)
    )
    rows = session.execute(statement).all()
    seeing = {row.id for row in rows if role_or_key_sees_more(row.role, row.scopes)}
    names = {row.id: row.name for row in rows if row.id not in seeing}
    annotators_by_account = {
        annotator.account_id: annotator
        for annotator in session.execute(select(Annotator).where(Annotator.account_id.in_(names))).scalars()
    }
    for account_id, name in names.items():  # in one order, so that two writers do not wait for each other
        if account_id not in annotators_by_account:
            with suppress(Forbidden):  # the name is another annotator's: this person cannot read
                annotators_by_account[account_id] = add_annotator(session, name, account_id)
    return sorted(annotators_by_account.values(), key=lambda annotator: annotator.id)


def add_annotator(session: Session, name: str, account_id: uuid.UUID | None) -> Annotator:
    """Make an annotator, or find the one that another request is making."""
    values = {"id": new_id(), "created_at": time_of(session), "name": name, "account_id": account_id}
    insert_if_absent(session, Annotator, values)
    annotator = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one()
    if annotator.account_id != account_id:
        raise Forbidden("this name belongs to another annotator; ask for another one")
    return annotator


def outside_annotator(session: Session, name: str) -> Annotator:
    """The annotator whom an outside system names, made at the first label; never the person of an account."""
    name = normal_name(name)
    if not name:
        raise InvalidValue("the name of the annotator is empty")
    known = session.execute(select(Annotator).where(Annotator.name == name)).scalar_one_or_none()
    if known is not None and known.account_id is None:
        return known
    acquire_lock(session, AdvisoryLock.NAMES)
    for account in session.execute(select(Account.name)).scalars():
        if name_key(account) == name_key(name):
            raise Forbidden("this annotator has an account here: their labels enter by their own reads only")
        if look_alike(account, name):
            raise Forbidden("this name looks like that of an account here (Unicode TR 39); use another name")
    for other in session.execute(select(Annotator).where(Annotator.account_id.is_(None))).scalars():
        if name_key(other.name) == name_key(name):
            return other
    return add_annotator(session, name, None)


def refuse_name_in_use(session: Session, name: str) -> None:
    """Refuse a new account's name that an account or an outside annotator has, or that looks like it."""
    acquire_lock(session, AdvisoryLock.NAMES)
    outside = select(Annotator.name).where(Annotator.account_id.is_(None))
    for other in session.execute(select(Account.name)).scalars():
        if name_key(other) == name_key(name):
            raise Conflict("an account of this name exists")
        if look_alike(other, name):
            raise Conflict(Message("this name looks like that of the account {name}; choose another", name=repr(other)))
    for other in session.execute(outside).scalars():
        if look_alike(other, name):
            raise Conflict(
                Message("an outside system gives labels under the name {name}; choose another", name=repr(other))
            )


def account_sees_more(session: Session, account_id: uuid.UUID) -> bool:
    """Whether an account may or might once see more of cases than their pixels, by its role or any key."""
    # Which of two keys a request comes with says nothing about what its person has seen.
    statement = (
        select(Account.role, ApiKey.scopes)
        .outerjoin(ApiKey, ApiKey.account_id == Account.id)
        .where(Account.id == account_id)
    )
    return any(role_or_key_sees_more(role, scopes) for role, scopes in session.execute(statement))
