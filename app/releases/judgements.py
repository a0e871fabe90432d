"""Asking for the judgement of a release against the champion."""

import uuid

from sqlalchemy.orm import Session

from app.context import Context
from app.http.errors import Conflict
from app.http.principal import Principal
from app.jobs import engine
from app.jobs.queries import OPEN, JobView, newest_jobs
from app.releases.gate import gate_fault
from app.releases.queries import existing_release, served_release_id
from ml.messages import Message

# judgements among which one that has not ended is looked for
_RECENT = 100


def submit_judgement(session: Session, context: Context, principal: Principal | None, release_id: uuid.UUID) -> JobView:
    """Queue the judgement of a release against the champion, or name the one that waits or is under way.

    Each judgement is an attempt, so pressing twice must not ask twice.

    Raises:
        Conflict: it is the champion, or its card cannot be read.
        NotFound: no such release.
        NoRelease: there is no champion.
    """
    row = existing_release(session, release_id)
    if served_release_id(session) == release_id:
        raise Conflict("this release is the champion; there is nothing to judge it against")
    if (fault := gate_fault(row.card)) is not None:
        raise Conflict(Message("{fault}; such a release cannot be promoted", fault=fault))
    parameters = {"release": str(release_id)}
    for job in newest_jobs(session, _RECENT, "judgement"):
        if job.state in OPEN and job.parameters == parameters:
            return job
    return engine.submit(session, context, "judgement", parameters, principal)
