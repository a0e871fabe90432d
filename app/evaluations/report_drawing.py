"""A report as people see it, with its sentences and plots: on its page, and frozen as a file that opens offline."""

from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup
from sqlalchemy.orm import Session

from app.evaluations import report_charts
from app.evaluations.readers_annex import ReadersAnnex, annex_of
from app.evaluations.report import COLOURS, STYLE, environment, headline
from app.evaluations.report_charts import Plot
from app.evaluations.report_schemas import ReportBody, ReportParts
from app.evaluations.report_sentences import Sentence, sentences
from app.evaluations.schemas import EvaluationIn
from app.evaluations.targets import TargetsOut
from app.http.languages import gettext
from app.http.models import MetricOut
from app.triage.queries import current_policy


@dataclass(frozen=True)
class Report:
    """A report as its page shows it, with its plots by name.

    ``now`` is the share of the cases that is read twice today; ``targets`` are those in force.
    """

    body: ReportBody
    sentences: list[Sentence]
    headline: list[tuple[str, str, MetricOut]]
    plots: dict[str, Plot]
    classes: dict[str, Plot]
    now: float | None

    @property
    def readers(self) -> ReadersAnnex:
        """The annex about several annotators."""
        return annex_of(self.body.document, self.body.agreement)

    @property
    def cautions(self) -> list[str]:
        """Warnings, without the alarms, which stand above everything."""
        document = self.body.document
        alarms = {text for monitor in document.score_monitor for text in monitor.warnings}
        return [text for text in document.warnings if text not in alarms]


def drawn_report(body: ReportBody, targets: TargetsOut, now: float | None) -> Report:
    """A report with its sentences and plots.

    Args:
        body: what it says.
        targets: of the laboratory.
        now: share of the cases that is read twice today, as ``share_today`` says.
    """
    document = body.document
    plots = {
        "disagreement": report_charts.reliability(document.disagreement_bins, "disagreement"),
        "classes": report_charts.reliability(document.class_bins, "probability"),
        "triage": report_charts.operating_curve(body.what_if, now),
        "weeks": report_charts.weekly(body.workload.weeks),
        "sites": report_charts.trend(body.by_site, gettext("site"), in_time=False),
        "months": report_charts.trend(body.by_month, gettext("month"), in_time=True),
        "alarm": report_charts.alarm(document.score_monitor),
    }
    classes = {row.name: report_charts.reliability(row.bins, "probability") for row in document.classes}
    return Report(
        body=body,
        sentences=sentences(body, targets),
        headline=headline(document),
        plots=plots,
        classes=classes,
        now=now,
    )


def share_today(session: Session, parts: ReportParts) -> float | None:
    """Share of the cases that today's policy reads twice for their disagreement, None without a case.

    Of a threshold of the disagreement probability by the cases of the report; of other rules as they were planned.
    """
    policy = current_policy(session)
    if policy.rule == "disagreement" and policy.threshold is not None and parts.quantiles:
        return sum(value > policy.threshold for value in parts.quantiles) / len(parts.quantiles)
    return None if parts.findings.caught is None else parts.findings.caught.share


def html_report(report: Report, asked: EvaluationIn, evaluation_id: str, at: datetime) -> str:
    """A report as one page that opens offline: the sentences, charts and tables of the report's page.

    Args:
        report: what it shows.
        asked: the question that was frozen.
        evaluation_id: of the frozen evaluation.
        at: when it was frozen.
    """
    template = environment().get_template("frozen_report.html")
    colours, style = (Markup(file.read_text(encoding="utf-8")) for file in (COLOURS, STYLE))  # noqa: S704  # our own
    return template.render(r=report, asked=asked, id=evaluation_id, at=at, colours=colours, style=style)
