"""Frozen evaluations: files, job and documents."""

import hashlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from sqlalchemy import select
from sqlalchemy.orm import Session, defer

from app.audit.chain import events
from app.context import ServiceContext
from app.database.tables import Evaluation, Job
from app.http.errors import Conflict, NotFound, ServiceUnavailable
from app.http.principal import Principal
from app.jobs import service
from app.jobs.service import JobView, RunningJob, jobs_where
from app.metrics import service as metric_service
from app.releases.service import class_names, existing_release
from app.reports.charts import draw_report, html_report
from app.reports.report import ReportCohort, build_report_parts, compare_with_last_release, csv_report
from app.reports.schemas import ReportBody
from app.reports.targets import current_targets
from app.storage.bundles import SharedFolders
from ml.messages import Message, Term
from ml.util.files import file_sha256, write_bytes_atomically

EVALUATIONS, LABELS, PREDICTIONS = "evaluations", "labels.parquet", "predictions.parquet"


def evaluation_folder(home: Path, evaluation_id: uuid.UUID) -> Path:
    """Folder of an evaluation's tables and reports, where HOME is the only place."""
    return home / EVALUATIONS / str(evaluation_id)


def shared_folder_name(folders: SharedFolders, evaluation_id: uuid.UUID, digest: str) -> str:
    """Name of that folder; in a bucket the digest is part of it, so that what a killed worker left is never taken."""
    name = f"{EVALUATIONS}/{evaluation_id}"
    return name if folders.bucket is None else f"{name}/{digest}"


def snapshot_sha256(folder: Path) -> str:
    """Digest of the frozen tables."""
    digests = "".join(file_sha256(folder / name) for name in (LABELS, PREDICTIONS))
    return hashlib.sha256(digests.encode()).hexdigest()


KIND = "evaluation"


def request_evaluation(
    session: Session, context: ServiceContext, principal: Principal, body: metric_service.EvaluationIn
) -> tuple[int, metric_service.EvaluationOut]:
    """Submit a job that freezes an evaluation."""
    if body.release is not None:
        existing_release(session, body.release)
    job = service.submit_job(session, context, KIND, body.model_dump(mode="json"), principal)
    return 202, _evaluation_out(job, None)


def _evaluation_out(
    job: JobView, evaluation: Evaluation | None, *, document: bool = True
) -> metric_service.EvaluationOut:
    body = metric_service.EvaluationIn.model_validate(job.parameters)  # what an earlier version left out: its default
    return metric_service.EvaluationOut(
        id=str(job.id),
        state=job.state,
        progress=job.progress or 0.0,
        message=job.message or "",
        error=job.error,
        created_at=job.created_at,
        question=metric_service.EvaluationQuestionOut.model_validate(body.model_dump(mode="json")),
        release=None if evaluation is None else str(evaluation.release_id),
        snapshot_sha256=None if evaluation is None else evaluation.snapshot_sha256,
        document=evaluation.document if evaluation is not None and document else None,
    )


def _job_and_evaluation(session: Session, evaluation_id: uuid.UUID) -> tuple[JobView, Evaluation | None]:
    jobs = jobs_where(session, Job.id == evaluation_id, Job.kind == KIND)
    if not jobs:
        raise NotFound("there is no such evaluation")
    return jobs[0], session.get(Evaluation, evaluation_id)


def read_evaluation(session: Session, evaluation_id: uuid.UUID) -> metric_service.EvaluationOut:
    """Read an evaluation and its progress."""
    return _evaluation_out(*_job_and_evaluation(session, evaluation_id))


def list_evaluations(session: Session) -> metric_service.EvaluationsOut:
    """Evaluations, newest first."""
    jobs = jobs_where(session, Job.kind == KIND, limit=200)
    finished = select(Evaluation).where(Evaluation.id.in_([job.id for job in jobs])).options(defer(Evaluation.document))
    evaluations = {row.id: row for row in session.execute(finished).scalars()}
    return metric_service.EvaluationsOut(
        items=[_evaluation_out(job, evaluations.get(job.id), document=False) for job in jobs]
    )


def read_report_file(session: Session, context: ServiceContext, evaluation_id: uuid.UUID, name: str) -> bytes:
    """A file of an evaluation's report."""
    job, evaluation = _job_and_evaluation(session, evaluation_id)
    if evaluation is None:
        raise Conflict(
            "the evaluation is {state}; its report is available when it has succeeded", state=Term(job.state)
        )
    folder = shared_folder_name(context.folders, evaluation_id, evaluation.snapshot_sha256)
    session.rollback()  # no transaction waits for the bucket
    try:
        return (context.folders.path(folder) / name).read_bytes()
    except FileNotFoundError as exc:
        raise ServiceUnavailable("the report's files are missing; restore them from a backup") from exc


# share of the job that is done when a step begins
_READING, _COMPUTING, _DRAWING = 0.05, 0.4, 0.7


class FreezingResult(TypedDict):
    """Result of a freezing job: the evaluation's identifier."""

    evaluation: str


