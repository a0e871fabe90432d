"""Rotating the key: the ring gets one key more, the database learns it, and an event signed by old and new says so."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.anchor import append
from app.audit.chain import events
from app.audit.chain.keys import KeyRing, derive
from app.audit.installation import claim, require_first_key
from app.audit.linking import seal
from app.context import Context
from app.database.migration import create_if_new
from app.database.retry import write_patiently
from app.database.sql.advisory_locks import Turn, take_turn
from app.database.tables import AuditHead, Installation
from app.settings import write_beside
from ml.util.files import sync_folder

_OTHERS_WRITE = "others are writing to the database"
_Say = Callable[[str], object]


@dataclass(frozen=True)
class Rotation:
    """What a rotation came to.

    Attributes:
        n_keys: of the ring.
        public_key: of the newest one.
    """

    n_keys: int
    public_key: str


def rotate(context: Context, reason: str, say: _Say = lambda _: None) -> Rotation:
    """Add a key to the file of the ring, then to the database; one that was interrupted in between is finished.

    Args:
        context: parts of the service.
        reason: why; kept in the audit.
        say: told whenever it waits for others.

    Raises:
        ValueError: the key is set in the environment, or its file cannot be written.
        Unavailable: others do not let go of the key.
    """
    ring = context.settings.key_ring()
    create_if_new(context.database.engine)
    n_known = require_first_key(context.database, derive(ring).audit)
    if len(ring.secrets) <= max(n_known, 1):
        _link_all(context, ring, say)  # with the key in use by others for long, its file stays as it is
        ring = ring.rotated()
        _replace(context, ring)
    rotation = bring_in(context, ring, reason, say)
    path = context.settings.audit_anchor
    if path is not None:
        with context.database.read() as session:
            append(path, session, derive(ring).audit)
    return rotation


def bring_in(context: Context, ring: KeyRing, reason: str, say: _Say = lambda _: None) -> Rotation:
    """Let the database learn each key of the ring that it does not know yet.

    Args:
        context: parts of the service.
        ring: begins with the keys that the database knows.
        reason: why; kept in the audit.
        say: told whenever it waits for others.

    Raises:
        Unavailable: others do not let go of the key.
    """
    keys = derive(ring).audit
    n_known = max(require_first_key(context.database, keys), 1)
    _link_all(context, ring.oldest(n_known), say)  # so that nobody waits long for what follows
    write_patiently(context.database, partial(_learn, ring=ring, reason=reason), _OTHERS_WRITE, say, key="alone")
    return Rotation(len(ring.secrets), keys.public_key)


def _link_all(context: Context, ring: KeyRing, say: _Say) -> None:
    """Claim the database, if nobody has yet, and link every event that waits."""
    keys = derive(ring).audit
    claim(context.database, keys, say)
    while write_patiently(context.database, partial(seal, keys=keys), _OTHERS_WRITE, say):
        pass


def _learn(session: Session, ring: KeyRing, reason: str) -> None:
    """Let the database learn the keys of a ring that it does not know yet, while nobody else writes an event."""
    take_turn(session, Turn.KEY)
    n_known, signers = events.n_keys(session), derive(ring).audit.signers  # another rotation may have been faster
    for n_keys in range(n_known, len(ring.secrets)):
        before, new = derive(ring.oldest(n_keys)).audit, signers[n_keys]
        while seal(session, before):  # so that the event of the rotation comes next
            pass
        # as it is: events move it past the unit of work
        locked = select(AuditHead).where(AuditHead.id == 1).with_for_update()
        head = session.execute(locked.execution_options(populate_existing=True)).scalar_one()
        text = events.rotation_text(before.public_key, f"{head.sequence}:{head.digest}", new.public)
        session.add(Installation(id=n_keys + 1, key_check=new.check))
        events.record(
            session,
            before,
            actor="command line",
            action=events.ROTATION,
            object_id=f"key {n_keys + 1}",
            details={"public_key": new.public, "signature": new.sign(text)},
            reason=reason,
        )
        seal(session, before)
        head.n_keys = n_keys + 1
        session.flush()


def write_ring(context: Context, out: Path) -> None:
    """Write the ring with a new key to a file of its own; neither the ring in use nor the database changes.

    Raises:
        ValueError: there is such a file.
    """
    unfinished = write_beside(out, context.settings.key_ring().rotated().to_bytes())
    try:
        os.link(unfinished, out)
    except FileExistsError as exc:
        raise ValueError(f"{out}: there is such a file already; choose another one") from exc
    finally:
        unfinished.unlink()
    sync_folder(out.parent)


def _replace(context: Context, ring: KeyRing) -> None:
    """Put a ring in the place of the one in use, for the same users.

    Raises:
        ValueError: it is set in the environment, or its file cannot be written.
    """
    settings = context.settings
    if settings.secret_key is not None:
        raise ValueError(
            "SECONDREAD_SECRET_KEY is set: write the new ring with `--out FILE`, set it in its place (or name it by "
            "SECONDREAD_SECRET_KEY_FILE), then run this command again"
        )
    path = settings.key_file
    try:
        status, unfinished = path.stat(), write_beside(path, ring.to_bytes())
        try:
            os.chown(unfinished, status.st_uid, status.st_gid)
            unfinished.chmod(status.st_mode & 0o777)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as exc:
        raise ValueError(
            f"{path}: cannot be written ({exc.strerror}); write the new ring with `--out FILE`, put it in its place, "
            "then run this command again"
        ) from exc
    sync_folder(path.parent)
