"""Schedules fire: on both databases, once per tick however many workers live, and still when one of them has died."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from dbos import DBOSClient, DBOSPortableJSONSerializer

from app.database.migration import job_engine_url
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until
from tests.support.workplace import Workplace

#: DBOS's identifier of one firing: the schedule, and the second that it is of.
PREFIX = "sched-upkeep-tidying-"


@pytest.fixture
def workplace(request: pytest.FixtureRequest, tmp_path: Path, tiny_release: Path) -> Iterator[Workplace]:
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    with Workplace(tmp_path, url, tiny_release) as made:
        yield made


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
@pytest.mark.parametrize("workplace", ["sqlite"], indirect=True)
def test_a_schedule_fires_every_second_without_being_asked(workplace: Workplace) -> None:
    worker = workplace.ticking_worker()
    wait_for_ticks(workplace, 3)
    assert set(ticks(workplace)) == {str(worker.pid)}
    assert {moment[19:] for moment in firings(workplace)} == {"+00:00"}  # whole seconds, in UTC


@pytest.mark.heavy  # a real clock of seconds, which two workers share
@pytest.mark.parametrize("workplace", ["postgresql"], indirect=True)
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
    assert done <= len(
        firings(workplace)
    )  # each was done by one worker, or skipped, since a run began after its moment
    workers[0].kill()
    workers[0].wait()
    done = len(ticks(workplace))
    wait_for_ticks(workplace, 3)
    assert set(ticks(workplace)[done:]) == {str(workers[1].pid)}
