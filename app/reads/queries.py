"""Database access of requests, leases and label chains."""

import hashlib
import hmac
import uuid
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, and_, cast, exists, func, select, update
from sqlalchemy.orm import Session

from app.platform.errors import NotFound
from app.platform.principal import Principal
from app.tables import Annotator, Label, Read, ReadRequest

# requests due first, among which each annotator has an order of its own
_WINDOW = 256
_SWEEP = 200
_PRIME = 2**31 - 1


def annotator_locked(session: Session, annotator_id: uuid.UUID) -> Annotator:
    """Annotator row, locked, so that one person's requests come one after the other."""
    return session.execute(select(Annotator).where(Annotator.id == annotator_id).with_for_update()).scalar_one()


def expire_overdue(session: Session, time: datetime) -> int:
    """Give back requests whose lease has run out.

    Returns:
        How many.
    """
    overdue = (
        select(ReadRequest.id)
        .where(ReadRequest.state == "leased", ReadRequest.lease_expires_at < time)
        .order_by(ReadRequest.id)
        .limit(_SWEEP)
        .with_for_update(skip_locked=True)
    )
    ids = list(session.execute(overdue).scalars())
    if ids:
        leased = and_(Read.request_id.in_(ids), Read.state == "leased")
        session.execute(update(Read).where(leased).values(state="expired", ended_at=time))
        back = update(ReadRequest).where(ReadRequest.id.in_(ids))
        session.execute(back.values(state="open", lease_expires_at=None))
    return len(ids)


def _own_order(secret: bytes, annotator_id: uuid.UUID) -> ColumnElement[int]:
    """Place of a request among those of a day, by a permutation of this annotator's own."""
    digest = hmac.new(secret, b"order:" + annotator_id.bytes, hashlib.sha256).digest()
    factor = int.from_bytes(digest[:4], "big") % (_PRIME - 1) + 1
    offset = int.from_bytes(digest[4:8], "big") % _PRIME
    # 64 bit: PostgreSQL multiplies two 32-bit integers in 32 bits
    return (cast(ReadRequest.shuffle, BigInteger) * factor + offset) % _PRIME


def _free_for(annotator_id: uuid.UUID) -> ColumnElement[bool]:
    """Whether a request waits for somebody, and its case was never with this annotator."""
    busy = exists().where(
        Read.case_id == ReadRequest.case_id,
        Read.annotator_id == annotator_id,
        Read.state.in_(("leased", "committed", "declined")),
    )
    labelled = exists().where(Label.case_id == ReadRequest.case_id, Label.annotator_id == annotator_id)
    return and_(ReadRequest.state == "open", ~busy, ~labelled)


def count_waiting(session: Session, principal: Principal) -> int:
    """Cases that an annotator could be given, of the first thousand requests."""
    annotator = select(Annotator.id).where(Annotator.account_id == principal.account_id)
    annotator_id = session.execute(annotator).scalar_one_or_none() or uuid.UUID(int=0)
    waiting = select(ReadRequest.case_id).where(_free_for(annotator_id)).limit(1000).subquery()
    return session.execute(select(func.count(waiting.c.case_id.distinct()))).scalar_one()


def next_request(session: Session, secret: bytes, annotator_id: uuid.UUID, *, lock: bool = True) -> ReadRequest | None:
    """The open request that this annotator reads next, locked; requests that others are taking are passed over.

    Args:
        session: of the request.
        secret: from which each annotator's own order follows.
        annotator_id: who.
        lock: False for a look ahead, which takes nothing.
    """
    window = (
        select(ReadRequest.id)
        .where(_free_for(annotator_id))
        .order_by(ReadRequest.due_on, ReadRequest.shuffle)
        .limit(_WINDOW)
    )
    found = (
        select(ReadRequest)
        .where(ReadRequest.id.in_(window), ReadRequest.state == "open")
        .order_by(ReadRequest.due_on, _own_order(secret, annotator_id))
        .limit(1)
    )
    if lock:
        found = found.with_for_update(skip_locked=True)
    return session.execute(found).scalar_one_or_none()


def open_request_of_case(
    session: Session, case_id: uuid.UUID, rounds: tuple[str, ...] = ("planned", "adjudication")
) -> ReadRequest | None:
    """The first request of a case that nobody holds, locked."""
    found = (
        select(ReadRequest)
        .where(ReadRequest.case_id == case_id, ReadRequest.state == "open", ReadRequest.round.in_(rounds))
        .order_by(ReadRequest.ordinal)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    return session.execute(found).scalar_one_or_none()


def requests_of_case(session: Session, case_id: uuid.UUID) -> list[ReadRequest]:
    """Every request of a case, in order."""
    found = select(ReadRequest).where(ReadRequest.case_id == case_id).order_by(ReadRequest.ordinal)
    return list(session.execute(found).scalars())


def own_read(session: Session, annotator_id: uuid.UUID | None, read_id: uuid.UUID, *, lock: bool = False) -> Read:
    """A read of this annotator.

    Raises:
        NotFound: there is none of this id, or it is somebody else's.
    """
    read = session.get(Read, read_id, with_for_update=True if lock else None)
    if read is None or annotator_id is None or read.annotator_id != annotator_id:
        raise NotFound("there is no such read")
    return read


def lease_on_case(session: Session, annotator_id: uuid.UUID, case_id: uuid.UUID) -> Read | None:
    """The lease that an annotator holds on a case."""
    found = select(Read).where(Read.case_id == case_id, Read.annotator_id == annotator_id, Read.state == "leased")
    return session.execute(found).scalar_one_or_none()


def leases_of(session: Session, annotator_id: uuid.UUID) -> list[Read]:
    """Leases that an annotator holds, oldest first."""
    found = select(Read).where(Read.annotator_id == annotator_id, Read.state == "leased").order_by(Read.id)
    return list(session.execute(found).scalars())


def chain_head(session: Session, case_id: uuid.UUID, annotator_id: uuid.UUID) -> Label | None:
    """The newest label of an annotator's chain on a case."""
    found = (
        select(Label)
        .where(Label.case_id == case_id, Label.annotator_id == annotator_id)
        .order_by(Label.position.desc())
        .limit(1)
    )
    return session.execute(found).scalar_one_or_none()
