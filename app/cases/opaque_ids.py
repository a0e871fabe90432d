"""Handles of cases: what annotators get in place of identifiers, which sort by the time at which a case was stored.

A handle is the identifier enciphered under a key of the account's own: nothing is kept, a handle of somebody else's
means nothing, and two annotators cannot compare theirs.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fastapi import Depends, Request
from sqlalchemy.orm import Session

from app.accounts.permissions import caller_of
from app.audit.chain.keys import ReaderKeys
from app.context import Parts
from app.database.tables import Case, Repeat
from app.http.principal import Principal


def _cipher(keys: ReaderKeys, account_id: uuid.UUID) -> Cipher[modes.ECB]:
    """A permutation of all identifiers; one block has no pattern that the mode could show."""
    return Cipher(algorithms.AES(keys.cases.digest(account_id.bytes)), modes.ECB())  # noqa: S305


def case_handle(keys: ReaderKeys, principal: Principal, case_id: uuid.UUID) -> uuid.UUID:
    """What a caller knows a case by: its identifier, to annotators a handle."""
    if not principal.blind:
        return case_id
    encryptor = _cipher(keys, principal.account_id).encryptor()
    return uuid.UUID(bytes=encryptor.update(case_id.bytes) + encryptor.finalize())


def case_of_handle(session: Session, keys: ReaderKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    """The case that a caller names; what is no handle of theirs stands for itself."""
    if not principal.blind:
        return handle
    case_id = _deciphered(keys, principal, handle)
    return handle if session.get(Case, case_id) is None else case_id


def _deciphered(keys: ReaderKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    decryptor = _cipher(keys, principal.account_id).decryptor()
    return uuid.UUID(bytes=decryptor.update(handle.bytes) + decryptor.finalize())


@dataclass(frozen=True)
class NamedCase:
    """A case as its caller names it.

    Attributes:
        id: of the case.
        repeat: the second visit to it that the caller's handle stands for; None for the case itself.
    """

    id: uuid.UUID
    repeat: Repeat | None = None

    @property
    def named(self) -> uuid.UUID:
        """What the caller's handle is made from."""
        return self.id if self.repeat is None else self.repeat.named


def named_case(session: Session, keys: ReaderKeys, principal: Principal, handle: uuid.UUID) -> NamedCase:
    """The case that a caller names, or their second visit to one.

    Both are looked up for each handle: else the time of an answer would tell which of the two it is.
    """
    if not principal.blind:
        return NamedCase(handle)
    named = _deciphered(keys, principal, handle)
    repeat = session.get(Repeat, named)
    case_id = named if repeat is None else repeat.case_id
    return NamedCase(handle if session.get(Case, case_id) is None else case_id, repeat)


@dataclass(frozen=True)
class CaseOfPath:
    """What a caller names a case by in the path of a route; it is looked up in the session of the route."""

    handle: uuid.UUID
    request: Request
    keys: ReaderKeys

    def found(self, session: Session) -> NamedCase:
        """The case that the caller means."""
        principal = caller_of(self.request)
        return NamedCase(self.handle) if principal is None else named_case(session, self.keys, principal, self.handle)


async def _case_of_path(case_id: uuid.UUID, request: Request, context: Parts) -> CaseOfPath:
    return CaseOfPath(case_id, request, context.keys.readers)


#: The case in the path of a route that reads, named as its caller knows it.
CaseInPath = Annotated[CaseOfPath, Depends(_case_of_path)]
