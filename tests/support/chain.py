"""Links the audit chain anew, as somebody with the database in hand does."""

from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.audit.chain.keys import EventSigner
from app.audit.chain.verify_proof import GENESIS, event_digest, merkle_root


def all_events(session: Session) -> list[dict[str, Any]]:
    """Columns of every event, to be changed."""
    return [dict(event) for event in events.read_events(session)]


def relink(session: Session, chain: list[dict[str, Any]], signer: EventSigner | None, after: int = 0) -> None:
    """Store numbers, actors, digests and signatures of these events, and the head; without a signer old signatures."""
    previous = GENESIS
    for sequence, event in enumerate(chain, 1):
        before, event["sequence"] = event["sequence"], sequence
        if sequence > after:
            document = event | {"created_at": event["created_at"].isoformat()}
            event["digest"] = event_digest(previous, document, merkle_root(event["row_digests"]))
            if signer is not None:
                event["signature"] = signer.sign(f"{sequence}:{event['digest']}")
        values = {name: event[name] for name in ("sequence", "actor", "digest", "signature")}
        changed = "UPDATE audit_events SET sequence = :sequence, actor = :actor, digest = :digest, "
        changed += "signature = :signature WHERE sequence = :before"
        session.execute(text(changed), values | {"before": before})
        previous = event["digest"]
    session.execute(text("UPDATE audit_head SET sequence = :n, digest = :d"), {"n": len(chain), "d": previous})
