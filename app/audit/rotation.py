"""Rotates the installation's key and records the change in an event signed by both keys."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from app.audit.anchor import HeadFile
from app.audit.chain import events
from app.audit.chain.keys import KeyRing, derive_keys
from app.audit.chain.verify_proof import ROTATION, rotation_text
from app.audit.installation import claim_database, require_first_key
from app.context import ServiceContext
from app.database.engine import write_with_retry
from app.database.migration import create_if_new
from app.database.tables import Installation
from app.settings import write_secret_file
from ml.util.files import sync_folder

_OTHERS_WRITE = "others are writing to the database"
_Say = Callable[[str], object]


@dataclass(frozen=True)
class KeyRotation:
    """Result of a key rotation."""

    n_keys: int
    # of the newest one
    public_key: str


def rotate_key(context: ServiceContext, reason: str, say: _Say = lambda _: None) -> KeyRotation:
    """Add a key to the file of the ring, then to the database; one that was interrupted in between is finished."""
    ring = context.settings.key_ring()
    create_if_new(context.database.engine)
    n_known = require_first_key(context.database, derive_keys(ring).audit)
    if len(ring.secrets) <= max(n_known, 1):
        claim_database(context.database, derive_keys(ring).audit, say)
        # with the head in use by others for long, the file stays as it is
        write_with_retry(context.database, events.lock_head, _OTHERS_WRITE, say)
        ring = ring.rotated()
        _replace_key_file(context, ring)
    rotation = apply_key_ring(context, ring, reason, say)
    HeadFile(context, derive_keys(ring).audit).require()
    return rotation


def apply_key_ring(context: ServiceContext, ring: KeyRing, reason: str, say: _Say = lambda _: None) -> KeyRotation:
    """Let the database learn each key of the ring that it does not know yet."""
    keys = derive_keys(ring).audit
    n_known = max(require_first_key(context.database, keys), 1)
    claim_database(context.database, derive_keys(ring.oldest(n_known)).audit, say)
    while write_with_retry(context.database, partial(_store_next_key, ring=ring, reason=reason), _OTHERS_WRITE, say):
        pass
    return KeyRotation(len(ring.secrets), keys.public_key)


def _store_next_key(session: Session, ring: KeyRing, reason: str) -> bool:
    """Store the next key of a ring under the lock of the chain's head; whether there was one."""
    head = events.lock_head(session)  # another rotation may have been faster
    if head.n_keys >= len(ring.secrets):
        return False
    before, new = derive_keys(ring.oldest(head.n_keys)).audit, derive_keys(ring).audit.signers[head.n_keys]
    text = rotation_text(before.public_key, f"{head.sequence}:{head.digest}", new.public)
    session.add(Installation(id=head.n_keys + 1, key_check=new.check))
    events.record_event(
        session,
        before,
        actor="command line",
        action=ROTATION,
        object_id=f"key {head.n_keys + 1}",
        details={"public_key": new.public, "signature": new.sign(text)},
        reason=reason,
    )
    return True


def write_ring(context: ServiceContext, out: Path) -> None:
    """Write the ring with a new key to a file of its own; neither the ring in use nor the database changes."""
    unfinished = write_secret_file(out, context.settings.key_ring().rotated().to_bytes())
    try:
        os.link(unfinished, out)
    except FileExistsError as exc:
        raise ValueError(f"{out}: there is such a file already; choose another one") from exc
    finally:
        unfinished.unlink()
    sync_folder(out.parent)


def _replace_key_file(context: ServiceContext, ring: KeyRing) -> None:
    """Put a ring in the place of the one in use, for the same users."""
    settings = context.settings
    if settings.secret_key is not None:
        raise ValueError(
            "SECONDREAD_SECRET_KEY is set: write the new ring with `--out FILE`, set it in its place (or name it by "
            "SECONDREAD_SECRET_KEY_FILE), then run this command again"
        )
    path = settings.key_file
    try:
        status, unfinished = path.stat(), write_secret_file(path, ring.to_bytes())
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
