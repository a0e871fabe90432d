"""Doing the jobs of a service in the test's own process, with the loop that the worker has."""

from collections.abc import Mapping
from typing import Any

from app.context import ServiceContext
from app.job_table import FUNCTIONS
from app.jobs import service
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobFunction
from app.jobs.queries import OPEN, counts_by_state
from tests.support.waiting import wait_until

POLL_SECONDS = 0.05


def submit(context: ServiceContext, kind: str, parameters: dict[str, Any]) -> str:
    """Ask for a job, and return its identifier."""
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


def _tend(executor: JobExecutor) -> bool:
    """Do what the worker's loop does every second; whether no job runs."""
    executor.tend()
    return not executor.runner.running


def _queues_are_empty(context: ServiceContext) -> bool:
    with context.database.read() as session:
        counts = counts_by_state(session)
    return not any(counts[state] for state in OPEN)
