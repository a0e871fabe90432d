"""HTTP routes of jobs."""

import uuid
from typing import Annotated

from fastapi import APIRouter, Depends, Response

from app.accounts.service import GuardedRoute, RequireScope
from app.context import AppContext, Call, writing_call
from app.database.engine import ReadSession
from app.database.idempotency import Idempotent, KeyMissing
from app.http.errors import Conflict, NotFound, list_problem_responses
from app.http.principal import Principal
from app.jobs import service
from app.jobs.queries import job_by_id, newest_jobs
from app.jobs.schemas import JobOut, JobsOut, job_out

router = APIRouter(tags=["jobs"], responses=list_problem_responses(), route_class=GuardedRoute)
_Viewing = Depends(RequireScope("metrics:read"))
_Managing = Annotated[Principal, Depends(RequireScope("manage"))]
_ManagingWrite = Annotated[Call, writing_call("manage")]


@router.get("/v1/jobs", operation_id="list_jobs", dependencies=[_Viewing])
def list_jobs(session: ReadSession) -> JobsOut:
    """List jobs. The newest 200."""
    return JobsOut(items=[job_out(job) for job in newest_jobs(session, 200)])


@router.get(
    "/v1/jobs/{job_id}", operation_id="get_job", responses=list_problem_responses(NotFound), dependencies=[_Viewing]
)
def get_job(job_id: uuid.UUID, session: ReadSession) -> JobOut:
    """Get a job. State, progress and result."""
    return job_out(job_by_id(session, job_id))


@router.delete("/v1/jobs/{job_id}", operation_id="cancel_job", responses=list_problem_responses(NotFound))
def cancel_job(job_id: uuid.UUID, context: AppContext, principal: _Managing) -> JobOut:
    """Cancel a job. Stored results are kept."""
    return job_out(service.cancel_job_and_parts(context, principal, job_id))


@router.post(
    "/v1/jobs/{job_id}/retry",
    operation_id="retry_job",
    status_code=202,
    response_model=JobOut,
    responses=list_problem_responses(KeyMissing, NotFound, Conflict),
)
def retry_job(job_id: uuid.UUID, once: Idempotent, call: _ManagingWrite) -> Response:
    """Retry a job. For a failed or cancelled job, which resumes its work."""
    return once(
        call.session,
        None,
        lambda: (202, job_out(service.requeue_job(call.session, call.context, call.principal, job_id))),
    )
