"""Report: collecting its statistics and rendering it."""

import csv
import io
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment
from sqlalchemy.orm import Session

from app.context import ServiceContext
from app.database.tables import time_of
from app.http.formats import templates_in
from app.http.models import MetricOut
from app.metrics import service as metric_service
from app.releases.service import previous_champion
from app.reports import statistics
from app.reports.schemas import DurationOut, FindingsOut, ReportBody, ReportParts
from app.reports.second_reads import RequestedReads, apply_policy
from app.reports.sentences import (
    format_hours,
    format_percent,
    format_percent_range,
    format_rate,
    format_share_interval,
)
from app.reports.statistics import summarise_workload
from app.triage.service import current_policy
from ml.messages import messages

#: Templates of reports; pages use their sections.
TEMPLATES = Path(__file__).parent / "templates"
#: Style of reports, for their pages and for files that open offline.
STYLE = Path(__file__).parent / "static" / "report.css"
#: Colours of both, and of all other pages.
COLOURS = STYLE.with_name("colours.css")
#: Filters of these templates, by their names.
FILTERS = {
    "percent": format_percent,
    "percent_range": format_percent_range,
    "percent_ends": format_share_interval,
    "rate": format_rate,
    "hours": format_hours,
}

#: Digits of the headline metrics.
SHOWN_DIGITS = 4
#: What each headline metric says, in words.
METRIC_MEANINGS = messages(
    {
        "agreement": "share of the annotators who choose the most probable class",
        "accuracy": (
            "share of cells with three labels in which the most probable class is the annotators' most frequent one"
        ),
        "L": "expected loss: squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
        "skill": "skill score: reduction of L compared with the class frequencies (1 best, 0 no better)",
        "EL": "epistemic loss: the part of L that better probabilities could avoid",
        "CL_paired": "the part of EL that recalibration could avoid",
        "DL": "the part of EL that needs a better network (EL = CL + DL, on cells with two labels)",
        "CL": "CL over every cell with a label; not a part of EL",
        "CE": "calibration error of the class probabilities, the root of CL₁",
        "L_D": "squared error of the disagreement probability",
        "skill_D": (
            "skill score: reduction of this error compared with one constant for all cells (1 best, 0 no better)"
        ),
        "L_D_minus_max": "difference from the error of 1 − max f as disagreement probability (below 0: better)",
        "L_D_minus_gini": "difference from the error of 1 − Σf² as disagreement probability (below 0: better)",
        "CL_D": "the part of it that recalibration could avoid",
        "CE_D": "calibration error of the disagreement probability",
    }
)


@cache
def load_report_templates() -> Environment:
    """Load the templates of reports."""
    templates = templates_in(TEMPLATES)
    templates.filters |= FILTERS
    return templates


def chart_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The numbers that a chart shows, as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def headline_metrics(document: metric_service.MetricsBody) -> list[tuple[str, str, MetricOut]]:
    """Name, meaning and estimate of each headline metric that could be measured when the document was made."""
    # DL is shown as the shown EL less the shown CL, so that the parts add up to the whole on paper too.
    estimates = document.metrics | round_additive_parts(document)
    headline_rows = [(name, meaning, estimates[name]) for name, meaning in METRIC_MEANINGS.items() if name in estimates]
    return [row for row in headline_rows if row[0] != "accuracy" or row[2].n > 0]


def round_additive_parts(document: metric_service.MetricsBody) -> dict[str, MetricOut]:
    """EL, the CL of the same cases and DL, rounded as they are shown, such that EL = CL + DL; nothing without them."""
    parts = [document.metrics.get(name) for name in ("EL", "CL_paired", "DL")]
    if any(one is None or one.value is None for one in parts):
        return {}
    whole, calibration, dispersion = (one for one in parts if one is not None)
    rounded = [round(one.value or 0.0, SHOWN_DIGITS) for one in (whole, calibration)]
    rest = round(rounded[0] - rounded[1], SHOWN_DIGITS)
    values = zip((whole, calibration, dispersion), (*rounded, rest), strict=True)
    return dict(zip(("EL", "CL_paired", "DL"), (one.model_copy(update={"value": v}) for one, v in values), strict=True))


