"""Check the pairs of cases with the same picture against the digests of their pixels."""

import uuid
from collections.abc import Iterator, Sequence

from sqlalchemy import Row, exists, func, literal, select, union_all
from sqlalchemy.orm import Session, aliased

from app.database.tables import Case, CaseTwin

_MISSING = "missing"
_Wrong = Row[uuid.UUID, uuid.UUID, str]


def wrong_pairs(session: Session) -> Iterator[str]:
    """Name cases with the same pixels that are no pair, and pairs of which somebody was erased.

    Args:
        session: for reading.
    """
    said = {
        _MISSING: "are the same picture, and nobody is kept from reading both",
        "erased": "are a pair, although one of them was erased",
    }
    named = {(*sorted((row.case_id, row.twin_id)), row.what) for row in _wrong(session)}  # each is two rows
    for first, other, what in sorted(named):
        yield f"cases {first} and {other} {said[what]}"


def _wrong(session: Session) -> Sequence[_Wrong]:
    """Rows of pairs that are missing or of somebody erased, by one statement."""
    one, other = aliased(Case), aliased(Case)
    # found first: whoever plans the statement knows nothing of how often a digest comes
    several = select(Case.pixels_sha256).where(Case.pixels_sha256.is_not(None), Case.erased_at.is_(None))
    same = several.group_by(Case.pixels_sha256).having(func.count() > 1).cte("same").prefix_with("MATERIALIZED")
    pair = exists().where(CaseTwin.case_id == one.id, CaseTwin.twin_id == other.id)
    missing = (
        select(one.id.label("case_id"), other.id.label("twin_id"), literal(_MISSING).label("what"))
        .join(same, same.c.pixels_sha256 == one.pixels_sha256)
        .join(other, other.pixels_sha256 == same.c.pixels_sha256)
        .where(one.id != other.id, one.erased_at.is_(None), other.erased_at.is_(None), ~pair)
    )
    columns = (CaseTwin.case_id, CaseTwin.twin_id, literal("erased"))
    erased = [
        select(*columns).join(Case, Case.id == column).where(Case.erased_at.is_not(None))
        for column in (CaseTwin.case_id, CaseTwin.twin_id)
    ]
    return session.execute(union_all(missing, *erased)).all()
