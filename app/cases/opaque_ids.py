"""Opaque case identifiers for annotators, encrypted under a key of their account.

A handle is the identifier enciphered under a key of the account's own: nothing is kept, a handle of somebody else's
means nothing, and two annotators cannot compare theirs.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from fastapi import Depends, Request
from sqlalchemy.orm import Session

from app.accounts.service import caller_of
from app.audit.chain.keys import AnnotatorKeys
from app.context import AppContext
from app.database.tables import Case, Repeat
from app.http.principal import Principal


def _make_cipher(keys: AnnotatorKeys, account_id: uuid.UUID) -> Cipher[modes.ECB]:
    """A permutation of all identifiers; one block has no pattern that the mode could show."""
    return Cipher(algorithms.AES(keys.cases.digest(account_id.bytes)), modes.ECB())  # noqa: S305


def case_handle(keys: AnnotatorKeys, principal: Principal, case_id: uuid.UUID) -> uuid.UUID:
    """Return the identifier of a case for a caller; annotators get an opaque one."""
    if not principal.blind:
        return case_id
    encryptor = _make_cipher(keys, principal.account_id).encryptor()
    return uuid.UUID(bytes=encryptor.update(case_id.bytes) + encryptor.finalize())


def case_of_handle(session: Session, keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    """Return the case of a caller's handle; any other identifier is returned unchanged."""
    if not principal.blind:
        return handle
    case_id = _decipher_handle(keys, principal, handle)
    return handle if session.get(Case, case_id) is None else case_id


def _decipher_handle(keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> uuid.UUID:
    decryptor = _make_cipher(keys, principal.account_id).decryptor()
    return uuid.UUID(bytes=decryptor.update(handle.bytes) + decryptor.finalize())


@dataclass(frozen=True)
class ResolvedCase:
    """A case as its caller names it."""

    id: uuid.UUID
    # the second visit to it that the caller's handle stands for; None for the case itself
    repeat: Repeat | None = None

    @property
    def named(self) -> uuid.UUID:
        """Identifier from which the caller's handle is made."""
        return self.id if self.repeat is None else self.repeat.named

    @property
    def purpose(self) -> str:
        """Purpose of the caller's labels of it."""
        return "read" if self.repeat is None else "repeat"


def resolve_case(session: Session, keys: AnnotatorKeys, principal: Principal, handle: uuid.UUID) -> ResolvedCase:
    """The case that a caller names, or their second visit to one."""
    # Both are looked up for each handle: else the time of an answer would tell which of the two it is.
    if not principal.blind:
        return ResolvedCase(handle)
    named = _decipher_handle(keys, principal, handle)
    repeat = session.get(Repeat, named)
    case_id = named if repeat is None else repeat.case_id
    return ResolvedCase(handle if session.get(Case, case_id) is None else case_id, repeat)


@dataclass(frozen=True)
class PathCase:
    """Case reference from a URL, resolved in the session of the route."""

    handle: uuid.UUID
    request: Request
    keys: AnnotatorKeys

    def found(self, session: Session) -> ResolvedCase:
        """The case that the caller means."""
        principal = caller_of(self.request)
        return (
            ResolvedCase(self.handle) if principal is None else resolve_case(session, self.keys, principal, self.handle)
        )


async def _get_path_case(case_id: uuid.UUID, request: Request, context: AppContext) -> PathCase:
    return PathCase(case_id, request, context.keys.readers)


#: The case in the path of a route that reads, named as its caller knows it.
CaseInPath = Annotated[PathCase, Depends(_get_path_case)]
