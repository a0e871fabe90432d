"""A retried POST gives the answer of the first, and stores nothing twice.

The key's row commits in the same transaction as what the request stores: after a lost connection the caller
sends the same key again and gets the answer that was meant for it.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Header
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.platform.database import insert_if_absent
from app.platform.errors import KeyMissing, KeyReused
from app.platform.principal import Principal
from app.tables import IdempotencyRecord, now

MAX_KEY_LENGTH = 200
_PENDING = 0


def required_key(
    idempotency_key: Annotated[
        str | None, Header(max_length=MAX_KEY_LENGTH, description="Chosen by the caller, one for each new request.")
    ] = None,
) -> str:
    """The request's Idempotency-Key.

    Raises:
        KeyMissing: there is none, or an empty one.
    """
    if not idempotency_key:
        raise KeyMissing("send a header Idempotency-Key with a new value for each new request, and the same on retry")
    return idempotency_key


def request_digest(*parts: Any) -> str:
    """SHA-256 of what a request asks for, independent of how its body was encoded."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def answered(session: Session, principal: Principal, key: str) -> bool:
    """Whether this key has an answer already, so that nothing costly needs to be prepared for it."""
    return session.get(IdempotencyRecord, (principal.account_id, key)) is not None


def once(
    session: Session, principal: Principal, key: str, digest: str, action: Callable[[], tuple[int, BaseModel]]
) -> JSONResponse:
    """Do the action, or give the answer that the same key got before.

    Args:
        session: the request's writing session.
        principal: whose key it is.
        key: Idempotency-Key.
        digest: of the request, by ``request_digest``.
        action: stores something and returns status and body.

    Returns:
        The answer, with ``Idempotent-Replayed: true`` where it is repeated.

    Raises:
        KeyReused: the key was used for another request.
    """
    values = {
        "account_id": principal.account_id,
        "key": key,
        "request_sha256": digest,
        "status": _PENDING,
        "body": None,
        "created_at": now(),
    }
    new = insert_if_absent(session, IdempotencyRecord, values)
    where = (IdempotencyRecord.account_id == principal.account_id, IdempotencyRecord.key == key)
    record = session.execute(select(IdempotencyRecord).where(*where)).scalar_one()
    if not new:
        if record.request_sha256 != digest:
            raise KeyReused("this Idempotency-Key was sent with another request; choose a new one")
        return JSONResponse(record.body, record.status, {"Idempotent-Replayed": "true"})
    status, body = action()
    record.status, record.body = status, body.model_dump(mode="json")
    return JSONResponse(record.body, status)
