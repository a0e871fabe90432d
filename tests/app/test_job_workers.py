"""Who does jobs and when: the worker's lock, commands that do their own job, and upkeep that nobody asks for."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import psycopg
import pytest
from dbos import EnqueueOptions
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from app import worker
from app.audit.chain.events import lock_head
from app.audit.installation import claim_database
from app.context import ServiceContext, build_context
from app.database.dbos_adapter import workflow_table
from app.database.engine import POSTGRES_SETTINGS
from app.database.tables import AuditHead, utc_now
from app.http.errors import ServiceUnavailable
from app.job_table import FUNCTIONS, ask_for_recalibration
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor, JobSchedule
from app.jobs.handle import RunningJob
from app.jobs.inline import run_inline
from app.jobs.locks import _LOCK_CLASS, count_living_workers
from app.jobs.queries import JobView
from app.settings import Settings
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


@pytest.mark.slow_on_second_database
def test_a_command_does_jobs_of_other_kinds_while_it_waits_and_enqueues_no_upkeep(service: Service) -> None:
    """The command's job ends only when another one, of another kind, has."""
    context = service.context
    executor = JobExecutor(
        context, FUNCTIONS, {"tidying": JobSchedule("* * * * * *", lambda _: None)}, poll_seconds=0.05
    )
    assert executor.acquire()
    executor.start()  # leaves its schedule in the database
    executor.stop()
    upkeep = _upkeep_runs(context)
    with context.database.write() as session:
        other = jobs_service.submit_job(session, context, "prediction", {}, None).id
    ended = threading.Event()

    def wait(_: RunningJob) -> dict[str, Any]:
        assert ended.wait(30 * PATIENCE)
        time.sleep(2)
        return {}

    def work(_: RunningJob) -> dict[str, Any]:
        ended.set()
        return {}

    def ask(session: Session) -> JobView:
        return jobs_service.submit_job(session, context, "evaluation", {}, None)

    done, _ = run_inline(context, ask, FUNCTIONS | {"evaluation": wait, "prediction": work}, "evaluating")
    assert done.state == "succeeded"
    assert service.get("viewer", f"/v1/jobs/{other}").json()["state"] == "succeeded"
    assert _upkeep_runs(context) == upkeep


def _upkeep_runs(context: ServiceContext) -> int:
    workflows = workflow_table(context.database.engine.dialect.name)
    with context.database.read() as session:
        runs = select(func.count()).select_from(workflows).where(workflows.c.name.like("upkeep-%"))
        return int(session.execute(runs).scalar_one())


@_on_postgresql
def test_on_postgresql_a_command_does_not_wait_for_a_worker_that_is_busy(service: Service) -> None:
    context = service.context
    with context.database.read() as session, psycopg.connect(_plain_url(session)) as connection:
        # the lock of a worker that takes nothing
        connection.execute("SELECT pg_advisory_lock(%s, 1)", (_LOCK_CLASS,))
        assert count_living_workers(session) == 1
        kinds = FUNCTIONS | {"evaluation": lambda _: {"by": "the command"}}
        _, result = run_inline(
            context, lambda s: jobs_service.submit_job(s, context, "evaluation", {}, None), kinds, "evaluating"
        )
    assert result == {"by": "the command"}


def _plain_url(session: Session) -> str:
    url = session.get_bind().engine.url.set(drivername="postgresql")
    return url.render_as_string(hide_password=False)


def test_upkeep_that_waited_is_done_once(service: Service) -> None:
    """A worker that was held up finds many ticks of a schedule in its queue and does the last of them."""
    context, done = service.context, []
    executor = JobExecutor(context, FUNCTIONS, {"tidying": JobSchedule("0 0 1 1 *", done.append)}, poll_seconds=0.05)
    for _ in range(20):
        with context.database.write() as session:
            options: EnqueueOptions = {"queue_name": "upkeep", "workflow_name": "upkeep-tidying"}
            context.jobs.client.enqueue_in_transaction(session, options, utc_now().isoformat(), None)
    assert executor.acquire()
    executor.start()
    workflows = workflow_table(context.database.engine.dialect.name)
    left = select(func.count()).select_from(workflows).where(workflows.c.status != "SUCCESS")

    def all_done() -> bool:
        with context.database.read() as session:
            return session.execute(left).scalar_one() == 0

    try:
        wait_until(all_done, 60, "the queue is not empty")
    finally:
        executor.stop()
    assert len(done) == 1


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
