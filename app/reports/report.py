"""Report: collecting its statistics and rendering it."""

import csv
import io
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment
from sqlalchemy.orm import Session

from app.context import Context
from app.http.formats import templates_in
from app.http.models import MetricOut
from app.metrics.cohort import Cohort, Question, cohort_of, held_out
from app.metrics.schemas import MetricsBody
from app.metrics.secondary_statistics import designs_of
from app.metrics.service import agreement, groups_of, metrics, release_or_champion
from app.metrics.snapshot import current_columns
from app.reports import statistics
from app.reports.schemas import ReportBody, ReportParts
from app.reports.sentences import ends, hours, percent
from app.reports.workload import workload_of
from app.triage.queries import current_policy
from ml.messages import messages

#: Templates of reports; pages use their sections.
TEMPLATES = Path(__file__).parent / "templates"
#: Style of reports, for their pages and for files that open offline.
STYLE = Path(__file__).parent / "static" / "report.css"
#: Colours of both, and of all other pages.
COLOURS = STYLE.with_name("colours.css")
#: Filters of these templates, by their names.
FILTERS = {"percent": percent, "percent_ends": ends, "hours": hours}

#: Digits of the headline metrics.
SHOWN_DIGITS = 4
#: What each headline metric says, in words.
WORDS = messages(
    {
        "agreement": "share of the annotators who name the most probable class",
        "accuracy": "share of cells with three labels whose most probable class is the annotators' most frequent one",
        "L": "squared error of the class probabilities for one annotator's label (0 best, 2 worst)",
        "skill": "by how much L is smaller than that of the class frequencies (1 best, 0 no better)",
        "EL": "the part of L that better probabilities could avoid",
        "CL_paired": "the part of EL that recalibration could avoid",
        "DL": "the part of EL that needs a better network: EL = CL + DL, all three on the cases with two labels",
        "CL": "CL over every case with a label, which is no part of the EL above",
        "CE": "calibration error of the class probabilities, the root of CL₁",
        "L_D": "squared error of the disagreement probability",
        "skill_D": "by how much it is smaller than that of one constant for all cells (1 best, 0 no better)",
        "L_D_minus_max": "L_D less that of 1 − max f taken for φ (below 0: better)",
        "L_D_minus_gini": "L_D less that of 1 − Σf² taken for φ (below 0: better)",
        "CL_D": "the part of it that recalibration could avoid",
        "CE_D": "calibration error of the disagreement probability",
    }
)


@cache
def environment() -> Environment:
    """Templates of reports."""
    made = templates_in(TEMPLATES)
    made.filters |= FILTERS
    return made


def chart_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """The numbers that a chart shows, as CSV."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def headline(document: MetricsBody) -> list[tuple[str, str, MetricOut]]:
    """Name, meaning and estimate of each headline metric that could be measured when the document was made.

    DL is shown as the shown EL less the shown CL, so that the parts add up to the whole on paper too.
    """
    shown = document.metrics | adding_up(document)
    known = [(name, meaning, shown[name]) for name, meaning in WORDS.items() if name in shown]
    return [row for row in known if row[0] != "accuracy" or row[2].n > 0]


def adding_up(document: MetricsBody) -> dict[str, MetricOut]:
    """EL, the CL of the same cases and DL, rounded as they are shown, such that EL = CL + DL; nothing without them."""
    found = [document.metrics.get(name) for name in ("EL", "CL_paired", "DL")]
    if any(one is None or one.value is None for one in found):
        return {}
    whole, calibration, dispersion = (one for one in found if one is not None)
    rounded = [round(one.value or 0.0, SHOWN_DIGITS) for one in (whole, calibration)]
    rest = round(rounded[0] - rounded[1], SHOWN_DIGITS)
    values = zip((whole, calibration, dispersion), (*rounded, rest), strict=True)
    return dict(zip(("EL", "CL_paired", "DL"), (one.model_copy(update={"value": v}) for one, v in values), strict=True))


def csv_report(document: MetricsBody) -> str:
    """Every metric, one row each."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    ends = ("low", "high", "low_new", "high_new")
    columns = ("value", "se", *ends, "n", "dropped", "ess", "horvitz_thompson", "largest_weight")
    assisted = ("value", "se", "low", "high")
    writer.writerow(["metric", *columns, *(f"model_assisted_{column}" for column in assisted)])
    for name, estimate in document.metrics.items():
        also = [getattr(estimate.model_assisted, column, None) for column in assisted]
        writer.writerow([name, *(getattr(estimate, column) for column in columns), *also])
    return stream.getvalue()


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
    quantiles = statistics.quantiles_of(cohort)
    return ReportParts(
        months=groups_of(cohort, "month"),
        findings=statistics.findings_of(cohort),
        workload=workload,
        pairs=statistics.pairs_of(cohort),
        by_site=statistics.by_site(cohort),
        by_month=statistics.by_month(cohort),
        what_if=statistics.what_if(cohort, quantiles, workload),
        designs=designs_of(cohort, current_policy(session).audit_rate),
        quantiles=quantiles,
    )
