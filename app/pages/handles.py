"""Handles in pages: of the account that a page was made for, and of a read of that account.

The cookie says who is signed in when a form arrives; the handle says for whom the form was made. They differ where
two people share a browser.
"""

import hmac
import re
import uuid

from app.audit.chain.keys import ReaderKeys
from app.http.errors import NotFound, OtherAccount
from app.http.principal import Principal

_HANDLE = re.compile(r"([0-9a-f]{32}\.[0-9a-f]{32})(?:\.([0-9]{1,6}))?")


def _digest(keys: ReaderKeys, *parts: bytes) -> str:
    return keys.pages.digest(b":".join(parts)).hex()[:32]


def account_handle(keys: ReaderKeys, account_id: uuid.UUID) -> str:
    """Name of an account inside its browser, which says nothing to anybody else."""
    return _digest(keys, b"account", account_id.bytes)


def read_handle(keys: ReaderKeys, account_id: uuid.UUID, read_id: uuid.UUID) -> str:
    """Name of a read in the pages of the account that has it."""
    return f"{read_id.hex}.{_digest(keys, b'read', account_id.bytes, read_id.bytes)}"


def correction_handle(keys: ReaderKeys, account_id: uuid.UUID, read_id: uuid.UUID, position: int) -> str:
    """Name of a read's answer that a page would replace, by its place in the chain: sent twice, it replaces one."""
    return f"{read_handle(keys, account_id, read_id)}.{position}"


def read_of_handle(keys: ReaderKeys, principal: Principal, handle: str) -> uuid.UUID:
    """The read that a form of this caller's pages is about.

    Raises:
        NotFound: this is no handle of a read.
        OtherAccount: the page was made for somebody else.
    """
    read_id, position = answer_of_handle(keys, principal, handle)
    if position is not None:
        raise NotFound("there is no such read")
    return read_id


def answer_of_handle(keys: ReaderKeys, principal: Principal, handle: str) -> tuple[uuid.UUID, int | None]:
    """The read that a form of this caller's pages answers, and the place of the answer that it replaces, if any.

    Raises:
        NotFound: this is no handle.
        OtherAccount: the page was made for somebody else.
    """
    parts = _HANDLE.fullmatch(handle)
    if parts is None:
        raise NotFound("there is no such read")
    read_id = uuid.UUID(hex=parts[1].split(".")[0])
    if not hmac.compare_digest(parts[1], read_handle(keys, principal.account_id, read_id)):
        raise OtherAccount("this page was opened by another person: they must sign in again to answer it")
    return read_id, None if parts[2] is None else int(parts[2])
