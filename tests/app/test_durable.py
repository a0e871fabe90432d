"""DBOS on the service's database: one SQLite library and one journal mode, its tables, and its private calls."""

import sqlite3
from importlib.metadata import version
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from app.database.dbos_adapter import TABLES, system_engine, workflow_table
from app.database.engine import sqlite_module
from app.database.tables import BaseTable
from app.job_table import FUNCTIONS
from app.jobs import service as jobs_service
from app.jobs.executor import JobExecutor
from app.jobs.handle import JobOvertakenError, RunningJob, WorkerStoppingError
from app.jobs.locks import count_living_workers
from tests.support.jobs import POLL_SECONDS, work_off
from tests.support.service import Service
from tests.support.waiting import wait_until


def library_and_journal(database: Engine) -> tuple[str, str, str]:
    with database.connect() as connection:
        raw = connection.connection.dbapi_connection
        found = connection.execute(text("SELECT sqlite_version()")).scalar_one()
        mode = connection.execute(text("PRAGMA journal_mode")).scalar_one()
        return type(raw).__module__, found, mode


def test_dbos_and_the_service_use_one_sqlite_library_and_one_journal_mode(service: Service) -> None:
    """Two libraries in one process cancel each other's locks, and two modes corrupt the file."""
    own = library_and_journal(service.context.database.engine)
    system = system_engine(service.context.settings.sqlalchemy_url)
    assert library_and_journal(system) == own
    assert library_and_journal(service.context.jobs.client._sys_db.engine) == own
    assert own[1] == sqlite_module().sqlite_version
    if sqlite_module() is not sqlite3:
        assert own[0] != "sqlite3"
    system.dispose()


def test_the_tables_of_dbos_are_known_by_name(service: Service) -> None:
    there = set(inspect(service.context.database.engine).get_table_names())
    assert there - set(BaseTable.metadata.tables) - {"alembic_version"} <= set(TABLES)
    assert not set(TABLES) & set(BaseTable.metadata.tables)


def test_the_pinned_version_of_dbos_is_the_one_whose_private_calls_were_tried() -> None:
    """``app.database.dbos_adapter`` calls two private functions; a newer version is tried before it is pinned."""
    assert version("dbos").startswith("3.4.")


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
    wait_until(lambda: batches[1:] and first.idle, 60, "the job was not begun")
    assert first.stop()
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["state"] == "running"
    assert work_off(service.context, {"evaluation": work}) == 1
    shown = service.get("viewer", f"/v1/jobs/{job_id}").json()
    assert (shown["state"], shown["attempts"], shown["result"]) == ("succeeded", 2, {"batches": 2})


@pytest.mark.both_databases
def test_a_worker_whose_job_another_one_has_writes_nothing(service: Service) -> None:
    """The row of the workflow names its worker; a transaction of any other one does not commit."""
    job_id, outcomes = submit(service), []

    def work(job: RunningJob) -> dict[str, Any]:
        workflows = workflow_table(service.context.database.engine.dialect.name)
        with service.context.database.write() as session:
            session.execute(workflows.update().values(executor_id="another"))
        for write in (lambda: job.report(0.5, "from the grave"), lambda: job.batch("one", lambda _: {})):
            with pytest.raises(JobOvertakenError):
                write()
            outcomes.append("refused")
        with service.context.database.write() as session:
            session.execute(workflows.update().values(executor_id=job.executor_id))
        return {}

    work_off(service.context, {"evaluation": work})
    assert outcomes == ["refused"] * 2
    assert service.get("viewer", f"/v1/jobs/{job_id}").json()["message"] == "done"


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
