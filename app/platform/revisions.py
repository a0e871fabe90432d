"""If-Match of what is counted by revisions."""

from typing import Annotated

from fastapi import Depends, Header

from app.platform.errors import BadRequest, PreconditionRequired


def revision_seen(
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
