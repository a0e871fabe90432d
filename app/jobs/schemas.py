"""Response models of the job routes."""

from datetime import datetime
from typing import Any

from app.database.tables.values import JobKind, JobState
from app.http.models import ResponseModel, Sentence
from app.jobs.queries import JobView


class JobOut(ResponseModel):
    """A background job."""

    id: str
    kind: JobKind
    state: JobState
    parameters: dict[str, Any]
    progress: float
    message: Sentence
    attempts: int
    cancel_requested: bool
    result: dict[str, Any] | None
    error: Sentence | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class JobsOut(ResponseModel):
    """Jobs, newest first."""

    items: list[JobOut]


def job_out(job: JobView) -> JobOut:
    """A job as the API shows it."""
    return JobOut(id=str(job.id), **{n: getattr(job, n) for n in JobOut.model_fields if n != "id"})
