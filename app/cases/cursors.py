"""Opaque cursors: where a page of a listing ended."""

import base64
import binascii
import math
import struct
import uuid

from app.http.errors import Invalid

_NEED = struct.Struct("<d16s")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _decode(cursor: str) -> bytes:
    return base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))


_UNKNOWN = "the cursor is not one that this service gave out"


def encode_cursor(case_id: uuid.UUID) -> str:
    """Cursor that continues after a case."""
    return _encode(case_id.bytes)


def decode_cursor(cursor: str) -> uuid.UUID:
    """Case that a cursor continues after.

    Raises:
        Invalid: not a cursor that this service gave out.
    """
    try:
        return uuid.UUID(bytes=_decode(cursor))
    except (ValueError, binascii.Error) as exc:
        raise Invalid(_UNKNOWN) from exc


def encode_need_cursor(need: float, case_id: uuid.UUID) -> str:
    """Cursor that continues after a case of the worklist."""
    return _encode(_NEED.pack(need, case_id.bytes))


def decode_need_cursor(cursor: str) -> tuple[float, uuid.UUID]:
    """Need and case that a cursor of the worklist continues after.

    Raises:
        Invalid: not a cursor that this service gave out.
    """
    try:
        need, case_id = _NEED.unpack(_decode(cursor))
    except (ValueError, binascii.Error, struct.error) as exc:
        raise Invalid(_UNKNOWN) from exc
    if not math.isfinite(need):
        raise Invalid(_UNKNOWN)
    return need, uuid.UUID(bytes=case_id)
