"""Doing the jobs of a service in the test's own process, with the loop that the worker has."""

from collections.abc import Mapping
from typing import Any

from app.context import ServiceContext
from app.job_table import FUNCTIONS
from app.jobs import service
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobFunction
from app.jobs.queries import OPEN, counts_by_state
from tests.support.service import Service
from tests.support.waiting import wait_until

POLL_SECONDS = 0.05


def submit(context: ServiceContext, kind: str, parameters: dict[str, Any]) -> str:
    with context.database.write() as session:
        return str(service.submit_job(session, context, kind, parameters, None).id)


def work_off(context: ServiceContext, functions: Mapping[str, JobFunction] = FUNCTIONS, *, within: float = 300) -> int:
    """Do every waiting job in this process, until the queues are empty."""
    executor = JobExecutor(context, {**FUNCTIONS, **functions}, poll_seconds=POLL_SECONDS)
    assert executor.acquire(), "another worker lives"
    executor.start()
    try:
        wait_until(lambda: _tend(executor) and _queues_are_empty(context), within, "the queues are not empty")
    finally:
        executor.stop()
    return executor.runner.begun


def finish_job(service: Service, path: str, who: str = "admin", **body: Any) -> dict[str, Any]:
    """Ask for a job by a request, do what waits, and return the job."""
    asked = service.post(who, path, json=body)
    assert asked.status_code == 202, asked.text
    work_off(service.context)
    return dict(service.document(f"/v1/jobs/{asked.json()['id']}"))


def begin_and_stop(context: ServiceContext, functions: Mapping[str, JobFunction]) -> None:
    """Let a worker begin the job that waits, and stop it once it does nothing."""
    executor = JobExecutor(context, {**FUNCTIONS, **functions}, poll_seconds=POLL_SECONDS)
    assert executor.acquire()
    executor.start()
    wait_until(lambda: executor.runner.begun and not executor.runner.running, 120, "the job was not begun")
    assert executor.stop()


def _tend(executor: JobExecutor) -> bool:
    """Do what the worker's loop does every second; whether no job runs."""
    executor.tend()
    return not executor.runner.running


def _queues_are_empty(context: ServiceContext) -> bool:
    with context.database.read() as session:
        counts = counts_by_state(session)
    return not any(counts[state] for state in OPEN)
