"""The job engine: its own database, what a stopped worker left, and a fence around each run."""

from typing import Any

import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer
from sqlalchemy import update

from app.database.migration import job_engine_url
from app.database.tables import Job
from app.job_table import FUNCTIONS
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobOvertakenError, RunningJob, WorkerStoppingError
from app.jobs.service import count_living_workers
from tests.support.jobs import POLL_SECONDS, work_off
from tests.support.service import Service
from tests.support.waiting import wait_until


def submit(service: Service) -> str:
    with service.context.database.write() as session:
        return str(jobs_service.submit_job(session, service.context, "evaluation", {}, None).id)


def executor_for(service: Service, work: Any) -> JobExecutor:
    executor = JobExecutor(service.context, {**FUNCTIONS, "evaluation": work}, poll_seconds=POLL_SECONDS)
    assert executor.acquire()
    executor.start()
    return executor


@pytest.mark.both_databases
def test_what_a_stopped_worker_left_is_taken_up_by_the_next_one(service: Service) -> None:
    job_id, batches = submit(service), []

    def work(job: RunningJob) -> dict[str, Any]:
        job.batch("first", lambda _: batches.append("first") or {})
        if not batches[1:]:
            batches.append("stopped")
            raise WorkerStoppingError
        return job.batch("second", lambda _: {"batches": len(batches)})

    first = executor_for(service, work)
    wait_until(lambda: batches[1:] and not first.runner.running, 60, "the job was not begun")
    assert first.stop()
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["state"] == "running"
    assert work_off(service.context, {"evaluation": work}) == 1
    shown = service.get("viewer", f"/v1/jobs/{job_id}").json()
    assert (shown["state"], shown["attempts"], shown["result"]) == ("succeeded", 2, {"batches": 2})


@pytest.mark.both_databases
@pytest.mark.parametrize("change", [{"attempt": 2}, {"begun": 2}, {"state": "queued"}])
def test_a_worker_whose_job_another_one_has_writes_nothing(service: Service, change: dict[str, Any]) -> None:
    """The row of the job names its run; a transaction of any other one does not commit."""
    job_id, outcomes = submit(service), []

    def work(job: RunningJob) -> dict[str, Any]:
        with service.context.database.write() as session:
            session.execute(update(Job).values(change))
        for write in (lambda: job.report(0.5, "from the grave"), lambda: job.batch("one", lambda _: {})):
            with pytest.raises(JobOvertakenError):
                write()
            outcomes.append("refused")
        with service.context.database.write() as session:
            session.execute(update(Job).values(attempt=1, begun=1, state="running"))
        return {}

    work_off(service.context, {"evaluation": work})
    assert outcomes == ["refused"] * 2
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["message"] == "done"


@pytest.mark.both_databases
def test_a_job_runs_although_the_engine_remembers_another_copy_of_the_database(service: Service) -> None:
    """An older copy of the service's database came back beside the engine's: its jobs' workflows have ended."""
    job_id = submit(service)
    assert work_off(service.context, {"evaluation": lambda _: {"run": 1}}) == 1
    with service.context.database.write() as session:
        session.execute(update(Job).values(state="queued", result=None, ended_at=None, begun=0))
    assert work_off(service.context, {"evaluation": lambda _: {"run": 2}}) == 1
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["result"] == {"run": 2}


@pytest.mark.both_databases
def test_a_job_runs_although_the_engine_has_forgotten_it(service: Service) -> None:
    """A worker that was killed left a running job, and its engine's database is lost."""
    job_id = submit(service)
    assert work_off(service.context, {"evaluation": lambda _: {}}) == 1
    client = DBOSClient(
        system_database_url=job_engine_url(service.context.settings.sqlalchemy_url),
        serializer=DBOSPortableJSONSerializer(),
    )
    assert [workflow.status for workflow in client.list_workflows(name="evaluation")] == ["SUCCESS"]
    client.delete_workflows([f"{job_id}.1"])
    client.destroy()
    with service.context.database.write() as session:
        session.execute(update(Job).values(state="running", executor_id="gone", result=None, ended_at=None))
    assert work_off(service.context, {"evaluation": lambda _: {"again": True}}) == 1
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["result"] == {"again": True}


@pytest.mark.both_databases
def test_whether_a_worker_lives_is_seen_by_its_lock(service: Service) -> None:
    def living() -> int:
        with service.context.database.read() as session:
            return count_living_workers(session)

    assert living() == 0
    executor = executor_for(service, lambda _: {})
    assert living() == 1
    executor.stop()
    wait_until(lambda: living() == 0)


def test_on_sqlite_there_is_one_worker(service: Service) -> None:
    first = executor_for(service, lambda _: {})
    second = JobExecutor(service.context, FUNCTIONS)
    assert not second.acquire()
    first.stop()
    assert second.acquire()
    second.stop()
