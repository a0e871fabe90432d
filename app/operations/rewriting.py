"""Writing the audit chain anew where events are not as this version writes them: once, by `db upgrade`, with the key.

The tables are append-only for everybody else. An event at the end names the old and the new head and is signed, and
what was wrong with the chain before stays named.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import bindparam, exists, select, text, update
from sqlalchemy.orm import Session

from app.platform import audit_chain
from app.platform.keys import AuditKeys
from app.platform.one_at_a_time import Turn, take_turn
from app.platform.sealing import seal
from app.tables import AuditEvent, AuditHead, create_triggers, drop_triggers

#: Changes an event before it is digested, signed and linked again.
Change = Callable[[AuditEvent], None]
_EVENTS = 500
_WRITTEN = ("details", "reason", "row_digests", "event_sha256", "signature", "digest", "link_signature")


def has_former_events(session: Session) -> bool:
    """Whether there are events without a digest of their own, as earlier versions wrote them."""
    former = exists().where(AuditEvent.event_sha256.is_(None), AuditEvent.sequence.is_not(None))
    return bool(session.execute(select(former)).scalar())


def rewrite(session: Session, keys: AuditKeys, reason: str, change: Change | None = None) -> None:
    """Digest, sign and link every event anew, and record that.

    Args:
        session: writing session of the role that owns the tables.
        keys: of the audit.
        reason: why, for the audit.
        change: what becomes of each event before; nothing where left out.
    """
    take_turn(session, Turn.KEY)  # nobody writes an event meanwhile
    while seal(session, keys):
        pass
    head = session.execute(select(AuditHead).where(AuditHead.id == 1).with_for_update()).scalar_one()
    old, writer = audit_chain.newest(session), _Writer(keys, change)
    with _writable(session):
        while chunk := list(audit_chain.events(session, writer.sequence, _EVENTS)):
            for event in chunk:
                writer.write(event)
            values = [{f"new_{name}": getattr(event, name) for name in ("sequence", *_WRITTEN)} for event in chunk]
            session.connection().execute(_UPDATE, values)
    head.sequence, head.digest = writer.sequence, writer.digest
    audit_chain.record(
        session,
        keys,
        actor="service",
        action=audit_chain.REWRITE,
        object_id="chain",
        details={"old_head": old, "new_head": f"{writer.sequence}:{writer.digest}", "faults": writer.faults},
        reason=reason,
    )
    seal(session, keys)


_UPDATE = (
    update(AuditEvent)
    .where(AuditEvent.sequence == bindparam("new_sequence"))
    .values({name: bindparam(f"new_{name}") for name in _WRITTEN})
)


class _Writer:
    """Goes over the chain as it was and as it becomes.

    Attributes:
        sequence: of the last event.
        digest: its new link.
        faults: a sentence for each event that was not as an earlier version had written it.
    """

    def __init__(self, keys: AuditKeys, change: Change | None) -> None:
        self.sequence, self.digest, self.faults = 0, audit_chain.GENESIS, list[str]()
        self._keys, self._change, self._before, self._n_signers = keys, change, audit_chain.GENESIS, 1

    def write(self, event: AuditEvent) -> None:
        """Digest, sign and link the next event anew."""
        before, self._before = self._before, str(event.digest)
        signer = self._keys.signers[self._n_signers - 1]
        number = event.sequence or self.sequence + 1
        if number != self.sequence + 1:
            self.faults.append(f"audit event {self.sequence + 1} is missing")
        former = event.event_sha256 is None and audit_chain.was_authentic(self._keys, before, event)
        if not former and not audit_chain.is_authentic(signer.public, before, event):
            self.faults.append(f"audit event {event.sequence} was changed, or one before it was removed")
        if event.action == audit_chain.ROTATION and self._n_signers < len(self._keys.signers):
            following = self._keys.signers[self._n_signers]
            said = audit_chain.rotation_text(signer.public, f"{number - 1}:{self.digest}", following.public)
            event.details = event.details | {"signature": following.sign(said)}
            self._n_signers += 1
        if self._change is not None:
            self._change(event)
        audit_chain.sign_event(event, signer)
        audit_chain.link(event, number, self.digest, signer)
        self.sequence, self.digest = number, str(event.digest)


@contextmanager
def _writable(session: Session) -> Iterator[None]:
    """Take the triggers off the table of events in this transaction, and put them back."""
    table, dialect = AuditEvent.__tablename__, session.get_bind().dialect.name
    for statement in drop_triggers(dialect, table):
        session.execute(text(statement))
    yield
    for statement in create_triggers(dialect, table):
        session.execute(text(statement))