def freeze_evaluation(job: RunningJob) -> FreezingResult:
    """Job: freeze labels and predictions, evaluate them from the frozen tables, draw the report."""
    with job.context.database.read() as session:
        done = session.execute(select(Evaluation).where(Evaluation.job_id == job.job_id)).scalar_one_or_none()
        if done is not None:
            return {"evaluation": str(done.id)}
    request = metric_service.EvaluationIn.model_validate(job.parameters)
    job.report(_READING, Message("reading labels and predictions"))
    question, at = (
        metric_service.CohortQuery(request.partition, request.weighting, request.since, request.until, request.site),
        job.context.clock(),
    )
    with job.context.database.read_moment() as session:
        judged = metric_service.load_judged_cohort(session, job.context, request.release, question)
        release_id, cohort = judged.release_id, judged.cohort
        tables = metric_service.cohort_tables(session, cohort, identified=False)
        reference = metric_service.read_card_reference(session, release_id)
        of = ReportCohort(release_id, judged.predicted, cohort)
        parts, targets = build_report_parts(session, of, question, at), current_targets(session)
        change = compare_with_last_release(session, job.context, release_id, question)
        audit_head, names = events.read_head_text(session), class_names(session, release_id)
        changes = {
            "corrections": metric_service.count_corrections(session, cohort.columns.ids()),
            "after_reveal": metric_service.count_post_reveal_changes(session, cohort.columns),
        }
    with _working_folder(job) as folder:
        from ml.tables.reading import write_table

        write_table(tables.labels_table(), folder / LABELS)
        write_table(tables.predictions, folder / PREDICTIONS)
        job.report(_COMPUTING, Message("computing metrics"))
        body = metric_service.build_metrics_body(
            cohort,
            _evaluate_written_tables(folder, tables, cohort),
            "site",
            reference,
            judged.trained_on,
            judged.monitors,
            judged.sets,
        )
        agreement = metric_service.measure_label_agreement(tables.labels).model_copy(update=changes)
        document = metric_service.FrozenDocument(
            **dict(body), release=str(release_id), question=request, agreement=agreement
        )
        job.report(_DRAWING, Message("drawing the report"))
        head = metric_service.MetricsHead(
            release=str(release_id), partition=request.partition, weighting=request.weighting
        )
        whole = ReportBody(
            document=metric_service.MetricsOut(**dict(head), **dict(body)),
            agreement=agreement,
            change=change,
            **dict(parts),
        )
        html = html_report(draw_report(whole, targets, names), request, str(job.job_id), at, audit_head)
        write_bytes_atomically(folder / "report.html", html.encode())
        write_bytes_atomically(folder / "report.csv", csv_report(document).encode())
        _store_evaluation(job, release_id, folder, document)
    return {"evaluation": str(job.job_id)}


@contextmanager
def _working_folder(job: RunningJob) -> Iterator[Path]:
    folders = job.context.folders
    if folders.bucket is None:
        folder = evaluation_folder(folders.home, job.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    folder = folders.home / f".{uuid.uuid4().hex}.part"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _store_evaluation(
    job: RunningJob, release_id: uuid.UUID, folder: Path, document: metric_service.FrozenDocument
) -> None:
    """Store an evaluation: its files first, so that a row is never without them."""
    digest, folders = snapshot_sha256(folder), job.context.folders
    folders.publish(shared_folder_name(folders, job.job_id, digest), folder)
    with job.write() as session:
        session.add(
            Evaluation(
                id=job.job_id,
                job_id=job.job_id,
                release_id=release_id,
                snapshot_sha256=digest,
                document=document.model_dump(mode="json", exclude_unset=True),
            )
        )


def _evaluate_written_tables(
    folder: Path, tables: metric_service.CohortTables, cohort: metric_service.Cohort
) -> metric_service.EvaluationDocument:
    if not tables.labels.case_id:  # a table without labels cannot be evaluated
        return metric_service.EvaluationDocument.of(metric_service.evaluate_cohort(cohort))
    return evaluate_frozen(folder, weighted=cohort.first is not None)


def evaluate_frozen(folder: Path, *, weighted: bool = True) -> metric_service.EvaluationDocument:
    """The evaluation of frozen tables, the one that anybody gets who has the folder."""
    from ml.tables import evaluate

    evaluation = evaluate(
        folder / LABELS,
        folder / PREDICTIONS,
        sample_weight=("weight", "weight2") if weighted else None,
        cluster="patient",
    )
    return metric_service.EvaluationDocument.of(evaluation)


def move_into_bucket(context: ServiceContext) -> int:
    """Bring evaluations that a backup left in HOME into the bucket, if there is one."""
    folders, n_moved = context.folders, 0
    if folders.bucket is None:
        return 0
    with context.database.read() as session:
        evaluations = session.execute(select(Evaluation.id, Evaluation.snapshot_sha256)).all()
    for evaluation_id, digest in evaluations:
        folder = evaluation_folder(folders.home, evaluation_id)
        if all((folder / name).is_file() for name in (LABELS, PREDICTIONS)) and snapshot_sha256(folder) == digest:
            folders.publish(shared_folder_name(folders, evaluation_id, digest), folder)
            shutil.rmtree(folder)
            n_moved += 1
    return n_moved
