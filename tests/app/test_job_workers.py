"""Who does jobs and when: the worker's lock, commands that do their own job, and upkeep that nobody asks for."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer, EnqueueOptions
from sqlalchemy import select, text, update
from structlog.testing import capture_logs

from app import worker
from app.audit.chain.events import lock_head
from app.audit.installation import claim_database
from app.context import build_context
from app.database.engine import POSTGRES_SETTINGS
from app.database.migration import job_engine_url
from app.database.tables import AuditHead, Job, utc_now
from app.http.errors import ServiceUnavailable
from app.job_table import FUNCTIONS, ask_for_recalibration
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor, JobSchedule
from app.jobs.handle import RunningJob
from app.jobs.inline import run_inline
from app.jobs.queries import job_by_id
from app.jobs.runner import JobRunner, command_ids
from app.jobs.workers import list_missing_workers, record_heartbeat, requeue_jobs_of_dead_executors
from app.settings import Settings
from tests.support.jobs import work_off
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
def test_a_worker_that_cannot_begin_ends_when_it_is_asked_to(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process has the chain: a start that waited for it would outlive the grace that containers have."""
    monkeypatch.setitem(POSTGRES_SETTINGS, "lock_timeout", "100")
    context, stop, tried = build_context(settings), threading.Event(), threading.Event()
    monkeypatch.setattr("app.worker.claim_database", partial(_tell_of_failure, tried, claim_database))
    with ThreadPoolExecutor(1) as pool, context.database.write() as session:
        lock_head(session)
        starting = pool.submit(worker._start_executor, context, stop)
        assert tried.wait(30 * PATIENCE)
        stop.set()
        assert starting.result(30 * PATIENCE) is None
    context.inference.close()
    context.database.engine.dispose()


def _tell_of_failure(tried: threading.Event, work: Callable[..., None], *arguments: Any, **of: Any) -> None:
    try:
        work(*arguments, **of)
    except ServiceUnavailable:
        tried.set()
        raise


def test_a_command_does_its_own_job_while_the_worker_is_busy(service: Service) -> None:
    context = service.context
    busy, ended = threading.Event(), threading.Event()

    def wait(_: RunningJob) -> dict[str, Any]:
        busy.set()
        assert ended.wait(30 * PATIENCE)
        return {"by": "the worker"}

    executor = JobExecutor(context, FUNCTIONS | {"evaluation": wait}, poll_seconds=0.05)
    with context.database.write() as session:
        first = jobs_service.submit_job(session, context, "evaluation", {}, None).id
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
        wait_until(lambda: service.get("viewer", f"/v1/jobs/{first}").json()["state"] == "succeeded", 60)
    finally:
        ended.set()
        executor.stop(5)


def test_what_a_killed_command_left_is_done_by_a_worker(service: Service) -> None:
    context = service.context
    with context.database.write() as session:
        job_id = jobs_service.submit_job(session, context, "evaluation", {}, None).id
        session.flush()
        session.execute(update(Job).values(state="running", begun=1, executor_id=command_ids()[0]))
    command = JobRunner(context, FUNCTIONS, command_ids()[:1])
    service.change(update(Job).values(executor_id="another"))
    assert command.acquire()
    with context.database.write() as session:
        session.execute(update(Job).values(executor_id=command.id))
        assert requeue_jobs_of_dead_executors(session) == 0  # it lives
    command.release()
    assert work_off(context, {"evaluation": lambda _: {}}) == 1
    shown = service.get("viewer", f"/v1/jobs/{job_id}").json()
    assert (shown["state"], shown["attempts"]) == ("succeeded", 2)


@_on_postgresql
def test_a_second_worker_of_one_name_is_refused_and_one_without_a_name_has_the_next(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with context.database.write() as session:
        job_id = jobs_service.submit_job(session, context, "evaluation", {}, None).id
        session.flush()
        session.execute(update(Job).values(state="running", begun=1, executor_id="lost-0"))
        record_heartbeat(session, "lost-0")
    here = JobRunner(context, FUNCTIONS, ["here"])
    assert here.acquire()
    with context.database.write() as session:
        record_heartbeat(session, "here")
    with service.clock.off_by(timedelta(minutes=1)):
        assert service.get(None, "/readyz").json()["worker"] == "ok"
    with service.clock.off_by(timedelta(minutes=3)):
        assert "lost-0 since" in service.get(None, "/readyz").json()["worker"]
        assert "lost-0" in service.get("admin", "/jobs", headers={"Accept": "text/html"}).text
    with context.database.write() as session, pytest.raises(ValueError, match="the worker here lives"):
        jobs_service.take_over_worker(session, "here")
    with (
        context.database.write() as session,
        pytest.raises(ValueError, match="no worker other; there are: here"),
    ):
        jobs_service.take_over_worker(session, "other")
    with context.database.write() as session:
        assert jobs_service.take_over_worker(session, "lost-0") == 1
    with context.database.read() as session:
        assert list_missing_workers(session) == []
        assert job_by_id(session, job_id).state == "queued"
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
    client = DBOSClient(
        system_database_url=job_engine_url(context.settings.sqlalchemy_url),
        serializer=DBOSPortableJSONSerializer(),
        application_name="secondread",
    )
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
    assert [row["kind"] for row in service.get("viewer", "/v1/jobs").json()["items"]] == ["recalibration"]
