"""What is counted by revisions: If-Match, and changing a row only where it is still as the caller saw it."""

from typing import Annotated, Any

from fastapi import Depends, Header
from sqlalchemy import update
from sqlalchemy.orm import Session

from app.audit.chain.change_tracking import note_rows
from app.database.engine import insert_if_absent
from app.http.errors import BadRequest, PreconditionRequired


async def revision_seen(
    if_match: Annotated[str | None, Header(description='Revision in quotes, "0" where there is none.')] = None,
) -> int | None:
    """Revision that the caller saw; None for any.

    Raises:
        PreconditionRequired: there is no If-Match.
        BadRequest: it is not a revision.
    """
    if if_match is None:
        raise PreconditionRequired("send If-Match with the revision that you saw")
    if if_match.strip() == "*":
        return None
    digits = if_match.strip().removeprefix("W/").strip('"')
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise BadRequest("If-Match is not a revision in quotes, or *")
    return int(digits)


Revision = Annotated[int | None, Depends(revision_seen)]


def swap(session: Session, table: type[Any], key: dict[str, Any], values: dict[str, Any], revision: int) -> bool:
    """Compare and swap: of two that race, one changes the row.

    Args:
        session: writing session.
        table: with a column ``revision``, covered by the audit.
        key: its primary key.
        values: that the row is to have.
        revision: at which the caller saw it, 0 where there was none.

    Returns:
        Whether the row was as it was seen, and is changed.
    """
    if revision == 0:
        return insert_if_absent(session, table, key | values | {"revision": 1})
    moved = session.execute(
        update(table)
        .filter_by(**key, revision=revision)
        .values(**values, revision=revision + 1)
        .returning(*table.__table__.columns)
        .execution_options(synchronize_session=False)
    )
    rows = moved.mappings().all()
    note_rows(session, table, rows)
    return bool(rows)
