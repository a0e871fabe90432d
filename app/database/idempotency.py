"""Idempotency keys: a retried POST returns the first answer and stores nothing twice."""

import hashlib
import json
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Never, TypeVar

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from pydantic_core import to_jsonable_python
from sqlalchemy import bindparam, delete, select, tuple_, update
from sqlalchemy.orm import Session

from app.audit.chain.events import described_cases
from app.database.engine import insert_if_absent
from app.database.tables import IdempotencyRecord, time_of
from app.http.errors import BadRequest, InvalidValue, ServiceUnavailable


class KeyMissing(BadRequest):
    """A POST that stores something came without an Idempotency-Key."""

    code, title = "idempotency-key-missing", "Idempotency-Key missing"


class KeyReused(InvalidValue):
    """An Idempotency-Key was used before for another request."""

    code, title = "idempotency-key-reused", "Idempotency-Key used for another request"


MAX_KEY_LENGTH = 200
#: How long an answer is kept for retries of its request.
KEPT = timedelta(days=7)
#: Answers deleted in one transaction.
SWEEP_ROWS = 1000
#: In place of a case, for an answer that shows several: it goes with the first patient that is erased.
SEVERAL_CASES = uuid.UUID(int=0)
_PENDING = 0
Body = TypeVar("Body", bound=BaseModel)


_records = IdempotencyRecord.metadata.tables[IdempotencyRecord.__tablename__]
_of_caller = (_records.c.account_id == bindparam("of_account"), _records.c.key == bindparam("of_key"))
_RECORD = select(IdempotencyRecord).where(*_of_caller)
_FORGET = delete(IdempotencyRecord).where(*_of_caller).execution_options(synchronize_session=False)
_KEEP = update(_records).where(*_of_caller).values({name: bindparam(name) for name in ("status", "body", "case_id")})


def request_digest(*parts: Any) -> str:
    """SHA-256 of what a request asks for, independent of how its body was encoded."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=to_jsonable_python).encode()).hexdigest()


@dataclass(frozen=True)
class Once:
    """A request with a key: it is done once, however often it is sent."""

    # whose key it is
    account_id: uuid.UUID
    # chosen by the caller
    key: str
    request: str

    @classmethod
    def of(cls, request: Request, key: str) -> "Once":
        """A request whose guard has let its caller through."""
        return cls(request.state.caller.account_id, key, f"{request.method} {request.scope['path']}")

    def answered(self, session: Session) -> bool:
        """Whether this key has an answer already, so that nothing costly needs to be prepared for it."""
        return session.get(IdempotencyRecord, (self.account_id, self.key)) is not None

    def replay(self, session: Session, body: Any) -> Response:
        """Give the answer that this key got before."""
        return self(session, body, _refuse_expired)

    def __call__(
        self,
        session: Session,
        body: Any,
        action: Callable[[], tuple[int, Body | None]],
        *,
        case_id_of: Callable[[Body], uuid.UUID | None] | None = None,
    ) -> Response:
        """Do the action, or give the answer that the same key got before."""
        digest = request_digest(self.request, body)
        mine = {"of_account": self.account_id, "of_key": self.key}
        values = {
            "account_id": self.account_id,
            "key": self.key,
            "request_sha256": digest,
            "status": _PENDING,
            "body": None,
            "created_at": time_of(session),
        }
        if not insert_if_absent(session, IdempotencyRecord, values):
            record = session.execute(_RECORD, mine).scalar_one_or_none()
            if record is None:  # swept between the two statements
                _refuse_expired()
            if record.request_sha256 != digest:
                raise KeyReused("this Idempotency-Key was sent with another request; choose a new one")
            return JSONResponse(record.body, record.status, {"Idempotent-Replayed": "true"})
        status, answer = action()
        if answer is None:
            session.execute(_FORGET, mine)
            return Response(status_code=status)
        content = answer.model_dump(mode="json")
        case_id = _get_only_case_id(session) if case_id_of is None else case_id_of(answer)
        session.execute(_KEEP, {**mine, "status": status, "body": content, "case_id": case_id})
        return JSONResponse(content, status)


def _refuse_expired() -> Never:
    raise ServiceUnavailable("the answer to this Idempotency-Key has expired; send the request again")


async def once_by_header(
    request: Request,
    idempotency_key: Annotated[str | None, Header(max_length=MAX_KEY_LENGTH)] = None,
) -> Once:
    """The request with its Idempotency-Key."""
    if not idempotency_key:
        raise KeyMissing("send an Idempotency-Key header: a new value for each new request, the same value for a retry")
    return Once.of(request, idempotency_key)


#: Of a route that stores something: ``return once(session, body, lambda: …)``.
Idempotent = Annotated[Once, Depends(once_by_header)]


def _get_only_case_id(session: Session) -> uuid.UUID | None:
    cases = described_cases(session)
    return cases.pop() if len(cases) == 1 else None


def delete_expired_answers(session: Session, at: datetime) -> int:
    """Delete answers that are too old to be requested again."""
    keys = (IdempotencyRecord.account_id, IdempotencyRecord.key)
    old = select(*keys).where(IdempotencyRecord.created_at < at - KEPT).limit(SWEEP_ROWS)
    deleted = session.execute(delete(IdempotencyRecord).where(tuple_(*keys).in_(old)).returning(*keys))
    return len(deleted.all())


def delete_case_answers(session: Session, ids: Collection[uuid.UUID]) -> int:
    """Delete answers that show, or may show, one of these cases or specimens; gives their number."""
    gone = delete(IdempotencyRecord).where(IdempotencyRecord.case_id.in_([*ids, SEVERAL_CASES]))
    return len(session.execute(gone.returning(IdempotencyRecord.key)).all())
