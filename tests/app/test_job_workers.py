"""Who does jobs and when: locks, commands, upkeep; and jobs cancelled, stopped, taken over and done again."""

import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from app import worker
from app.audit.chain import events
from app.audit.chain.events import lock_head
from app.audit.installation import claim_database
from app.context import build_context
from app.database.engine import POSTGRES_SETTINGS
from app.database.migration import job_engine_url
from app.database.tables import AuditHead, Job, JobBatch, utc_now
from app.http.errors import ServiceUnavailable
from app.job_table import FUNCTIONS, ask_for_recalibration
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor, JobSchedule
from app.jobs.handle import JobOvertakenError, RunningJob, WorkerStoppingError
from app.jobs.inline import run_inline
from app.jobs.queries import job_by_id
from app.jobs.runner import JobRunner, command_ids
from app.jobs.service import count_living_workers
from app.jobs.workers import list_missing_workers, record_heartbeat, requeue_jobs_of_dead_executors
from app.settings import Settings
from tests.app.test_jobs import job
from tests.support.jobs import POLL_SECONDS, submit, work_off
from tests.support.service import Service, cell_png, store
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.both_databases
_on_postgresql = pytest.mark.parametrize("database_kind", ["postgresql"], indirect=True)


@_on_postgresql
def test_a_workers_lock_goes_past_a_transaction_pooler(service: Service) -> None:
    settings = service.context.settings
    settings.database_direct_url = f"{settings.database_url}?application_name=direct"
    executor = JobExecutor(service.context, FUNCTIONS)
    try:
        assert executor.acquire()
        with service.context.database.read() as session:
            who = "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
            assert session.execute(text(who)).scalars().all() == ["direct"]
    finally:
        executor.stop()


