"""If-Match, and changing a row only if it is still as the caller saw it."""

from typing import Annotated, Any

from fastapi import Depends, Header
from sqlalchemy.orm import Session

from app.audit.chain.covered_rows import update_columns
from app.database.engine import insert_if_absent
from app.http.errors import BadRequest, PreconditionRequired


async def parse_if_match(
    if_match: Annotated[str | None, Header()] = None,
) -> int | None:
    """Revision that the caller saw; None for any."""
    if if_match is None:
        raise PreconditionRequired("send If-Match with the revision that you last read")
    if if_match.strip() == "*":
        return None
    digits = if_match.strip().removeprefix("W/").strip('"')
    if not digits.isascii() or not digits.isdigit() or len(digits) > 9:
        raise BadRequest("If-Match is not a revision in quotes, or *")
    return int(digits)


Revision = Annotated[int | None, Depends(parse_if_match)]


def compare_and_swap(
    session: Session, table: type[Any], key: dict[str, Any], values: dict[str, Any], revision: int
) -> bool:
    """Change a row only if it still has the caller's revision."""
    if revision == 0:
        return insert_if_absent(session, table, key | values | {"revision": 1})
    moved = (
        update_columns(table, **values, revision=revision + 1)
        .filter_by(**key, revision=revision)
        .returning(table.revision)
    )
    return session.execute(moved).first() is not None
