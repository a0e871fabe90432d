"""Jobs that are cancelled, stopped, taken over and done again: what was stored stays, and nothing comes after it."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.database.migration import job_engine_url
from app.database.tables import Job, JobBatch
from app.job_table import FUNCTIONS
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobOvertakenError, RunningJob, WorkerStoppingError
from app.jobs.service import count_living_workers
from tests.support.jobs import POLL_SECONDS, submit, work_off
from tests.support.service import Service
from tests.support.waiting import wait_until


def job(service: Service, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = service.get("viewer", f"/v1/jobs/{job_id}").json()
    return shown


@pytest.mark.slow_on_second_database
@pytest.mark.both_databases
def test_a_queued_job_is_cancelled_at_once_and_a_running_one_writes_no_more(service: Service) -> None:
    queued = service.post("admin", "/v1/evaluations", json={}).json()
    ended = service.call("admin", "DELETE", f"/v1/jobs/{queued['id']}").json()
    assert (ended["state"], ended["cancel_requested"], ended["started_at"]) == ("cancelled", False, None)
    assert ended["ended_at"] is not None
    assert work_off(service.context) == 0
    job_id = submit(service.context, "evaluation", {})
    reached: list[str] = []

    def work(running: RunningJob) -> dict[str, Any]:
        running.report(0.5, "half way")
        shown = service.call("admin", "DELETE", f"/v1/jobs/{job_id}").json()
        reached.append(shown["state"])
        assert shown["cancel_requested"]
        running.report(0.6, "never reached")
        reached.append("after the end")
        return {}

    assert work_off(service.context, {"evaluation": work}) == 1
    shown = job(service, job_id)
    assert (shown["state"], shown["message"], shown["progress"]) == ("cancelled", "half way", 0.5)
    assert shown["started_at"] is not None
    assert reached == ["cancelled"]
    again = service.call("admin", "DELETE", f"/v1/jobs/{job_id}").json()
    assert again["state"] == "cancelled"
    events = service.get("admin", "/v1/audit-events").json()["items"]
    assert sum(event["action"] == "job.cancel" for event in events) == 2  # not where there was nothing to cancel


def cancellations(service: Service) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = service.get("admin", "/v1/audit-events", params={"action": "job.cancel"}).json()[
        "items"
    ]
    return events


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.both_databases
def test_a_job_is_cancelled_while_a_batch_is_being_written_and_writes_that_batch_only(
    service: Service, batches: int
) -> None:
    """Whoever cancels is answered before the batch ends; on SQLite, where it writes alone, within the busy timeout."""
    job_id = submit(service.context, "evaluation", {})
    answers: list[dict[str, Any]] = []
    reports: list[Callable[[Session, float, str], None]] = []
    on_sqlite = service.context.database.engine.dialect.name == "sqlite"
    canceller = threading.Thread(
        target=lambda: answers.append(service.call("admin", "DELETE", f"/v1/jobs/{job_id}").json())
    )

    def slow(session: Session) -> dict[str, Any]:
        reports[0](session, 0.5, "in the batch")
        events.record_event(session, service.context.keys.audit, actor="x", action="x", object_id="x")
        canceller.start()
        if on_sqlite:
            time.sleep(1)
        else:
            canceller.join()
        return {}

    def work(running: RunningJob) -> dict[str, Any]:
        reports.append(running.report_in)
        for number in range(batches):
            running.batch(str(number), slow if number == 0 else lambda _: {})
            canceller.join()
        return {}

    assert work_off(service.context, {"evaluation": work}) == 1
    (answer,) = answers
    assert answer["cancel_requested"], answer
    assert answer["state"] == ("cancelled" if on_sqlite else "running")
    shown = job(service, job_id)
    assert (shown["state"], shown["cancel_requested"], shown["message"]) == ("cancelled", True, "in the batch")
    assert service.scalars(select(JobBatch.name)) == ["0"]
    assert len(cancellations(service)) == 1


@pytest.mark.both_databases
def test_a_cancelled_job_that_is_tried_again_goes_on_and_its_first_run_writes_nothing(service: Service) -> None:
    job_id = submit(service.context, "evaluation", {})
    stopped: list[str] = []

    def work(running: RunningJob) -> dict[str, Any]:
        if running.attempt == 1:
            first = running.batch("first", lambda _: {"by": "the first run"})
            service.call("admin", "DELETE", f"/v1/jobs/{job_id}")
            assert service.post("admin", f"/v1/jobs/{job_id}/retry").status_code == 202
            with pytest.raises(JobOvertakenError):
                running.batch("second", lambda _: {"by": "the first run"})
            stopped.append("stopped")
            raise JobOvertakenError
        first = running.batch("first", lambda _: {"by": "the second run"})
        return {"first": first, "second": running.batch("second", lambda _: {"by": "the second run"})}

    assert work_off(service.context, {"evaluation": work}) == 2
    shown = job(service, job_id)
    assert shown["result"] == {"first": {"by": "the first run"}, "second": {"by": "the second run"}}
    assert stopped == ["stopped"]


def submit_evaluation(service: Service) -> str:
    with service.context.database.write() as session:
        return str(jobs_service.submit_job(session, service.context, "evaluation", {}, None).id)


def executor_for(service: Service, work: Any) -> JobExecutor:
    executor = JobExecutor(service.context, {**FUNCTIONS, "evaluation": work}, poll_seconds=POLL_SECONDS)
    assert executor.acquire()
    executor.start()
    return executor


@pytest.mark.both_databases
def test_what_a_stopped_worker_left_is_taken_up_by_the_next_one(service: Service) -> None:
    job_id, batches = submit_evaluation(service), []

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
    job_id, outcomes = submit_evaluation(service), []

    def work(job: RunningJob) -> dict[str, Any]:
        service.change(update(Job).values(change))
        for write in (lambda: job.report(0.5, "from the grave"), lambda: job.batch("one", lambda _: {})):
            with pytest.raises(JobOvertakenError):
                write()
            outcomes.append("refused")
        service.change(update(Job).values(attempt=1, begun=1, state="running"))
        return {}

    work_off(service.context, {"evaluation": work})
    assert outcomes == ["refused"] * 2
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["message"] == "done"


@pytest.mark.both_databases
def test_a_job_runs_although_the_engine_remembers_another_copy_of_the_database(service: Service) -> None:
    """An older copy of the service's database came back beside the engine's: its jobs' workflows have ended."""
    job_id = submit_evaluation(service)
    assert work_off(service.context, {"evaluation": lambda _: {"run": 1}}) == 1
    service.change(update(Job).values(state="queued", result=None, ended_at=None, begun=0))
    assert work_off(service.context, {"evaluation": lambda _: {"run": 2}}) == 1
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["result"] == {"run": 2}


@pytest.mark.slow
@pytest.mark.both_databases
def test_a_job_runs_although_the_engine_has_forgotten_it(service: Service) -> None:
    """A worker that was killed left a running job, and its engine's database is lost."""
    job_id = submit_evaluation(service)
    assert work_off(service.context, {"evaluation": lambda _: {}}) == 1
    client = DBOSClient(
        system_database_url=job_engine_url(service.context.settings.sqlalchemy_url),
        serializer=DBOSPortableJSONSerializer(),
    )
    assert [workflow.status for workflow in client.list_workflows(name="evaluation")] == ["SUCCESS"]
    client.delete_workflows([f"{job_id}.1"])
    client.destroy()
    service.change(update(Job).values(state="running", executor_id="gone", result=None, ended_at=None))
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
