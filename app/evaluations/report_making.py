"""Everything that a report says on one question, at one moment."""

from datetime import datetime

from sqlalchemy.orm import Session

from app.context import Context
from app.evaluations import findings
from app.evaluations.cohort import Cohort, Question, cohort_of
from app.evaluations.designs import designs_of
from app.evaluations.held_out import held_out
from app.evaluations.report_schemas import ReportBody, ReportParts
from app.evaluations.service import agreement, groups_of, metrics, release_or_champion
from app.evaluations.snapshots import current_columns
from app.evaluations.workload import workload_of
from app.triage.queries import current_policy


def report_on(session: Session, context: Context, question: Question, at: datetime) -> ReportBody:
    """The report on a question about the champion.

    Args:
        session: for reading, of one moment.
        context: parts of the service.
        question: which cases, how weighted.
        at: the time.

    Raises:
        NoRelease: there is no champion.
    """
    home = context.settings.home
    columns = held_out(current_columns(session, home, *release_or_champion(session, None)))
    cohort = cohort_of(columns, question, at.timestamp())
    return ReportBody(
        document=metrics(session, context, None, question, "site"),
        agreement=agreement(session, home, question, None),
        **dict(parts_of(session, cohort, question, at)),
    )


def parts_of(session: Session, cohort: Cohort, question: Question, at: datetime) -> ReportParts:
    """What a report says of a cohort beside its metrics.

    Args:
        session: for reading, of one moment.
        cohort: the cases.
        question: which they are.
        at: the time.
    """
    workload = workload_of(session, at, question.site)
    quantiles = findings.quantiles_of(cohort)
    return ReportParts(
        months=groups_of(cohort, "month"),
        findings=findings.findings_of(cohort),
        workload=workload,
        pairs=findings.pairs_of(cohort),
        by_site=findings.by_site(cohort),
        by_month=findings.by_month(cohort),
        what_if=findings.what_if(cohort, quantiles, workload),
        designs=designs_of(cohort, current_policy(session).audit_rate),
        quantiles=quantiles,
    )
