"""Asking for the judgement of a release against the champion."""

import uuid

from sqlalchemy.orm import Session

from app.context import Context
from app.jobs import engine
from app.jobs.queries import JobView
from app.platform.errors import Conflict
from app.platform.principal import Principal
from app.releases.gate import gate_fault
from app.releases.queries import existing_release, served_release_id


def submit_judgement(session: Session, context: Context, principal: Principal | None, release_id: uuid.UUID) -> JobView:
    """Queue the judgement of a release against the champion.

    Raises:
        Conflict: it is the champion, or its card cannot be read.
        NotFound: no such release.
        NoRelease: there is no champion.
    """
    row = existing_release(session, release_id)
    if served_release_id(session) == release_id:
        raise Conflict("this release is the champion; there is nothing to judge it against")
    if (fault := gate_fault(row.card)) is not None:
        raise Conflict(f"{fault}; such a release cannot be promoted")
    parameters = {"release": str(release_id)}
    return engine.submit(session, context, "judgement", parameters, principal)
