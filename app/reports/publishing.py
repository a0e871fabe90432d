"""Publishes reports made by the worker: a page shows the latest one and requests a newer one."""

import hashlib
import json
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TypedDict
from uuid import UUID

from pydantic_core import to_jsonable_python
from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session, undefer

from app.audit.chain import events
from app.context import ServiceContext
from app.database.engine import insert_if_absent
from app.database.tables import Case, Job, PublishedReportRow, ReadRequest, time_of
from app.http.errors import InvalidValue
from app.http.principal import Principal
from app.jobs import service
from app.jobs.service import OPEN, JobView, RunningJob, jobs_where
from app.metrics.service import CohortQuery
from app.releases.service import get_champion_alias
from app.reports.report import build_report
from app.reports.schemas import PublishedReport, ReportBody
from app.triage.service import current_policy, threshold_of
from ml.messages import Message, packed
from secondread import __version__

KIND = "report"
#: What a report is made by, at the beginning of its basis; the number changes with what reports have inside.
_MADE_BY = f"{__version__} 3 "
#: A report stays for this long at least, and for this many times as long as it took to make.
PAUSE = timedelta(minutes=1)
_REST = 20
#: Reports on other questions than the newest ones are forgotten.
KEPT = 40


def _query_parameters(question: CohortQuery) -> dict[str, str | None]:
    return {"partition": question.partition, "weighting": question.weighting, "site": question.site}


def hash_report_query(question: CohortQuery) -> str:
    """Digest of a question."""
    return hashlib.sha256(json.dumps(_query_parameters(question), sort_keys=True).encode()).hexdigest()


def _query_from_row(row: PublishedReportRow) -> CohortQuery:
    parameters = row.question
    return CohortQuery(parameters["partition"], parameters["weighting"], site=parameters["site"])  # type: ignore[arg-type]


def read_published_report(session: Session, question: CohortQuery) -> PublishedReport:
    """The latest report on a question."""
    alias, body = get_champion_alias(session), [undefer(PublishedReportRow.document)]
    row = session.get(PublishedReportRow, hash_report_query(question), options=body)
    if alias is None:
        return PublishedReport(state="without-release")
    if row is None:
        return PublishedReport(state="making")
    job = _find_report_job(session, row)
    error = job.error if job is not None and job.state == "failed" else None
    if row.as_of is None or not _can_be_shown(row, alias.release_id):
        return PublishedReport(state="making" if error is None else "failed", error=error)
    return PublishedReport(
        state="ready",
        body=ReportBody.model_validate(row.document),
        as_of=row.as_of,
        newer=row.basis != _report_basis(session),
        next_at=row.as_of + _report_pause(row),
        error=error,
    )


def request_report(context: ServiceContext, principal: Principal, question: CohortQuery) -> None:
    """Submit a report job, unless the latest report is fresh or a job is open."""
    with context.database.read() as session:
        if not _is_report_due(session, question):
            return
        of_site = select(Case.id).where(Case.site == question.site).limit(1)
        if question.site is not None and session.execute(of_site).first() is None:
            raise InvalidValue("site {site} has no cells", site=question.site)
    with context.database.write() as session:
        key = hash_report_query(question)
        insert_if_absent(
            session,
            PublishedReportRow,
            {"key": key, "question": _query_parameters(question), "asked_at": context.clock()},
        )
        # of two who ask, the second waits here, and then sees the job of the first
        row = session.execute(
            select(PublishedReportRow).where(PublishedReportRow.key == key).with_for_update()
        ).scalar_one()
        if _is_report_due(session, question):
            row.job_id = service.submit_job(session, context, KIND, {"key": key}, principal).id
            row.asked_at = context.clock()
            _delete_old_reports(session, row)


def _is_report_due(session: Session, question: CohortQuery) -> bool:
    """Whether a new report is due: a champion, no recent request, and changed data."""
    alias = get_champion_alias(session)
    if alias is None:
        return False
    row = session.get(PublishedReportRow, hash_report_query(question))
    if row is None:
        return True
    job = _find_report_job(session, row)
    if job is not None and job.state in OPEN:
        return False
    at = time_of(session)
    if row.as_of is None or not _can_be_shown(row, alias.release_id):  # unless the last one failed, or was cancelled
        return job is None or row.asked_at + PAUSE <= at
    return max(row.as_of + _report_pause(row), row.asked_at + PAUSE) <= at and row.basis != _report_basis(session)


def _can_be_shown(row: PublishedReportRow, release_id: UUID) -> bool:
    return row.release_id == release_id and (row.basis or "").startswith(_MADE_BY)


def _find_report_job(session: Session, row: PublishedReportRow) -> JobView | None:
    jobs = [] if row.job_id is None else jobs_where(session, Job.id == row.job_id)
    return jobs[0] if jobs else None


def _report_pause(row: PublishedReportRow) -> timedelta:
    return max(PAUSE, timedelta(seconds=_REST * (row.seconds or 0.0)))


def _report_basis(session: Session) -> str:
    # The estimators, the champion, the policy with its threshold today, overdue planned reads, and the last change of
    # any case.
    alias, policy = get_champion_alias(session), current_policy(session)
    due = select(func.count()).where(
        ReadRequest.round == "planned",
        ReadRequest.state.in_(("open", "leased")),
        ReadRequest.due_at <= time_of(session),
    )
    served = None if alias is None else alias.release_id
    threshold = threshold_of(session, policy, time_of(session))
    n_due, last = session.execute(due).scalar_one(), events.last_change(session)
    return f"{_MADE_BY}{served} {policy.version} {threshold} {n_due} {last}"


def _delete_old_reports(session: Session, row: PublishedReportRow) -> None:
    newest = (
        select(PublishedReportRow.key)
        .where(PublishedReportRow.key != row.key)
        .order_by(PublishedReportRow.asked_at.desc())
        .limit(KEPT - 1)
    )
    others = list(session.execute(newest).scalars())
    session.execute(
        delete(PublishedReportRow)
        .where(PublishedReportRow.key.not_in([row.key, *others]))
        .execution_options(synchronize_session=False)
    )


class ReportResult(TypedDict):
    """Result of a report job: the number of cases."""

    n_cases: int


def make_report(job: RunningJob) -> ReportResult:
    """Job: make the report on one question and keep it in the place of the last one."""
    job.report(0.1, Message("generating the report"))
    return {"n_cases": renew_report(job.context, job.parameters["key"], job.write)}


def renew_report(context: ServiceContext, key: str, write: Callable[[], AbstractContextManager[Session]]) -> int:
    """Make a report and keep it; gives the number of its cases."""
    begun = time.monotonic()
    with context.database.read_moment() as session:
        row = session.get(PublishedReportRow, key)
        if row is None:  # forgotten meanwhile
            return 0
        as_of, basis = context.clock(), _report_basis(session)
        body = build_report(session, context, _query_from_row(row), as_of)
    values = {
        "document": to_jsonable_python(packed(body.model_dump(by_alias=True))),
        "as_of": as_of,
        "release_id": UUID(body.document.release),
        "basis": basis,
        "seconds": time.monotonic() - begun,
    }
    mine = update(PublishedReportRow).where(PublishedReportRow.key == key).values(values)
    with write() as session:
        session.execute(mine.execution_options(synchronize_session=False))
    return body.document.n_cases
