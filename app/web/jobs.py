"""HTML routes of jobs, and their progress as server-sent events."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Response
from sqlalchemy.orm import Session
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.concurrency import run_in_threadpool

from app.accounts.service import GuardedRoute, RequireScope
from app.cases.service import newest_label_at
from app.context import AppContext, ServiceContext
from app.http.principal import Principal
from app.jobs import service
from app.jobs.service import JobView, job_out, list_missing_workers, newest_jobs
from app.recalibration.service import is_refusal, what_is_refused
from app.web.page import ManagerForm, ViewerPage
from app.web.render import redirect_to

router = APIRouter(include_in_schema=False, route_class=GuardedRoute)
_Manager = Annotated[Principal, Depends(RequireScope("manage"))]
_SHOWN = 100
#: Seconds between two looks at the jobs, looks without news after which the stream ends, and the browser's pause
#: before it asks again.
_EVENT_SECONDS, _IDLE_LOOKS, _RETRY_MS = 1.0, 15, 2000


@router.get("/jobs")
def list_jobs(page: ViewerPage) -> Response:
    """Jobs with their progress."""
    jobs = newest_jobs(page.session, _SHOWN)
    refusals = {str(job.id): describe_refusal(page.session, job) for job in jobs if is_refusal(job.error)}
    items, missing = [job_out(job) for job in jobs], list_missing_workers(page.session)
    return page.render("jobs.html", jobs=items, refusals=refusals, missing=missing)


@dataclass(frozen=True)
class RefusedRecalibration:
    """A refused recalibration: the message, its requirements, and whether labels came since."""

    what: str
    sentences: list[str]
    labels_came: bool


def describe_refusal(session: Session, job: JobView) -> RefusedRecalibration:
    """Why a recalibration was refused, and whether labels came since."""
    what, *sentences = what_is_refused(job.error or "")
    newest = newest_label_at(session)
    came = newest is not None and newest > job.created_at  # one that came meanwhile may not have been seen
    return RefusedRecalibration(what, sentences, came)


def _read_job_states(context: ServiceContext) -> tuple[str, bool]:
    with context.database.read() as session:
        jobs = newest_jobs(session, _SHOWN)
        states = [
            {
                "id": str(job.id),
                "state": job.state,
                "progress": job.progress,
                "message": (job.error or job.message).partition("\n")[0],
            }
            for job in jobs
        ]
        return json.dumps(states), any(job.state in {"queued", "running"} for job in jobs)


async def _stream_job_states(context: ServiceContext) -> AsyncIterator[ServerSentEvent]:
    before, busy, idle = "", True, 0
    yield ServerSentEvent(retry=_RETRY_MS)
    while busy and idle < _IDLE_LOOKS:
        states, busy = await run_in_threadpool(_read_job_states, context)
        if states == before:
            idle += 1
        else:
            idle, before = 0, states
            yield ServerSentEvent(states)
        await asyncio.sleep(_EVENT_SECONDS if busy else 0)


@router.get("/jobs/events", dependencies=[Depends(RequireScope("metrics:read"))])
async def job_events(context: AppContext) -> Response:
    """Stream the progress of the jobs as server-sent events."""
    return EventSourceResponse(_stream_job_states(context), sep="\n")


@router.post("/jobs/{job_id}/cancel")
def cancel_job(job_id: uuid.UUID, context: AppContext, principal: _Manager) -> Response:
    """Cancel a job."""
    service.cancel_job_and_parts(context, principal, job_id)
    return redirect_to("/jobs")


@router.post("/jobs/{job_id}/retry")
def retry_job(job_id: uuid.UUID, page: ManagerForm) -> Response:
    """Queue a job again."""
    service.requeue_job(page.session, page.context, page.principal, job_id)
    return redirect_to("/jobs")
