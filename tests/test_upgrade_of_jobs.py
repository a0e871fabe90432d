"""Jobs of 0.1.0 after the upgrade: what has ended is shown as it ended, what was under way is done, nothing is lost."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from app.cli.main import secondread
from app.context import Context, build_context
from app.jobs.queries import JobView, job_by_id, jobs_where
from app.jobs.running import RunningJob
from app.platform import durable
from app.platform.migrate import check, downgrade, upgrade
from app.settings import Settings
from app.tables import ImportRow
from tests.support.jobs import work_off
from tests.support.postgres import PostgresServer

#: Revision of 0.1.0's tables of jobs, and when its jobs were asked for.
FORMER, ASKED = "0004", datetime(2026, 1, 1, tzinfo=UTC)
BEGUN, ENDED = ASKED + timedelta(minutes=1), ASKED + timedelta(minutes=9)
NOT_BEGUN: dict[str, Any] = {"attempts": 0, "started_at": None, "ended_at": None}
UNDER_WAY: dict[str, Any] = {"attempts": 2, "started_at": BEGUN, "ended_at": None, "progress": 0.5}
OVER: dict[str, Any] = {"attempts": 3, "started_at": BEGUN, "ended_at": ENDED, "progress": 0.7}
JOBS: dict[str, dict[str, Any]] = {
    "queued": {"state": "queued"} | NOT_BEGUN,
    "running": {"state": "running"} | UNDER_WAY,
    "running, to be cancelled": {"state": "running", "cancel_requested": True} | UNDER_WAY,
    "succeeded": {"state": "succeeded", "result": {"n_rows": 1, "names": ["é"]}} | OVER | {"progress": 1.0},
    "succeeded without a result": {"state": "succeeded"} | OVER,
    "failed": {"state": "failed", "error": 'no "labels" were found'} | OVER,
    "failed without a word": {"state": "failed"} | OVER,
    "cancelled": {"state": "cancelled", "cancel_requested": True} | OVER,
    "cancelled before it began": {"state": "cancelled"} | NOT_BEGUN | {"ended_at": ENDED},
}


@pytest.fixture(params=["sqlite", "postgresql"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Context]:
    """An installation whose database has the tables of 0.1.0 and its jobs, one of each kind of fate."""
    url = None
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(server.create())
    settings = Settings(home=tmp_path / "home", database_url=url)
    settings.home.mkdir()
    made = build_context(settings)
    upgrade(made.database.engine, FORMER)
    with made.database.write() as session:
        for number, (name, values) in enumerate(JOBS.items(), 1):
            row = {"cancel_requested": False, "result": None, "error": None, "progress": 0.0} | values
            row |= {"id": _identifier(number), "asked": ASKED, "message": name, "result": _json(row["result"])}
            row |= {"parameters": json.dumps({"name": name})}
            session.execute(text(_JOB), row)
        session.execute(text(_ROW), {"id": _identifier(1 + list(JOBS).index("succeeded"))})
    yield made
    made.database.engine.dispose()


_JOB = (
    "INSERT INTO jobs (id, created_at, kind, parameters, state, progress, message, attempts, cancel_requested, result, "
    "error, started_at, ended_at) VALUES (:id, :asked, 'evaluation', :parameters, :state, :progress, :message, "
    ":attempts, :cancel_requested, :result, :error, :started_at, :ended_at)"
)
_ROW = (
    "INSERT INTO import_rows (job_id, row, external_id, status, case_id, detail) "
    "VALUES (:id, 7, 'cell 7', 'failed', NULL, 'no image')"
)


def _identifier(number: int) -> str:
    return f"0189000000007000800000000000{number:04}"


def _json(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def jobs(context: Context) -> dict[str, JobView]:
    with context.database.read() as session:
        return {str(job.parameters["name"]): job for job in jobs_where(session)}


def assert_nothing_is_lost(context: Context) -> None:
    shown = jobs(context)
    assert set(shown) == set(JOBS)
    states = {name: job.state for name, job in shown.items()}
    fates = {"running": "queued", "running, to be cancelled": "cancelled"}
    assert states == {name: fates.get(name, str(values["state"])) for name, values in JOBS.items()}
    for name, values in JOBS.items():
        job = shown[name]
        assert (job.created_at, job.started_at) == (ASKED, values["started_at"]), name
        assert (job.result, job.cancel_requested) == (
            values.get("result"),
            job.state == "cancelled" and values["attempts"] > 0,
        ), name
        if values["ended_at"] is not None:
            assert (job.ended_at, job.attempts) == (ENDED, values["attempts"]), name
    assert shown["failed"].error == 'no "labels" were found'
    assert shown["failed without a word"].error == "it failed without a message"
    assert shown["running, to be cancelled"].ended_at is not None
    assert (shown["running"].progress, shown["running"].ended_at) == (0.5, None)
    with context.database.read() as session:
        row = session.get(ImportRow, (shown["succeeded"].id, 7))
        assert row is not None
        assert (row.external_id, row.detail) == ("cell 7", "no image")


def test_no_job_is_lost_by_the_upgrade_and_what_was_under_way_is_done(context: Context) -> None:
    upgrade(context.database.engine)
    check(context.database.engine)
    assert_nothing_is_lost(context)
    done: list[str] = []

    def work(job: RunningJob) -> dict[str, Any]:
        done.append(job.parameters["name"])
        return {"done": job.parameters["name"]}

    assert work_off(context, {"evaluation": work}) == 2
    assert sorted(done) == ["queued", "running"]
    for name in done:
        job = jobs(context)[name]
        assert (job.state, job.result, job.attempts) == ("succeeded", {"done": name}, 1)
    assert jobs(context)["running"].started_at == BEGUN
    with context.database.read() as session:
        assert job_by_id(session, jobs(context)["queued"].id).started_at is not None


def test_jobs_go_down_to_the_former_tables_and_up_again(context: Context) -> None:
    upgrade(context.database.engine)
    before = jobs(context)
    downgrade(context.database.engine, FORMER)
    with context.database.read() as session:
        former = {row[0]: row[1] for row in session.execute(text("SELECT message, state FROM jobs"))}
    fates = {"running": "queued", "running, to be cancelled": "cancelled"}
    assert former == {name: fates.get(name, str(values["state"])) for name, values in JOBS.items()}
    upgrade(context.database.engine)
    after = jobs(context)
    for name, job in before.items():
        kept = (job.state, job.result, job.error, job.ended_at)
        assert (after[name].state, after[name].result, after[name].error, after[name].ended_at) == kept, name


@pytest.mark.parametrize("context", ["sqlite"], indirect=True)
def test_the_upgrade_removes_the_former_engines_file_and_says_so(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = context.settings.home
    monkeypatch.setenv("SECONDREAD_HOME", str(home))
    durable.create_tables(f"sqlite:///{home / 'jobs.db'}")
    for suffix in ("-wal", "-shm"):
        (home / f"jobs.db{suffix}").touch()
    answer = CliRunner().invoke(secondread, ["db", "upgrade"])
    assert answer.exit_code == 0, answer.output
    assert answer.output.count(f"removed {home / 'jobs.db'}") == 1
    assert list(home.glob("jobs.db*")) == []
    assert_nothing_is_lost(context)
    (home / "jobs.db").write_text("somebody's own notes on jobs")
    again = CliRunner().invoke(secondread, ["db", "upgrade"])
    assert (again.exit_code, "removed" in again.output) == (0, False), again.output
    assert (home / "jobs.db").read_text() == "somebody's own notes on jobs"
