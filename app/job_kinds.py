"""What each kind of job does; imported by the worker, not by the web process."""

import uuid

from app.context import Context
from app.evaluations.freezing import freeze_evaluation
from app.imports.work import import_cases
from app.jobs import engine
from app.jobs.engine import JobFunction, job_by_id
from app.recalibration.predict_old_cases import predict_again
from app.recalibration.service import recalibrate

FUNCTIONS: dict[str, JobFunction] = {
    "evaluation": freeze_evaluation,
    "import": import_cases,
    "prediction": predict_again,
    "recalibration": recalibrate,
}


def function_of(context: Context, job_id: uuid.UUID) -> JobFunction:
    """What a job does, by its kind."""
    with context.database.read() as session:
        return FUNCTIONS[job_by_id(session, job_id).kind]


def work_off(context: Context) -> int:
    """Do every waiting job in this process, one after the other.

    Returns:
        How many were begun.
    """
    begun = 0
    while True:
        with context.database.read() as session:
            waiting = engine.waiting_jobs(session)
        for job_id in waiting:
            running = engine.begin(context, job_id)
            if running is not None:
                begun += 1
                engine.perform(running, function_of(context, job_id))
        if not waiting:
            return begun