@_on_postgresql
def test_a_worker_that_cannot_begin_ends_when_asked_to(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process has the chain: a start that waited for it would outlive the grace that containers have."""
    monkeypatch.setitem(POSTGRES_SETTINGS, "lock_timeout", "100")
    context, stop, tried = build_context(settings), threading.Event(), threading.Event()

    def claim(*arguments: Any, **options: Any) -> None:
        try:
            claim_database(*arguments, **options)
        except ServiceUnavailable:
            tried.set()
            raise

    monkeypatch.setattr("app.worker.claim_database", claim)
    with ThreadPoolExecutor(1) as pool, context.database.write() as session:
        lock_head(session)
        starting = pool.submit(worker._start_executor, context, stop)
        assert tried.wait(30 * PATIENCE)
        stop.set()
        assert starting.result(30 * PATIENCE) is None
    context.inference.close()
    context.database.engine.dispose()


def test_a_command_does_its_own_job_while_the_worker_is_busy(service: Service) -> None:
    context = service.context
    busy, ended = threading.Event(), threading.Event()

    def wait(_: RunningJob) -> dict[str, Any]:
        busy.set()
        assert ended.wait(30 * PATIENCE)
        return {"by": "the worker"}

    executor = JobExecutor(context, FUNCTIONS | {"evaluation": wait}, poll_seconds=0.05)
    first = submit(context, "evaluation", {})
    assert executor.acquire()
    executor.start()
    try:
        assert busy.wait(30 * PATIENCE)
        kinds = {"evaluation": lambda _: {"by": "the command"}}
        _, result = run_inline(
            context, lambda s: jobs_service.submit_job(s, context, "evaluation", {}, None), kinds, "evaluating"
        )
        assert result == {"by": "the command"}
        ended.set()
        wait_until(lambda: service.document(f"/v1/jobs/{first}")["state"] == "succeeded", 60)
    finally:
        ended.set()
        executor.stop(5)


def test_what_a_killed_command_left_is_done_by_a_worker(service: Service) -> None:
    context = service.context
    job_id = submit(context, "evaluation", {})
    service.change(update(Job).values(state="running", begun=1, executor_id=command_ids()[0]))
    command = JobRunner(context, FUNCTIONS, command_ids()[:1])
    service.change(update(Job).values(executor_id="another"))
    assert command.acquire()
    with context.database.write() as session:
        session.execute(update(Job).values(executor_id=command.id))
        assert requeue_jobs_of_dead_executors(session) == 0  # it lives
    command.release()
    assert work_off(context, {"evaluation": lambda _: {}}) == 1
    shown = service.document(f"/v1/jobs/{job_id}")
    assert (shown["state"], shown["attempts"]) == ("succeeded", 2)


@_on_postgresql
def test_a_second_worker_of_one_name_is_refused(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    context, stop = service.context, threading.Event()
    context.settings.executor_id = "one"
    first, second = (JobExecutor(context, FUNCTIONS) for _ in range(2))
    assert first.acquire()
    assert not second.acquire()
    monkeypatch.setattr(worker, "_REFUSED_SECONDS", 0.0)
    with pytest.raises(ValueError, match="another worker one lives"):
        worker._start_executor(context, stop)
    context.settings.executor_id = None
    unnamed = [JobExecutor(context, FUNCTIONS) for _ in range(2)]
    assert all(executor.acquire() for executor in unnamed)
    assert [executor.runner.id for executor in unnamed] == [f"{socket.gethostname()}-{slot}" for slot in range(2)]
    for executor in (first, second, *unnamed):
        executor.runner.release()


@pytest.mark.slow_on_second_database
def test_a_missing_worker_is_named_and_its_jobs_are_taken_over_once_it_is_gone(service: Service) -> None:
    context = service.context
    job_id = submit(context, "evaluation", {})
    with context.database.write() as session:
        session.execute(update(Job).values(state="running", begun=1, executor_id="lost-0"))
        record_heartbeat(session, "lost-0")
    here = JobRunner(context, FUNCTIONS, ["here"])
    assert here.acquire()
    with context.database.write() as session:
        record_heartbeat(session, "here")
    with service.clock.off_by(timedelta(minutes=1)):
        assert service.document("/readyz")["worker"] == "ok"
    with service.clock.off_by(timedelta(minutes=3)):
        assert "lost-0 since" in service.document("/readyz")["worker"]
        assert "lost-0" in service.get("admin", "/jobs", headers={"Accept": "text/html"}).text
    with context.database.write() as session, pytest.raises(ValueError, match="the worker here lives"):
        jobs_service.take_over_worker(session, "here")
    with context.database.write() as session, pytest.raises(ValueError, match="no worker other; there are: here"):
        jobs_service.take_over_worker(session, "other")
    with context.database.write() as session:
        assert jobs_service.take_over_worker(session, "lost-0") == 1
    with context.database.read() as session:
        assert list_missing_workers(session) == []
        assert job_by_id(session, uuid.UUID(job_id)).state == "queued"
    here.release()


@pytest.mark.slow
def test_upkeep_that_waited_is_done_once(service: Service) -> None:
    """A worker that was held up finds many ticks of a schedule in its queue and does the work of one."""
    context, done = service.context, []
    schedules = {"tidying": JobSchedule("0 0 1 1 *", done.append)}
    first = JobExecutor(context, FUNCTIONS, schedules, poll_seconds=0.05)
    assert first.acquire()
    first.start()  # makes the engine's tables
    first.stop()
    url = job_engine_url(context.settings.sqlalchemy_url)
    serializer = DBOSPortableJSONSerializer()
    client = DBOSClient(system_database_url=url, serializer=serializer, application_name="secondread")
    for _ in range(20):
        options: EnqueueOptions = {"queue_name": "upkeep", "workflow_name": "upkeep-tidying"}
        client.enqueue(options, utc_now().isoformat(), None)
    executor = JobExecutor(context, FUNCTIONS, schedules, poll_seconds=0.05)
    assert executor.acquire()
    with capture_logs() as logged:
        executor.start()
        try:
            wait_until(lambda: not client.list_workflows(status=["ENQUEUED", "PENDING"]), 60, "the queue is not empty")
        finally:
            executor.stop()
    assert len(done) == 1
    assert len(client.list_workflows()) == 20
    with service.clock.off_by(timedelta(days=2)):
        later = JobExecutor(context, FUNCTIONS)
        assert later.acquire()
        later.start()
        later.stop()
    assert client.list_workflows() == []
    client.destroy()
    assert not [line for line in logged if line["log_level"] == "error"]


def test_two_workers_ask_for_one_recalibration(service: Service) -> None:
    service.context.settings.recalibrate_days = 7
    store(service, "one", cell_png(), {"reader": 0})
    askers = [threading.Thread(target=ask_for_recalibration, args=(service.context,)) for _ in range(2)]
    with service.context.database.write() as session:
        session.execute(select(AuditHead.id).with_for_update())
        for asker in askers:
            asker.start()
        time.sleep(1)  # both have seen that none was asked for, and wait for the chain
    for asker in askers:
        asker.join()
    assert [row["kind"] for row in service.document("/v1/jobs")["items"]] == ["recalibration"]


def cancellations(service: Service) -> int:
    return len(service.document("/v1/audit-events", "admin", action="job.cancel")["items"])


@pytest.mark.slow_on_second_database
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
    assert service.call("admin", "DELETE", f"/v1/jobs/{job_id}").json()["state"] == "cancelled"
    assert cancellations(service) == 2  # not where there was nothing to cancel


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.slow_on_second_database
@pytest.mark.parametrize("batches", [1, 2])
def test_a_job_is_cancelled_while_a_batch_is_written_and_writes_no_other(service: Service, batches: int) -> None:
    """Whoever cancels is answered before the batch ends; on SQLite, where it writes alone, within the busy timeout."""
    job_id = submit(service.context, "evaluation", {})
    answers: list[dict[str, Any]] = []
    reports: list[Callable[[Session, float, str], None]] = []
    on_sqlite = service.context.database.engine.dialect.name == "sqlite"
    cancel = partial(service.call, "admin", "DELETE", f"/v1/jobs/{job_id}")
    canceller = threading.Thread(target=lambda: answers.append(cancel().json()))

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
    assert cancellations(service) == 1


@pytest.mark.slow
@pytest.mark.ci
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
    return submit(service.context, "evaluation", {})


def executor_for(service: Service, work: Any) -> JobExecutor:
    executor = JobExecutor(service.context, {**FUNCTIONS, "evaluation": work}, poll_seconds=POLL_SECONDS)
    assert executor.acquire()
    executor.start()
    return executor


def test_what_a_stopped_worker_left_is_taken_up_by_the_next_one(service: Service) -> None:
    job_id, batches = submit_evaluation(service), []

    def work(running: RunningJob) -> dict[str, Any]:
        running.batch("first", lambda _: batches.append("first") or {})
        if not batches[1:]:
            batches.append("stopped")
            raise WorkerStoppingError
        return running.batch("second", lambda _: {"batches": len(batches)})

    first = executor_for(service, work)
    wait_until(lambda: batches[1:] and not first.runner.running, 60, "the job was not begun")
    assert first.stop()
    assert job(service, job_id)["state"] == "running"
    assert work_off(service.context, {"evaluation": work}) == 1
    shown = job(service, job_id)
    assert (shown["state"], shown["attempts"], shown["result"]) == ("succeeded", 2, {"batches": 2})


@pytest.mark.slow_on_second_database
@pytest.mark.parametrize("change", [{"attempt": 2}, {"begun": 2}, {"state": "queued"}])
def test_a_worker_whose_job_another_one_has_writes_nothing(service: Service, change: dict[str, Any]) -> None:
    """The row of the job names its run; a transaction of any other one does not commit."""
    job_id, outcomes = submit_evaluation(service), []

    def work(running: RunningJob) -> dict[str, Any]:
        service.change(update(Job).values(change))
        for write in (lambda: running.report(0.5, "from the grave"), lambda: running.batch("one", lambda _: {})):
            with pytest.raises(JobOvertakenError):
                write()
            outcomes.append("refused")
        service.change(update(Job).values(attempt=1, begun=1, state="running"))
        return {}

    work_off(service.context, {"evaluation": work})
    assert outcomes == ["refused"] * 2
    assert job(service, job_id)["message"] == "done"


def test_a_job_runs_although_the_engine_remembers_another_copy_of_the_database(service: Service) -> None:
    """An older copy of the service's database came back beside the engine's: its jobs' workflows have ended."""
    job_id = submit_evaluation(service)
    assert work_off(service.context, {"evaluation": lambda _: {"run": 1}}) == 1
    service.change(update(Job).values(state="queued", result=None, ended_at=None, begun=0))
    assert work_off(service.context, {"evaluation": lambda _: {"run": 2}}) == 1
    assert job(service, job_id)["result"] == {"run": 2}


@pytest.mark.slow
def test_a_job_runs_although_the_engine_has_forgotten_it(service: Service) -> None:
    """A worker that was killed left a running job, and its engine's database is lost."""
    job_id = submit_evaluation(service)
    assert work_off(service.context, {"evaluation": lambda _: {}}) == 1
    url = job_engine_url(service.context.settings.sqlalchemy_url)
    client = DBOSClient(system_database_url=url, serializer=DBOSPortableJSONSerializer())
    assert [workflow.status for workflow in client.list_workflows(name="evaluation")] == ["SUCCESS"]
    client.delete_workflows([f"{job_id}.1"])
    client.destroy()
    service.change(update(Job).values(state="running", executor_id="gone", result=None, ended_at=None))
    assert work_off(service.context, {"evaluation": lambda _: {"again": True}}) == 1
    assert job(service, job_id)["result"] == {"again": True}


def test_whether_a_worker_lives_is_seen_by_its_lock(service: Service) -> None:
    def living() -> int:
        with service.context.database.read() as session:
            return count_living_workers(session)

    assert living() == 0
    executor = executor_for(service, lambda _: {})
    assert living() == 1
    executor.stop()
    wait_until(lambda: living() == 0)


@pytest.mark.sqlite_only
def test_on_sqlite_there_is_one_worker(service: Service) -> None:
    first = executor_for(service, lambda _: {})
    second = JobExecutor(service.context, FUNCTIONS)
    assert not second.acquire()
    first.stop()
    assert second.acquire()
    second.stop()
