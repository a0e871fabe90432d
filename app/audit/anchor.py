"""Signed heads of the chain in a file outside the database."""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.audit.chain.verify_proof import GENESIS, is_signed
from app.context import ServiceContext
from app.database.tables import AuditEvent, Erasure, time_of


@contextmanager
def open_append_only(path: Path) -> Iterator[TextIOWrapper]:
    """The file, at its beginning and for this process alone; it is made where it is missing, with its folder."""
    # What is written goes to its end.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        yield stream


def append_lines(stream: TextIOWrapper, lines: Iterable[str]) -> None:
    """Add lines to an open file; they are on the disk when this returns."""
    stream.writelines(line + "\n" for line in lines)
    stream.flush()
    os.fsync(stream.fileno())


#: Action of the event that says that a backup was brought back.
RESTORE = "db.restore"


class AnchorError(ValueError):
    """Anchor file that contradicts the chain."""


@dataclass(frozen=True)
class ChainAnchor:
    """One line of the file."""

    # ``head``, or ``restore`` for the head right after a backup was brought back
    kind: Literal["head", "restore"]
    # number of an event, a colon and its digest
    head: str
    # of the head, in hexadecimal
    signature: str
    written_at: str
    # of a restore, the last event that the backup had
    restored_from: int | None = None
    # patients erased so far, so that a list of erasures which is older shows
    erasures: int = 0

    @property
    def sequence(self) -> int:
        """Number of the event."""
        return int(self.head.partition(":")[0])


def split_head(head: str) -> tuple[int, str]:
    """Number and digest of a head."""
    sequence, _, digest = head.partition(":")
    if not sequence.isdecimal() or len(digest) != len(GENESIS):
        raise ValueError(f"{head!r} is not a head (the number of an event, a colon and its digest), and no file either")
    return int(sequence), digest


def append_anchor(
    path: Path,
    session: Session,
    keys: AuditKeys,
    restored_from: int | None = None,
    kind: Literal["head", "restore"] = "head",
) -> bool:
    """Add the present head to the file, unless it is its last one."""
    head = events.read_head_text(session)
    with open_append_only(path) as stream:
        lines = stream.read().splitlines()
        last = _parse_anchor(lines[-1]) if lines else None
        if last is not None and restored_from is None:
            if last.head == head:
                return False
            if not events.contains_head(session, *split_head(last.head)):
                raise AnchorError(
                    f"{path}: the audit chain has lost the head {last.sequence}; run `secondread db verify`"
                )
        erasures = session.execute(select(func.count()).select_from(Erasure)).scalar_one()
        line = ChainAnchor(kind, head, keys.sign(head), time_of(session).isoformat(), restored_from, erasures)
        append_lines(stream, [json.dumps(asdict(line))])
    return True


def _parse_anchor(line: str) -> ChainAnchor:
    try:
        anchor = ChainAnchor(**json.loads(line))
        split_head(anchor.head)
    except (TypeError, ValueError) as exc:
        raise AnchorError(f"a line of the anchor file cannot be read: {line[:60]!r}") from exc
    return anchor


def missing_heads(path: Path, session: Session, keys: AuditKeys) -> Iterator[str]:
    """List the heads of the file that the chain has lost or this installation has not signed."""
    # A head may be gone after a backup was brought back: then a later line says so, which only `db restore` writes.
    if not path.is_file():
        yield f"{path}: the anchor file is missing"
        return
    restored: int | None = None
    faults: list[str] = []
    for anchor in reversed(_signed_lines(path, keys, faults)):
        there = events.contains_head(session, *split_head(anchor.head))
        if not there and (restored is None or anchor.sequence <= restored):
            yield (
                f"{path}: the audit chain does not contain the head {anchor.sequence} of {anchor.written_at}: "
                "it was cut or written anew"
            )
        elif anchor.restored_from is not None:
            restored = anchor.restored_from if restored is None else min(anchor.restored_from, restored)
    yield from faults


def _signed_lines(path: Path, keys: AuditKeys, faults: list[str]) -> list[ChainAnchor]:
    """Lines that this installation has signed, none with a key that a newer one had replaced; adds faults of others."""
    lines, newest = [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            anchor = _parse_anchor(line)
        except AnchorError as exc:
            faults.append(str(exc))
            continue
        signers = [n for n, key in enumerate(keys.signers) if is_signed(key.public, anchor.head, anchor.signature)]
        if not signers:
            faults.append(f"{path}: the head {anchor.sequence} is not signed by this installation")
        elif signers[0] < newest:
            faults.append(f"{path}: the head {anchor.sequence} is signed with a key that had been replaced")
        else:
            newest = signers[0]
            lines.append(anchor)
    return lines


def count_anchored_erasures(path: Path | None) -> int:
    """Number of erasures when the last head was anchored; 0 without one."""
    if path is None or not path.is_file():
        return 0
    return max((_parse_anchor(line).erasures for line in path.read_text(encoding="utf-8").splitlines()), default=0)


def anchor_configured_file(context: ServiceContext) -> None:
    """Add the present head to the file that the settings name, if they name one."""
    path = context.settings.audit_anchor
    if path is not None:
        with context.database.read() as session:
            append_anchor(path, session, context.keys.audit)


def record_restore(context: ServiceContext, head: str) -> None:
    """Record that a backup was brought back, in the chain and in the file outside."""
    with context.database.write() as session:
        details = {"head": head}
        events.record_event(
            session, context.keys.audit, actor="command line", action=RESTORE, object_id="database", details=details
        )
    path = context.settings.audit_anchor
    if path is not None:
        with context.database.read() as session:
            append_anchor(path, session, context.keys.audit, split_head(head)[0], "restore")


def list_restores(session: Session) -> list[tuple[int, int]]:
    """List the events that record a restore, with the last event of each backup."""
    return [(sequence, last) for sequence, _, last in _read_restores(session)]


def list_restore_times(session: Session) -> list[tuple[datetime, int]]:
    """Time of each restore (UTC), and the last event of its backup."""
    return [(time, last) for _, time, last in _read_restores(session)]


def _read_restores(session: Session) -> list[tuple[int, datetime, int]]:
    columns = select(AuditEvent.sequence, AuditEvent.created_at, AuditEvent.details)
    rows = session.execute(columns.where(AuditEvent.action == RESTORE).order_by(AuditEvent.sequence)).all()
    lasts = [str(details.get("head")).partition(":")[0] for _, _, details in rows]
    return [(row[0], row[1], int(last)) for row, last in zip(rows, lasts, strict=True) if last.isdecimal()]
