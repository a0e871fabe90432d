"""Cancelling: at once, also while a batch is being written; what was stored stays, and nothing comes after it."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.audit.chain import events
from app.database.tables import Job, JobBatch
from app.jobs.handle import JobOvertakenError, RunningJob
from tests.support.jobs import submit, work_off
from tests.support.service import Service

pytestmark = pytest.mark.both_databases


def job(service: Service, job_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = service.get("viewer", f"/v1/jobs/{job_id}").json()
    return shown


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
    again = service.call("admin", "DELETE", f"/v1/jobs/{job_id}").json()
    assert again["state"] == "cancelled"
    events = service.get("admin", "/v1/audit-events").json()["items"]
    assert sum(event["action"] == "job.cancel" for event in events) == 2  # not where there was nothing to cancel


def cancellations(service: Service) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = service.get("admin", "/v1/audit-events", params={"action": "job.cancel"}).json()[
        "items"
    ]
    return events


@pytest.mark.slow
def test_a_cancellation_while_a_batch_has_the_job_is_kept_and_honoured_before_the_next_one(service: Service) -> None:
    job_id = submit(service.context, "evaluation", {})
    on_sqlite = service.context.database.engine.dialect.name == "sqlite"
    with service.context.database.write() as session:
        session.execute(select(Job.id).with_for_update(read=True, key_share=True))
        answer = service.call("admin", "DELETE", f"/v1/jobs/{job_id}")
        assert answer.status_code == (503 if on_sqlite else 200)  # there is one writer on SQLite
    shown = job(service, job_id)
    assert (shown["state"], shown["cancel_requested"]) == ("queued", not on_sqlite)
    assert [event["actor"] for event in cancellations(service)] == ([] if on_sqlite else ["admin"])
    if not on_sqlite:
        worked: list[RunningJob] = []

        def work(running: RunningJob) -> dict[str, Any]:
            worked.append(running)
            return {}

        work_off(service.context, {"evaluation": work})
        assert job(service, job_id)["state"] == "cancelled"
        assert worked == []
        assert len(cancellations(service)) == 1


@pytest.mark.parametrize("batches", [1, 2])
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
    with service.context.database.read() as session:
        assert session.execute(select(JobBatch.name)).scalars().all() == ["0"]
    assert len(cancellations(service)) == 1


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