def csv_report(document: metric_service.FrozenDocument) -> str:
    """Every metric, one row each, with what it covers."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    ends = ("low", "high", "low_new", "high_new")
    columns = ("value", "se", *ends, "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    assisted = ("value", "se", "low", "high")
    covered = document.question.model_dump(mode="json") | {"release": document.release}
    writer.writerow(["metric", *columns, *(f"model_assisted_{column}" for column in assisted), *covered])
    for name, estimate in document.metrics.items():
        also = [getattr(estimate.model_assisted, column, None) for column in assisted]
        writer.writerow([name, *(getattr(estimate, column) for column in columns), *also, *covered.values()])
    return stream.getvalue()


def build_report(
    session: Session, context: ServiceContext, question: metric_service.CohortQuery, at: datetime
) -> ReportBody:
    """Build the report of a query about the champion."""
    cohort = load_report_cohort(session, context, question, at)
    return ReportBody(
        document=metric_service.compute_metrics(session, context, None, question, "site"),
        agreement=metric_service.compute_agreement(session, context.settings.home, question, None),
        change=compare_with_last_release(session, context, cohort.release_id, question),
        **dict(build_report_parts(session, cohort, question, at)),
    )


@dataclass(frozen=True)
class ReportCohort:
    """The cases of a report, among all that the release has predicted."""

    release_id: uuid.UUID
    predicted: metric_service.EvaluationDataset
    cohort: metric_service.Cohort


def load_report_cohort(
    session: Session, context: ServiceContext, question: metric_service.CohortQuery, at: datetime
) -> ReportCohort:
    """Load the cases of a report about the champion."""
    release_id, classes = metric_service.release_or_champion(session, None)
    predicted = metric_service.load_current_dataset(session, context.settings.home, release_id, classes)
    judged = metric_service.exclude_training_cases(predicted)
    return ReportCohort(release_id, predicted, metric_service.build_cohort(judged, question, at.timestamp()))


def compare_with_last_release(
    session: Session, context: ServiceContext, release_id: uuid.UUID, question: metric_service.CohortQuery
) -> metric_service.ComparisonOut | None:
    """Compare a release with the champion before it; None without one before."""
    before = previous_champion(session, release_id)
    return (
        None
        if before is None
        else metric_service.compare_with_champion(session, context, before.id, question, release_id)
    )


def build_findings(
    session: Session,
    of: ReportCohort,
    question: metric_service.CohortQuery,
    requested: RequestedReads,
    answering: DurationOut,
) -> FindingsOut:
    """Build the numbers of a report's sentences."""
    left_out = metric_service.count_left_out_labels(session, of.predicted, question, of.cohort)
    return statistics.compute_findings(of.cohort, requested, answering, left_out)


def current_findings(session: Session, context: ServiceContext, question: metric_service.CohortQuery) -> FindingsOut:
    """Compute the numbers of the report's sentences now."""
    at = time_of(session)
    of = load_report_cohort(session, context, question, at)
    _, answering = summarise_workload(session, at, question.site)
    return build_findings(session, of, question, apply_policy(session, of.release_id, of.cohort), answering)


def build_report_parts(
    session: Session, of: ReportCohort, question: metric_service.CohortQuery, at: datetime
) -> ReportParts:
    """Build all parts of a cohort's report beside its metrics."""
    cohort, requested = of.cohort, apply_policy(session, of.release_id, of.cohort)
    workload, answering = summarise_workload(session, at, question.site)
    return ReportParts(
        months=metric_service.compute_group_metrics(cohort, "month"),
        findings=build_findings(session, of, question, requested, answering),
        workload=workload,
        pairs=statistics.rank_confused_pairs(cohort),
        by_site=statistics.trends_by_site(cohort),
        by_month=statistics.trends_by_month(cohort),
        what_if=list(statistics.simulate_second_read_shares(cohort, requested, workload)),
        designs=metric_service.simulate_designs(cohort, current_policy(session).audit_rate),
        consensus=statistics.compare_consensus(cohort),
    )
