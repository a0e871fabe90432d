"""Functions of each kind of job, and the schedules; the composition of the worker."""

from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.audit.anchor import anchor_here
from app.context import Context
from app.database.idempotency import SWEEP_ROWS, sweep
from app.database.sql.advisory_locks import Turn, take_turn
from app.database.tables import Job, Label, time_of
from app.imports.import_job import delete_archives
from app.jobs import service
from app.jobs.executor import Schedule, forget_upkeep
from app.jobs.handle import JobFunction, JobResult, RunningJob
from app.labels.adjudication import ask_instead
from app.labels.corrections import settle
from app.maintenance.erasure import finish_erasures
from app.maintenance.sweep import sweep_files
from app.metrics.prediction_set_calibration import publish_answer_sets
from app.metrics.published import publish_estimates
from app.metrics.snapshot import refresh
from app.releases.queries import aliases, class_codes, existing_release
from app.releases.schemas import RecalibrationIn
from app.triage.planning import policy_for_planning


def tidy(context: Context) -> None:
    """Draw the conclusions from final labels, ask others where somebody declined or left, set the day's threshold.

    Old answers and archives are forgotten.
    """
    settle(context)
    ask_instead(context)
    delete_archives(context)
    finish_erasures(context)
    with context.database.write() as session:
        policy_for_planning(session)
    deleted = SWEEP_ROWS
    while deleted == SWEEP_ROWS:
        with context.database.write() as session:
            deleted = sweep(session, context.clock())


# a worker lies idle for most of its life: what a kind of job needs is loaded with the first job of that kind


def _check_import(job: RunningJob) -> JobResult:
    from app.imports.dry_run import check_import

    return check_import(job)


def _freeze_evaluation(job: RunningJob) -> JobResult:
    from app.reports.frozen_evaluations import freeze_evaluation

    return freeze_evaluation(job)


def _import_cases(job: RunningJob) -> JobResult:
    from app.imports.import_job import import_cases

    return import_cases(job)


def _judge_release(job: RunningJob) -> JobResult:
    from app.recalibration.external_release import judge_release

    return judge_release(job)


def _predict_again(job: RunningJob) -> JobResult:
    from app.recalibration.predict_old_cases import predict_again

    return predict_again(job)


def _fit_reader_model(job: RunningJob) -> JobResult:
    from app.recalibration.annotator_model_fit import fit_reader_model

    return fit_reader_model(job)


def _recalibrate(job: RunningJob) -> JobResult:
    from app.recalibration.service import recalibrate

    return recalibrate(job)


def _make_report(job: RunningJob) -> JobResult:
    from app.reports.publishing import make_report

    return make_report(job)


FUNCTIONS: dict[str, JobFunction] = {
    "check": _check_import,
    "evaluation": _freeze_evaluation,
    "import": _import_cases,
    "judgement": _judge_release,
    "prediction": _predict_again,
    "readers": _fit_reader_model,
    "recalibration": _recalibrate,
    "report": _make_report,
}


def refresh_snapshots(context: Context) -> None:
    """Keep the snapshots of champion and challenger young, so that metrics read little; publish gauges and sets."""
    with context.database.read() as session:
        releases = [existing_release(session, alias.release_id) for alias in aliases(session)]
        watched = [(release.id, class_codes(release)) for release in releases]
    for release_id, classes in watched:
        refresh(context, release_id, classes)
    publish_estimates(context)
    publish_answer_sets(context)


def ask_for_recalibration(context: Context) -> None:
    """Ask for a recalibration when the last one was asked for long enough ago, and there are labels since."""
    days = context.settings.recalibrate_days
    if days is None:
        return
    with context.database.read() as session:
        if not _recalibration_is_due(session, days):
            return
    with context.database.write() as session:
        # of two workers that come this far, the second waits here, and then sees the job of the first
        take_turn(session, Turn.RECALIBRATION)
        if _recalibration_is_due(session, days):
            service.submit(session, context, "recalibration", RecalibrationIn().model_dump(mode="json"), None)


def _recalibration_is_due(session: Session, days: int) -> bool:
    """Whether the last one was asked for so many days ago, and labels came since: each try costs the gate's level."""
    last = session.execute(select(func.max(Job.created_at)).where(Job.kind == "recalibration")).scalar_one()
    if last is not None and time_of(session) - last < timedelta(days=days):
        return False
    newest = session.execute(select(func.max(Label.created_at))).scalar_one()
    return newest is not None and (last is None or newest > last)


SCHEDULES: dict[str, Schedule] = {
    "snapshots": Schedule("* * * * *", refresh_snapshots),
    "recalibration": Schedule("* * * * *", ask_for_recalibration),
    "anchoring": Schedule("* * * * *", anchor_here),
    "tidying": Schedule("* * * * *", tidy),
    "sweeping": Schedule("17 3 * * *", sweep_files),
    "forgetting": Schedule("17 * * * *", forget_upkeep),
}
