"""Asking for frozen evaluations, and showing them."""

import uuid

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app.context import Context
from app.database.tables import Evaluation, Job
from app.evaluations.frozen_files import frozen_name
from app.evaluations.schemas import EvaluationIn, EvaluationOut, EvaluationsOut
from app.http.errors import Conflict, NotFound, Unavailable
from app.http.principal import Principal
from app.jobs import engine
from app.jobs.queries import JobView, jobs_where
from app.releases.queries import existing_release
from ml.messages import Message, Term

KIND = "evaluation"


def ask(session: Session, context: Context, principal: Principal, body: EvaluationIn) -> tuple[int, EvaluationOut]:
    """Ask for an evaluation.

    Returns:
        202 and its state.

    Raises:
        NotFound: no such release.
    """
    if body.release is not None:
        existing_release(session, body.release)
    job = engine.submit(session, context, KIND, body.model_dump(mode="json"), principal)
    return 202, _out(job, None)


def _out(job: JobView, evaluation: Evaluation | None, *, document: bool = True) -> EvaluationOut:
    return EvaluationOut(
        id=str(job.id),
        state=job.state,
        progress=job.progress or 0.0,
        message=job.message or "",
        error=job.error,
        created_at=job.created_at,
        release=None if evaluation is None else str(evaluation.release_id),
        snapshot_sha256=None if evaluation is None else evaluation.snapshot_sha256,
        document=evaluation.document if evaluation is not None and document else None,
    )


def _job_and_evaluation(session: Session, evaluation_id: uuid.UUID) -> tuple[JobView, Evaluation | None]:
    jobs = jobs_where(session, Job.id == evaluation_id, Job.kind == KIND)
    if not jobs:
        raise NotFound("there is no such evaluation")
    return jobs[0], session.get(Evaluation, evaluation_id)


def show(session: Session, evaluation_id: uuid.UUID) -> EvaluationOut:
    """An evaluation and how far it is."""
    return _out(*_job_and_evaluation(session, evaluation_id))


def list_evaluations(session: Session) -> EvaluationsOut:
    """Evaluations, newest first."""
    jobs = jobs_where(session, Job.kind == KIND, limit=200)
    finished = select(Evaluation).where(Evaluation.id.in_([job.id for job in jobs])).options(defer(Evaluation.document))
    evaluations = {row.id: row for row in session.execute(finished).scalars()}
    return EvaluationsOut(items=[_out(job, evaluations.get(job.id), document=False) for job in jobs])


def report_file(session: Session, context: Context, evaluation_id: uuid.UUID, name: str) -> bytes:
    """A file of an evaluation's report.

    Raises:
        NotFound: there is no such evaluation.
        Conflict: it is not finished.
        Unavailable: its files are missing or damaged, or the bucket does not answer.
    """
    job, evaluation = _job_and_evaluation(session, evaluation_id)
    if evaluation is None:
        raise Conflict(
            Message("the evaluation is {state}; its report comes when it has succeeded", state=Term(job.state))
        )
    folder = frozen_name(context.folders, evaluation_id, evaluation.snapshot_sha256)
    session.rollback()  # no transaction waits for the bucket
    try:
        return (context.folders.path(folder) / name).read_bytes()
    except FileNotFoundError as exc:
        raise Unavailable("the report's files are missing; a backup has them") from exc
