"""Files of the same picture that take the place of damaged ones, and cases that are not erased meanwhile."""

import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from app.database.tables import Case


@dataclass(frozen=True)
class Replacement:
    """A file that takes the place of a damaged one, with the digest of its pixels."""

    stored_sha256: str
    pixels_sha256: str


def not_erased(session: Session, case_ids: Collection[uuid.UUID]) -> list[uuid.UUID]:
    """Those of some cases that nobody has erased, nor will before this transaction ends."""
    if not case_ids or session.get_bind().dialect.name != "postgresql":  # SQLite has one writer
        return list(case_ids)
    statement = select(Case.id).where(Case.id.in_(case_ids), Case.erased_at.is_(None)).order_by(Case.id)
    return list(session.execute(statement.with_for_update(read=True, key_share=True)).scalars())


def take_place(session: Session, damaged: Mapping[str, Replacement]) -> set[str]:
    """Give every case with a damaged file another file of the same picture, which something else has encoded.

    A picture with other pixels takes nobody's place: another version of a decoder may have made it of the same upload.

    Args:
        session: writing session, which holds the digests of these pixels.
        damaged: names of files in the store, with what takes the place of each.

    Returns:
        Names of those files whose pixels are known to be others; where there are any, nothing is replaced.
    """
    named = or_(Case.stored_sha256.in_(damaged), Case.stored_field_sha256.in_(damaged))
    statement = select(Case).where(named, Case.erased_at.is_(None)).order_by(Case.id)
    # an erasure locks cases in the same order; rows that refer to these may come meanwhile, since no key changes
    locking = statement.with_for_update(key_share=True).execution_options(populate_existing=True)
    cases = session.execute(locking).scalars().all()
    shown: defaultdict[str | None, set[str | None]] = defaultdict(set)
    for case in cases:
        shown[case.stored_sha256].add(case.pixels_sha256)
        shown[case.stored_field_sha256].add(case.field_pixels_sha256)
    refused = {name for name, other in damaged.items() if shown[name] - {other.pixels_sha256}}
    if refused:
        return refused
    for case in cases:
        image, around = damaged.get(case.stored_sha256), damaged.get(case.stored_field_sha256 or "")
        if image is not None:
            case.stored_sha256 = image.stored_sha256
        if around is not None:
            case.stored_field_sha256 = around.stored_sha256
    return set()
