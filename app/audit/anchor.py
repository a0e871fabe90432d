"""Signed heads of the chain in a file outside the database."""

import fcntl
import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Literal

import structlog
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import AuditKeys
from app.audit.chain.verify_proof import GENESIS, is_signed
from app.context import ServiceContext
from app.database.tables import AuditEvent, Erasure, time_of
from app.database.tables.base import Row

#: Actions of the events that record a backup that was brought back, and an older database that somebody accepted.
RESTORE, ACCEPTED = "db.restore", "db.accept_older_head"
_EVERY_SECONDS = 60.0
_LAST_SECONDS = 2.0
# of the end of a file, which has the line that is asked for: a line has about 350
_END_BYTES = 64 * 1024
_log = structlog.get_logger("secondread")


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


class AnchorError(ValueError):
    """Anchor file that contradicts the chain."""


@dataclass(frozen=True)
class ChainAnchor:
    """One line of the file."""

    # ``head``, or ``restore`` for the first head after the database had become older
    kind: Literal["head", "restore"]
    # number of an event, a colon and its digest
    head: str
    # of the head and of what a restore excuses, in hexadecimal
    signature: str
    written_at: str
    # of a restore, the last event that the older database had: heads after it are excused
    restored_from: int | None = None
    # patients erased so far, so that a list of erasures which is older shows
    erasures: int = 0

    @property
    def sequence(self) -> int:
        """Number of the event."""
        return int(self.head.partition(":")[0])

    @property
    def signed_text(self) -> str:
        """Text that the signature is of."""
        return _signed_text(self.head, self.restored_from)


def _signed_text(head: str, restored_from: int | None) -> str:
    return head if restored_from is None else f"{head} after {restored_from}"


def split_head(head: str) -> tuple[int, str]:
    """Number and digest of a head."""
    sequence, _, digest = head.partition(":")
    if not sequence.isdecimal() or len(digest) != len(GENESIS):
        raise ValueError(f"{head!r} is not a head (the number of an event, a colon and its digest), and no file either")
    return int(sequence), digest


class HeadFile:
    """File of this process to which the heads of the chain are added, those of other processes too."""

    def __init__(self, context: ServiceContext, keys: AuditKeys | None = None) -> None:
        self.path = context.settings.head_file
        self._database, self._keys = context.database, keys or context.keys.audit
        #: why the file cannot be written, and what is wrong with the database; None if all is well
        self.unwritten: str | None = None
        self.lost: str | None = None

    def append(self) -> None:
        """Add the present head, unless it is the last one; refuse a chain that has lost the last one."""
        # the head is read under the lock: else a process could add an older head after a newer one
        with open_append_only(self.path) as stream, self._database.read() as session:
            if events.count_keys(session) != len(self._keys.signers):
                return  # heads that a replaced key signs are worth nothing
            head = events.read_head_text(session)
            last = _read_last_line(self.path, self._keys)
            if last is not None and last.head == head:
                return
            restored_from = None if last is None else _find_restore(self.path, session, self._keys, last)
            erasures = session.execute(select(func.count()).select_from(Erasure)).scalar_one()
            signature = self._keys.sign(_signed_text(head, restored_from))
            kind: Literal["head", "restore"] = "head" if restored_from is None else "restore"
            line = ChainAnchor(kind, head, signature, time_of(session).isoformat(), restored_from, erasures)
            _remove_unfinished_line(stream.fileno())
            append_lines(stream, [json.dumps(asdict(line))])
        if last is None:
            _log.info("a file of heads begins", file=str(self.path), head=line.sequence)

    def require(self) -> None:
        """Refuse a chain that has lost the last head; a disk that cannot be written is a warning."""
        try:
            self.append()
        except OSError as exc:
            if self.unwritten is None:
                _log.warning("heads of the audit chain cannot be written", file=str(self.path), reason=exc.strerror)
            self.unwritten = f"heads of the audit chain cannot be written ({exc.strerror})"
        else:
            self.unwritten = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Add the head now, each minute and at the end of the block; refuse a chain that has lost the last one."""
        self.require()
        over = threading.Event()

        def work() -> None:
            while not over.wait(_EVERY_SECONDS):
                self._add_again()
            self._add_again()

        thread = threading.Thread(target=work, name="heads", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_LAST_SECONDS)

    def _add_again(self) -> None:
        """Add the head while the process runs; a failure is logged, and labels go on."""
        try:
            self.require()
        except AnchorError as exc:
            if self.lost is None:
                _log.error("the database has lost a head of the audit chain", reason=str(exc))
            self.lost = "it has lost a head of the audit chain; the log has more"
        except SQLAlchemyError as exc:
            _log.warning("the head of the audit chain was not read", error=type(exc).__name__)
        except Exception:
            _log.exception("the head of the audit chain was not added")  # the next minute comes
        else:
            self.lost = None


def _remove_unfinished_line(file: int) -> None:
    """Remove what a full disk or a loss of power left of a line."""
    size = os.fstat(file).st_size
    end = os.pread(file, _END_BYTES, max(0, size - _END_BYTES))
    if end and not end.endswith(b"\n"):
        os.ftruncate(file, size - len(end) + end.rfind(b"\n") + 1)


def _parse_anchor(line: str | bytes) -> ChainAnchor:
    try:
        anchor = ChainAnchor(**json.loads(line))
        split_head(anchor.head)
    except (AttributeError, TypeError, ValueError) as exc:
        raise AnchorError(f"a line of the anchor file cannot be read: {line[:60]!r}") from exc
    return anchor


def _read_last_line(path: Path, keys: AuditKeys) -> ChainAnchor | None:
    """Newest line that this installation has signed; years of lines need not be read for it."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        for length in (_END_BYTES, size):
            stream.seek(max(0, size - length))
            for line in reversed(stream.read().split(b"\n")):
                with suppress(AnchorError):
                    anchor = _parse_anchor(line)
                    if _find_signers(anchor.signed_text, anchor.signature, keys):
                        return anchor
    return None


