"""Workers killed, stopped, frozen and cut off: each row once, each schedule once per tick, and somebody goes on."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer

from app.database.migration import job_engine_url
from app.imports.import_job import BATCH
from tests.support.postgres import PostgresServer
from tests.support.waiting import patient, wait_until
from tests.support.workplace import Workplace

JOBS = 5


@pytest.fixture
def workplace(any_database: str | None, tmp_path: Path, tiny_release: Path) -> Iterator[Workplace]:
    with Workplace(tmp_path, any_database, tiny_release) as made:
        yield made


@pytest.mark.slow
@pytest.mark.slow_on_second_database
def test_a_worker_killed_at_each_point_of_its_work_leaves_every_row_once(workplace: Workplace) -> None:
    """Killed before a batch is committed, after it, and between the work and the record of its end."""
    n = 3 * BATCH
    job_id = workplace.ask_import(n)
    for point in ("before a commit", "after a commit", "before the outcome is recorded"):
        assert workplace.doomed_worker(point).wait(patient(120)) == -signal.SIGKILL, workplace.made.log
        assert workplace.job(job_id).state in {"running", "queued"}
    assert workplace.job(job_id).progress == 1.0  # the work is done, and only its record is missing
    workplace.worker()
    workplace.wait_for_success(job_id)
    assert workplace.job(job_id).attempts == 4
    workplace.note("F8", "worker killed before and after a commit, and before its outcome is recorded", 3, n)
    workplace.assert_each_row_once((job_id, n))


@pytest.mark.slow
def test_a_worker_told_to_stop_does_so_between_batches_and_another_goes_on(workplace: Workplace) -> None:
    n = 6 * BATCH
    job_id = workplace.ask_import(n)
    first = workplace.worker()
    workplace.wait_for_progress(job_id, 0.1)
    first.send_signal(signal.SIGTERM)
    assert first.wait(patient(10)) == 0
    stopped = workplace.job(job_id)
    assert (stopped.state, stopped.progress < 1) == ("running", True)
    assert stopped.progress * n % BATCH == 0
    workplace.worker()
    workplace.wait_for_success(job_id)
    workplace.assert_each_row_once((job_id, n))


@pytest.mark.slow
@pytest.mark.parametrize("any_database", ["sqlite"], indirect=True)
def test_a_worker_told_to_stop_in_the_middle_of_a_long_part_ends_in_time(workplace: Workplace) -> None:
    job_id = workplace.ask_import(BATCH)
    stuck = workplace.stuck_worker()
    wait_until(lambda: workplace.job(job_id).state == "running", 60, lambda: workplace.made.log)
    stuck.send_signal(signal.SIGTERM)
    assert stuck.wait(patient(10)) == 0
    workplace.worker()
    workplace.wait_for_success(job_id)
    workplace.assert_each_row_once((job_id, BATCH))


@pytest.mark.slow
def test_two_workers_share_and_go_on_when_postgresql_comes_back(
    own_postgres: PostgresServer, tmp_path: Path, tiny_release: Path
) -> None:
    n = 4 * BATCH
    with Workplace(tmp_path, own_postgres.url(own_postgres.create()), tiny_release) as workplace:
        jobs = [workplace.ask_import(n) for _ in range(2)]
        workers = [workplace.worker(name) for name in ("first", "second")]
        wait_until(lambda: len(workplace.executors()) == 2, 60, lambda: workplace.made.log)
        for job_id in jobs:
            workplace.wait_for_progress(job_id, 0.1)
        own_postgres.halt()
        workplace.context.database.engine.dispose()
        time.sleep(1)
        own_postgres.start()
        wait_until(lambda: any(workplace.job(job_id).attempts > 1 for job_id in jobs), 30, lambda: workplace.made.log)
        for job_id in jobs:
            workplace.wait_for_success(job_id)
        workplace.note("F6, F8", "PostgreSQL stopped under two workers", 1, 2 * n)
        workplace.assert_each_row_once(*((job_id, n) for job_id in jobs))
        assert [worker.poll() for worker in workers] == [None, None]
        wait_until(lambda: workplace.living() == 2, 30, lambda: workplace.made.log)


@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "seconds", [pytest.param(0.0, marks=pytest.mark.slow), pytest.param(90.0, marks=pytest.mark.heavy)]
)
def test_a_frozen_worker_whose_connections_were_cut_writes_nothing_any_more(
    postgres: PostgresServer, workplace: Workplace, seconds: float
) -> None:
    n = 6 * BATCH
    job_id = workplace.ask_import(n)
    frozen = workplace.worker("frozen")
    workplace.wait_for_progress(job_id, 0.1)
    other = workplace.worker("other")
    wait_until(lambda: workplace.living() == 2, 60, lambda: workplace.made.log)
    (before,) = workplace.executors()
    frozen.send_signal(signal.SIGSTOP)
    thaw_at = time.monotonic() + seconds
    database = workplace.context.database.engine.url.database
    with psycopg.connect(f"host=127.0.0.1 port={postgres.port} user=postgres dbname={database}") as connection:
        cut = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'frozen'"
        row = connection.execute(cut).fetchone()
        assert row is not None
        assert row[0] >= 2
    wait_until(lambda: before not in workplace.executors(), 30, lambda: workplace.made.log)
    workplace.wait_for_success(job_id)
    time.sleep(max(0.0, thaw_at - time.monotonic()))
    frozen.send_signal(signal.SIGCONT)
    wait_until(lambda: workplace.living() == 2, 60, lambda: workplace.made.log)  # it has started anew
    assert workplace.job(job_id).attempts == 2
    workplace.note("F8", f"worker frozen for {seconds:.0f} s at least, its connections cut", 1, n)
    workplace.assert_each_row_once((job_id, n))
    assert (frozen.poll(), other.poll()) == (None, None)


@pytest.mark.parametrize(
    "n_kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.heavy)]
)
def test_kills_at_random_points_leave_every_row_once(workplace: Workplace, n_kills: int) -> None:
    rng, n, kills = random.Random(13), 10 * BATCH, 0
    jobs: list[tuple[object, int]] = []
    longest = 0.0
    while kills < n_kills:
        job_id = workplace.ask_import(n)
        jobs.append((job_id, n))
        while kills < n_kills * len(jobs) / JOBS and workplace.job(job_id).state != "succeeded":
            attempts = workplace.job(job_id).attempts
            started = time.monotonic()
            doomed = workplace.worker()
            wait_until(lambda: workplace.job(job_id).attempts > attempts, 120, lambda: workplace.made.log)  # noqa: B023
            longest = max(longest, time.monotonic() - started)
            time.sleep(rng.uniform(0, 1.2))
            doomed.kill()
            doomed.wait()
            kills += 1
        last = workplace.worker()
        wait_until(lambda: workplace.living() == 1, 60, lambda: workplace.made.log)  # before that a signal just ends it
        workplace.wait_for_success(job_id, 300)
        last.send_signal(signal.SIGTERM)
        assert last.wait(patient(20)) == 0
    workplace.note("F8", "worker killed at a random point", kills, n * len(jobs), longest)
    workplace.assert_each_row_once(*jobs)  # type: ignore[arg-type]


#: DBOS's identifier of one firing: the schedule, and the second that it is of.
PREFIX = "sched-upkeep-tidying-"


def ticks(workplace: Workplace) -> list[str]:
    """Process of each time that the schedule's work was done."""
    return workplace.ticks.read_text().split() if workplace.ticks.exists() else []


