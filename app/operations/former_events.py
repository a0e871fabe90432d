"""What events of earlier versions say of patients, and how it is forgotten when the chain is written anew.

They named images by their digests and reasons in the clear, and digested private columns under a key that is kept: all
of this would outlive an erasure. The rows have what was said, as long as they are there.
"""

from collections.abc import Callable, Mapping

from sqlalchemy.orm import Session

from app.platform import baseline
from app.platform.former_rows import BEFORE_REMARKS
from app.platform.keys import AuditKeys, DerivedKey
from app.platform.row_digests import Json, Leaves
from app.tables import AuditEvent, new_digest_key

_DETAILS = {"case.add": {"image_sha256"}}


def _forget_said(event: AuditEvent) -> None:
    """Take digests of images, reasons of labels and names of files out of an event."""
    gone = _DETAILS.get(event.action, set())
    details = {name: value for name, value in event.details.items() if name not in gone}
    if event.action == "job.submit" and isinstance(details.get("parameters"), dict):
        parameters: dict[str, Json] = details["parameters"]
        details["parameters"] = {name: value for name, value in parameters.items() if name != "source"}
    event.details = details
    if event.action.startswith("label."):
        event.reason = None


def forgetting(session: Session, keys: AuditKeys) -> Callable[[AuditEvent], None]:
    """What becomes of each event of a chain from before rows about patients had keys of their own.

    A digest that is not that of the row as it is now gets an HMAC under a key that nobody keeps in its place: it still
    differs from every row, and opens nothing.

    Args:
        session: for reading, of the migrated database.
        keys: of the audit.
    """
    present = {(table, key): digest for table, key, digest in baseline.stored_digests(session, keys.rows)}
    nobody = DerivedKey(new_digest_key(), b"")

    def forget(event: AuditEvent) -> None:
        _forget_said(event)
        if event.row_digests is not None:
            event.row_digests = _closed(event.row_digests, present, nobody)

    return forget


def _closed(leaves: Leaves, present: Mapping[tuple[str, str], str], nobody: DerivedKey) -> Leaves:
    return {
        table: {
            key: digest
            if digest is None or table not in BEFORE_REMARKS or digest == present.get((table, key))
            else nobody.digest(digest.encode()).hex()
            for key, digest in rows.items()
        }
        for table, rows in leaves.items()
    }