def _find_signers(text: str, signature: str, keys: AuditKeys) -> list[int]:
    """Numbers of the keys of this installation that have signed a text."""
    return [number for number, key in enumerate(keys.signers) if is_signed(key.public, text, signature)]


def _find_restore(path: Path, session: Session, keys: AuditKeys, last: ChainAnchor) -> int | None:
    """Last event of the older database, if a signed event accounts for the loss of a head; None if it is there."""
    if events.contains_head(session, *split_head(last.head)):
        return None
    common = split_head(find_common_head(path, session, keys))[0]
    for event, kept in reversed(list_restores(session)):
        signed = _find_signers(f"{event['sequence']}:{event['digest']}", event["signature"], keys)
        # an event from before the last head in common accounts for an earlier loss
        if signed and event["sequence"] > common and kept < last.sequence:
            return kept
    raise AnchorError(
        f"{path}: the audit chain has lost the head {last.sequence} of {last.written_at}: the database was brought "
        "back to an older state, or its end was cut. Bring a backup back by `secondread db restore`, or let the "
        "service begin from this state by `secondread serve --accept-older-head REASON`; `secondread db verify` "
        "names what is missing"
    )


def find_common_head(path: Path, session: Session, keys: AuditKeys) -> str:
    """Newest head of the file that the chain contains; the beginning of every chain if there is none."""
    heads = (anchor.head for anchor in reversed(_signed_lines(path, keys, [])))
    return next((head for head in heads if events.contains_head(session, *split_head(head))), f"0:{GENESIS}")


def missing_heads(path: Path, session: Session, keys: AuditKeys) -> Iterator[str]:
    """List the heads of the file that the chain has lost or this installation has not signed."""
    # A head may be gone after the database became older: then a later line excuses it, which this installation signed.
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
    lines, newest, texts = [], 0, set[str]()
    for line in _complete_lines(path):
        try:
            anchor = _parse_anchor(line)
        except AnchorError as exc:
            faults.append(str(exc))
            continue
        signers = _find_signers(anchor.signed_text, anchor.signature, keys)
        if not signers:
            faults.append(f"{path}: the head {anchor.sequence} is not signed by this installation")
        elif signers[0] < newest:
            faults.append(f"{path}: the head {anchor.sequence} is signed with a key that had been replaced")
        elif anchor.signed_text in texts:
            faults.append(f"{path}: the head {anchor.sequence} is there once more")  # an old line excuses nothing new
        else:
            newest = signers[0]
            texts.add(anchor.signed_text)
            lines.append(anchor)
    return lines


def _complete_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def count_anchored_erasures(path: Path) -> int:
    """Number of erasures when the last head was anchored; 0 without one."""
    if not path.is_file():
        return 0
    return max((_parse_anchor(line).erasures for line in _complete_lines(path)), default=0)


def record_restore(context: ServiceContext, head: str) -> None:
    """Record that a backup was brought back, in the chain and in the file outside."""
    _record_older_database(context, RESTORE, {"head": head}, None)
    HeadFile(context).append()


def accept_older_head(context: ServiceContext, reason: str) -> None:
    """Record that the database is older than the file of heads, and why that is accepted, in the chain and there."""
    heads, keys = HeadFile(context), context.keys.audit
    with context.database.read() as session:
        last = _read_last_line(heads.path, keys) if heads.path.is_file() else None
        if last is None or events.contains_head(session, *split_head(last.head)):
            raise ValueError("no head of the audit chain is lost: leave --accept-older-head out")
        details = {"head": find_common_head(heads.path, session, keys), "lost": last.head}
    _record_older_database(context, ACCEPTED, details, reason)
    heads.append()


def _record_older_database(context: ServiceContext, action: str, details: dict[str, str], reason: str | None) -> None:
    with context.database.write() as session:
        events.record_event(
            session,
            context.keys.audit,
            actor="command line",
            action=action,
            object_id="database",
            details=details,
            reason=reason,
        )


def list_restores(session: Session) -> list[tuple[Row, int]]:
    """List the events that record that the database became older, with the last event that it then had."""
    restores = []
    for event in events.read_events(session, AuditEvent.action.in_((RESTORE, ACCEPTED))):
        details = event.get("details")  # of a changed event anything, or nothing
        last = str(details.get("head") if isinstance(details, dict) else "").partition(":")[0]
        if last.isdecimal():
            restores.append((event, int(last)))
    return restores
