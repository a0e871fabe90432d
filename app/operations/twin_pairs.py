"""Pairs of cases with the same picture, compared with the digests of their pixels, and put right."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from sqlalchemy import Row, delete, exists, func, literal, select, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from app.cases.same_pixels import locked_cases
from app.context import Context
from app.operations.proven import expected_rows
from app.platform.one_at_a_time import hold_digests
from app.platform.patience import write_patiently
from app.platform.plain_rows import table_of
from app.platform.row_digests import row_digest, row_key
from app.platform.written_rows import note_deleted
from app.tables import Case, CaseTwin

_BATCH = 500
_MISSING = "missing"
_Wrong = Row[uuid.UUID, uuid.UUID, str]


def wrong_pairs(session: Session) -> Iterator[str]:
    """Name cases with the same pixels that are no pair, and pairs of which somebody was erased.

    Args:
        session: for reading.
    """
    said = {
        _MISSING: "are the same picture, and nobody is kept from reading both; run `secondread db upgrade`",
        "erased": "are a pair, although one of them was erased; run `secondread db upgrade`",
    }
    named = {(*sorted((row.case_id, row.twin_id)), row.what) for row in _wrong(session)}  # each is two rows
    for first, other, what in sorted(named):
        yield f"cases {first} and {other} {said[what]}"


def mend_pairs(context: Context, say: Callable[[str], None] = lambda _: None) -> int:
    """Link cases with the same pixels that are no pair, and remove pairs of which somebody was erased.

    Such are left by earlier versions, where several stored, compared or erased at the same moment. Rows that are not
    as their last audit event says stay, and stay named.

    Args:
        context: parts of the service.
        say: told whenever it waits.

    Returns:
        Number of rows that were put right.

    Raises:
        Unavailable: others do not let go of rows.
    """
    with context.database.read_moment() as session:
        wrong = _wrong(session)
        if not wrong:
            return 0
        table, private = table_of(CaseTwin), context.keys.audit.rows
        said, proven = expected_rows(session).rows.get(table.name, {}), []
        for row in wrong:
            pair = {"case_id": row.case_id, "twin_id": row.twin_id}
            there = None if row.what == _MISSING else row_digest(private, table, pair)
            if said.get(row_key(table, pair), ("", None))[1] == there:
                proven.append(row)
    for start in range(0, len(proven), _BATCH):
        mend = partial(_mend, wrong=proven[start : start + _BATCH])
        write_patiently(context.database, mend, "others are using the rows of these cases", say)
    return len(proven)


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


def _mend(session: Session, wrong: Sequence[_Wrong]) -> None:
    missing = {(row.case_id, row.twin_id) for row in wrong if row.what == _MISSING}
    ids = {case_id for pair in missing for case_id in pair}
    found = session.execute(select(Case.pixels_sha256).where(Case.id.in_(ids))).scalars()
    digests = {digest for digest in found if digest is not None}
    hold_digests(session, digests)
    alike = {case.id: case.pixels_sha256 for case in locked_cases(session, ids, digests)}
    known = select(CaseTwin.case_id, CaseTwin.twin_id).where(CaseTwin.case_id.in_(ids))
    stored = {(row[0], row[1]) for row in session.execute(known)}
    for first, other in sorted(missing - stored):
        if first in alike and alike[first] == alike.get(other):
            session.add(CaseTwin(case_id=first, twin_id=other))
    gone = [(row.case_id, row.twin_id) for row in wrong if row.what != _MISSING]
    removed = delete(CaseTwin).where(tuple_(CaseTwin.case_id, CaseTwin.twin_id).in_(gone))
    rows = session.execute(removed.returning(*CaseTwin.__table__.columns)).mappings().all() if gone else []
    note_deleted(session, CaseTwin, rows)
