"""HTML routes of jobs, and their progress as server-sent events."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from sqlalchemy.orm import Session
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from app.accounts.permissions import GuardedRoute, Policy
from app.cases.queries import newest_label_at
from app.context import Context, Parts
from app.database.engine import Reader, Writer
from app.http.principal import Principal
from app.jobs import service
from app.jobs.queries import JobView, newest_jobs
from app.jobs.schemas import job_out
from app.recalibration.preconditions import is_refusal, what_is_refused
from app.web.render import go, page

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Viewer = Annotated[Principal, Depends(Policy("metrics:read"))]
_Manager = Annotated[Principal, Depends(Policy("manage"))]
_SHOWN = 100
#: Seconds between two looks at the jobs, looks without news after which the stream ends, and the browser's pause
#: before it asks again.
_EVENT_SECONDS, _IDLE_LOOKS, _RETRY_MS = 1.0, 15, 2000


@router.get("/jobs")
def list_jobs(request: Request, principal: _Viewer, session: Reader) -> Response:
    """Jobs with their progress."""
    jobs = newest_jobs(session, _SHOWN)
    refused = {str(job.id): _refusal(session, job) for job in jobs if is_refusal(job.error)}
    return page(request, "jobs.html", principal, jobs=[job_out(job) for job in jobs], refused=refused)


@dataclass(frozen=True)
class Refusal:
    """A refused recalibration: what was refused, what it would need, and whether labels have come since."""

    what: str
    sentences: list[str]
    labels_came: bool


def _refusal(session: Session, job: JobView) -> Refusal:
    what, *sentences = what_is_refused(job.error or "")
    newest = newest_label_at(session)
    came = newest is not None and newest > job.created_at  # one that came meanwhile may not have been seen
    return Refusal(what, sentences, came)


def _first_line(job: JobView) -> str:
    """What is being done, or why it failed; the page says the rest."""
    return (job.error or job.message).partition("\n")[0]


def _states(context: Context) -> tuple[str, bool]:
    """The newest jobs as JSON, and whether one of them is queued or running."""
    with context.database.read() as session:
        jobs = newest_jobs(session, _SHOWN)
        states = [
            {"id": str(job.id), "state": job.state, "progress": job.progress, "message": _first_line(job)}
            for job in jobs
        ]
        return json.dumps(states), any(job.state in {"queued", "running"} for job in jobs)


async def _changes(context: Context) -> AsyncIterator[ServerSentEvent]:
    """The states of the jobs whenever they have changed, until nothing is under way or nothing changes for a while."""
    before, busy, idle = "", True, 0
    yield ServerSentEvent(retry=_RETRY_MS)
    while busy and idle < _IDLE_LOOKS:
        states, busy = await run_in_threadpool(_states, context)
        if states == before:
            idle += 1
        else:
            idle, before = 0, states
            yield ServerSentEvent(states)
        await asyncio.sleep(_EVENT_SECONDS if busy else 0)


@router.get("/jobs/events", dependencies=[Depends(Policy("metrics:read"))])
async def job_events(context: Parts) -> Response:
    """Progress of the jobs as server-sent events.

    When nothing is under way, or nothing changes for a while, the stream ends; browsers ask again after a few seconds.
    """
    return EventSourceResponse(_changes(context), sep="\n")


@router.post("/jobs/{job_id}/cancel")
def cancel(job_id: uuid.UUID, context: Parts, principal: _Manager) -> Response:
    """Cancel a job."""
    service.cancel(context, principal, job_id)
    return go("/jobs")


@router.post("/jobs/{job_id}/retry")
def retry(job_id: uuid.UUID, context: Parts, principal: _Manager, session: Writer) -> Response:
    """Queue a job again."""
    service.retry(session, context, principal, job_id)
    return go("/jobs")