def firings(workplace: Workplace) -> dict[str, str]:
    """Status of every firing that was ever queued, by its second."""
    url = job_engine_url(workplace.context.settings.sqlalchemy_url)
    client = DBOSClient(system_database_url=url, serializer=DBOSPortableJSONSerializer())
    rows = client.list_workflows(load_input=False, load_output=False)
    client.destroy()
    assert {row.name for row in rows} <= {"upkeep-tidying"}
    assert all(row.workflow_id.startswith(PREFIX) for row in rows)
    return {row.workflow_id.removeprefix(PREFIX): row.status for row in rows}


def wait_for_ticks(workplace: Workplace, more: int) -> None:
    wanted = len(ticks(workplace)) + more
    wait_until(lambda: len(ticks(workplace)) >= wanted, 60, lambda: f"{firings(workplace)}\n{workplace.made.log}")


@pytest.mark.slow
@pytest.mark.parametrize("any_database", ["sqlite"], indirect=True)
def test_a_schedule_fires_every_second_without_being_asked(workplace: Workplace) -> None:
    worker = workplace.ticking_worker()
    wait_for_ticks(workplace, 3)
    assert set(ticks(workplace)) == {str(worker.pid)}
    assert {moment[19:] for moment in firings(workplace)} == {"+00:00"}  # whole seconds, in UTC


@pytest.mark.heavy  # a real clock of seconds, which two workers share
@pytest.mark.parametrize("any_database", ["postgresql"], indirect=True)
def test_two_workers_fire_once_per_tick_and_the_one_that_is_left_goes_on(workplace: Workplace) -> None:
    workers = [workplace.ticking_worker() for _ in range(2)]
    wait_until(lambda: workplace.living() == 2, 60, lambda: workplace.made.log)
    before = len(firings(workplace))
    wait_until(lambda: len(set(ticks(workplace))) == 2, 60, lambda: f"{ticks(workplace)}\n{workplace.made.log}")
    wait_for_ticks(workplace, 4)
    moments = sorted(firings(workplace))
    assert len(moments) > before
    assert len({moment[:19] for moment in moments}) == len(moments)  # never two firings of one second
    done = len(ticks(workplace))
    assert done <= len(firings(workplace))  # each by one worker, or skipped, since a run began after its moment
    workers[0].kill()
    workers[0].wait()
    done = len(ticks(workplace))
    wait_for_ticks(workplace, 3)
    assert set(ticks(workplace)[done:]) == {str(workers[1].pid)}
