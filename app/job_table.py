"""Functions of each kind of job, and the schedules; the composition of the worker."""

from datetime import timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.advisory_locks import AdvisoryLock, acquire_lock
from app.database.idempotency import SWEEP_ROWS, delete_expired_answers
from app.database.tables import CountedLabel, Job, time_of
from app.imports.import_job import delete_archives
from app.jobs import service
from app.jobs.executor import JobSchedule
from app.jobs.handle import JobFunction, JobResult, RunningJob
from app.labels.corrections import finalize_labels
from app.labels.posterior import reassign_open_requests
from app.maintenance.cache import sweep_files
from app.maintenance.erasure import finish_erasures
from app.metrics.prediction_set_calibration import publish_answer_sets
from app.metrics.published import publish_estimates
from app.metrics.snapshot import refresh_snapshot
from app.outcomes.service import conclude_cells
from app.releases.queries import class_codes, existing_release, read_aliases
from app.releases.schemas import RecalibrationIn
from app.specimens.measuring import refresh_stale_specimens
from app.triage.planning import policy_for_planning


def run_maintenance(context: ServiceContext) -> None:
    """Run the scheduled maintenance: final labels, reassigned reads, outcomes by rule, the day's threshold."""
    # Old answers and archives are forgotten.
    finalize_labels(context)
    reassign_open_requests(context)
    conclude_cells(context)
    refresh_stale_specimens(context)
    delete_archives(context)
    finish_erasures(context)
    with context.database.write() as session:
        policy_for_planning(session)
    deleted = SWEEP_ROWS
    while deleted == SWEEP_ROWS:
        with context.database.write() as session:
            deleted = delete_expired_answers(session, context.clock())


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
    from app.recalibration.predict_old_cases import predict_stored_cases

    return predict_stored_cases(job)


def _fit_reader_model(job: RunningJob) -> JobResult:
    from app.recalibration.annotator_model_fit import fit_reader_model

    return fit_reader_model(job)


def _run_recalibration(job: RunningJob) -> JobResult:
    from app.recalibration.service import recalibrate_champion

    return recalibrate_champion(job)


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
    "recalibration": _run_recalibration,
    "report": _make_report,
}


def refresh_snapshots(context: ServiceContext) -> None:
    """Keep the snapshots of champion and challenger young, so that metrics read little; publish gauges and sets."""
    with context.database.read() as session:
        releases = [existing_release(session, alias.release_id) for alias in read_aliases(session)]
        watched = [(release.id, class_codes(release)) for release in releases]
    for release_id, classes in watched:
        refresh_snapshot(context, release_id, classes)
    publish_estimates(context)
    publish_answer_sets(context)


def ask_for_recalibration(context: ServiceContext) -> None:
    """Ask for a recalibration when the last one was asked for long enough ago, and there are labels since."""
    days = context.settings.recalibrate_days
    if days is None:
        return
    with context.database.read() as session:
        if not _recalibration_is_due(session, days):
            return
    with context.database.write() as session:
        # of two workers that come this far, the second waits here, and then sees the job of the first
        acquire_lock(session, AdvisoryLock.RECALIBRATION)
        if _recalibration_is_due(session, days):
            service.submit_job(session, context, "recalibration", RecalibrationIn().model_dump(mode="json"), None)


def _recalibration_is_due(session: Session, days: int) -> bool:
    """Whether the last one was asked for so many days ago, and labels came since: each try costs the gate's level."""
    last = session.execute(select(func.max(Job.created_at)).where(Job.kind == "recalibration")).scalar_one()
    if last is not None and time_of(session) - last < timedelta(days=days):
        return False
    newest = session.execute(select(func.max(CountedLabel.created_at)).where(CountedLabel.blind.is_(True))).scalar_one()
    return newest is not None and (last is None or newest > last)


def _learn_from_specimens(context: ServiceContext) -> None:
    from app.specimens.learning import learn_from_specimens

    learn_from_specimens(context)


SCHEDULES: dict[str, JobSchedule] = {
    "snapshots": JobSchedule("* * * * *", refresh_snapshots),
    "recalibration": JobSchedule("* * * * *", ask_for_recalibration),
    "tidying": JobSchedule("* * * * *", run_maintenance),
    "sweeping": JobSchedule("17 3 * * *", sweep_files),
    "specimens": JobSchedule("37 3 * * *", _learn_from_specimens),
}
